"""Knows how a step and the queue become Forward Pass Metrics, by the rules for vLLM.

Everything comes from the step as it was scheduled, never from live requests: with two passes in flight
they have moved on. KV lengths are those *before* the pass.
"""

from __future__ import annotations

from forwardpass.engines.mock.step import Step
from forwardpass.wire.schema import (
    FPM_VERSION,
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledRequestMetrics,
)
from forwardpass.wire.tally import sum_and_variance

__all__ = ["measure", "measure_scheduled"]


def measure_scheduled(step: Step) -> ScheduledRequestMetrics:
    """Return what ran: counts, tokens and population variances (tokens squared)."""
    # HOT PATH: one pass over the chunks and two over the contexts.
    chunks, contexts = step.chunks, step.contexts
    decode_kv, decode_variance = sum_and_variance(contexts)
    if not chunks:
        return ScheduledRequestMetrics(0, 0, 0.0, 0, len(contexts), decode_kv, decode_variance)
    _, length_variance = sum_and_variance([chunk.length for chunk in chunks])
    return ScheduledRequestMetrics(
        len(chunks),
        sum(chunk.tokens for chunk in chunks),
        length_variance,
        sum(chunk.computed for chunk in chunks),
        len(contexts),
        decode_kv,
        decode_variance,
    )


def measure(step: Step, queued: QueuedRequestMetrics, wall_time: float, dp_rank: int) -> ForwardPassMetrics:
    """Return the message of one pass; ``wall_time`` in seconds. The publisher adds identity and number."""
    # HOT PATH: runs between two passes.
    return ForwardPassMetrics(FPM_VERSION, "", dp_rank, 0, wall_time, measure_scheduled(step), queued)
