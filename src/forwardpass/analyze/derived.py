"""Knows every quantity that is computed from one message, and the divisions behind sums of many.

The only place for them: commands, summaries and exports call this. What says nothing (no requests, no time,
not a finite number, a negative one) is ``None``, never an exception and never 0. Formulas, units and sources
are listed for users in docs/how-to/derived-quantities.md.
"""

from __future__ import annotations

import math

from msgspec import Struct

from forwardpass.analyze.kinds import PassKind, kind_of
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = [
    "Derived",
    "age_seconds",
    "busy_fraction",
    "cached_fraction",
    "derive",
    "queue_depth",
    "queued_tokens",
    "ratio",
    "tokens_of",
    "total_context",
]


class Derived(Struct, frozen=True):
    """What one message says besides what stands in it. Lengths and contexts are in tokens."""

    kind: PassKind
    tokens: int
    """Prompt tokens computed, and one for each decoding request: a lower bound under speculation."""
    tokens_per_second: float | None
    """``tokens`` / ``wall_time``; ``None`` where no time passed. The same lower bound."""
    total_context_tokens: int
    """Tokens that the pass attended to: those computed for prompts, those read for them, those of decodes."""
    cached_fraction: float | None
    """Share of the prompts' tokens that was read (cache hits, transfers, earlier chunks), not computed."""
    mean_chunk_tokens: float | None
    """Prompt tokens computed for each prefill request in this pass."""
    mean_prompt_tokens: float | None
    """Tokens computed and read for each prefill request: its prompt, as far as it has come."""
    std_prompt_tokens: float | None
    """Standard deviation of the whole prompts' lengths."""
    mean_decode_context_tokens: float | None
    std_decode_context_tokens: float | None
    queue_depth: int
    """Requests that wait: new, preempted, or for transferred KV."""
    queued_tokens: int
    """Their prompts' lengths and contexts."""
    mean_queued_prompt_tokens: float | None
    std_queued_prompt_tokens: float | None
    mean_queued_context_tokens: float | None
    """Context of each preempted or transferring request."""
    std_queued_context_tokens: float | None


def derive(metrics: ForwardPassMetrics, *, data_parallel: bool = False) -> Derived:
    """Return what ``metrics`` says. ``data_parallel`` as in :func:`~forwardpass.analyze.kinds.kind_of`."""
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
    prefills, decodes = scheduled.num_prefill_requests, scheduled.num_decode_requests
    prompts = scheduled.sum_prefill_tokens + scheduled.sum_prefill_kv_tokens
    waiting, blocked = queued.num_prefill_requests, queued.num_decode_requests
    return Derived(
        kind=kind_of(metrics, data_parallel=data_parallel),
        tokens=tokens_of(metrics),
        tokens_per_second=ratio(tokens_of(metrics), metrics.wall_time),
        total_context_tokens=total_context(metrics),
        cached_fraction=cached_fraction(scheduled.sum_prefill_kv_tokens, scheduled.sum_prefill_tokens),
        mean_chunk_tokens=ratio(scheduled.sum_prefill_tokens, prefills),
        mean_prompt_tokens=ratio(prompts, prefills),
        std_prompt_tokens=_deviation(scheduled.var_prefill_length, prefills),
        mean_decode_context_tokens=ratio(scheduled.sum_decode_kv_tokens, decodes),
        std_decode_context_tokens=_deviation(scheduled.var_decode_kv_tokens, decodes),
        queue_depth=queue_depth(metrics),
        queued_tokens=queued_tokens(metrics),
        mean_queued_prompt_tokens=ratio(queued.sum_prefill_tokens, waiting),
        std_queued_prompt_tokens=_deviation(queued.var_prefill_length, waiting),
        mean_queued_context_tokens=ratio(queued.sum_decode_kv_tokens, blocked),
        std_queued_context_tokens=_deviation(queued.var_decode_kv_tokens, blocked),
    )


def tokens_of(metrics: ForwardPassMetrics) -> int:
    """Return prompt tokens computed plus one for each decoding request: a lower bound under speculation."""
    return metrics.scheduled_requests.sum_prefill_tokens + metrics.scheduled_requests.num_decode_requests


def total_context(metrics: ForwardPassMetrics) -> int:
    """Return the tokens that the pass attended to: computed and read for prompts, and decodes' contexts."""
    scheduled = metrics.scheduled_requests
    return scheduled.sum_prefill_tokens + scheduled.sum_prefill_kv_tokens + scheduled.sum_decode_kv_tokens


def queue_depth(metrics: ForwardPassMetrics) -> int:
    """Return how many requests wait: new, preempted, or for transferred KV."""
    return metrics.queued_requests.num_prefill_requests + metrics.queued_requests.num_decode_requests


def queued_tokens(metrics: ForwardPassMetrics) -> int:
    """Return the prompts' lengths and contexts of what waits, in tokens."""
    return metrics.queued_requests.sum_prefill_tokens + metrics.queued_requests.sum_decode_kv_tokens


def cached_fraction(read_tokens: int, computed_tokens: int) -> float | None:
    """Return the share of prompt tokens that was read and not computed, 0 … 1; ``None`` without prompts."""
    return ratio(read_tokens, read_tokens + computed_tokens)


def busy_fraction(busy_seconds: float, elapsed_seconds: float) -> float | None:
    """Return the sum of ``wall_time`` / elapsed time of one rank; above 1 where an engine's times overlap."""
    return ratio(busy_seconds, elapsed_seconds)


def age_seconds(observed_unix_ms: int, now_unix_ms: int) -> float | None:
    """Return how long ago a message was observed; ``None`` for one of the future, by clocks that differ."""
    return ratio(now_unix_ms - observed_unix_ms, 1000)


def ratio(amount: float, base: float) -> float | None:
    """Return ``amount / base``, or ``None`` where that says nothing: no base, not finite, negative."""
    if not (base > 0 and amount >= 0):  # NaN satisfies neither
        return None
    try:
        quotient = amount / base
    except OverflowError:
        return None
    return quotient if math.isfinite(quotient) else None


def _deviation(variance: float, count: int) -> float | None:
    """Return the standard deviation of ``count`` values; ``None`` of none."""
    if not (count > 0 and 0 <= variance < math.inf):
        return None
    return math.sqrt(variance)
