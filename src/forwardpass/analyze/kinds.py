"""Knows what kind of forward pass a message describes.

A pass is told apart by what was scheduled in it. Requests count even where their tokens do not: a
fully cached prompt is a prefill of 0 tokens.
"""

from __future__ import annotations

from enum import StrEnum

from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["PassKind", "kind_of"]


class PassKind(StrEnum):
    """What one message describes."""

    PREFILL = "prefill"
    """Only prompts (or chunks of them) were computed."""
    DECODE = "decode"
    """Only requests in the generation phase ran."""
    MIXED = "mixed"
    """Both in one pass."""
    IDLE = "idle"
    """The engine ran a pass without any request (TensorRT-LLM reports such iterations)."""
    DP_DUMMY = "dp-dummy"
    """The same on a data-parallel rank: it kept step with ranks that had requests (SGLang)."""
    HEARTBEAT = "heartbeat"
    """No pass: a quiet publisher said that it is there. Its queue may be real (decision D-3)."""


def kind_of(metrics: ForwardPassMetrics, *, data_parallel: bool = False) -> PassKind:
    """Return the kind of pass.

    ``data_parallel`` says that the worker has several ranks, which one message cannot tell (a rank
    above 0 does): it only decides between ``IDLE`` and ``DP_DUMMY``.
    """
    scheduled = metrics.scheduled_requests
    prefill = scheduled.num_prefill_requests > 0 or scheduled.sum_prefill_tokens > 0
    decode = scheduled.num_decode_requests > 0 or scheduled.sum_decode_kv_tokens > 0
    if prefill:
        return PassKind.MIXED if decode else PassKind.PREFILL
    if decode:
        return PassKind.DECODE
    if metrics.wall_time == 0.0:
        return PassKind.HEARTBEAT
    return PassKind.DP_DUMMY if data_parallel or metrics.dp_rank > 0 else PassKind.IDLE
