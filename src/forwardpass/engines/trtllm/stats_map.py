"""Knows what TensorRT-LLM's iteration statistics mean: one row is one pass of one rank. Pure.

Fields as TensorRT-LLM documents them (iteration statistics of its LLM API and of ``/metrics``) and as NVIDIA
Dynamo's adapter reads them. Builds without the added token counts cannot be mapped: zeros in their place
would look like an idle worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from forwardpass.errors import EngineError
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["BATCHING", "NEEDED", "RankPass", "map_row", "missing_keys"]

BATCHING = "inflightBatchingStats"
NEEDED = (
    "numContextRequests", "numCtxTokens", "numCtxKvTokens", "numGenRequests", "numGenKvTokens",
    "numQueuedContextRequests", "numQueuedCtxTokens", "numPausedRequests", "numQueuedGenRequests",
    "numPausedKvTokens", "numQueuedGenKvTokens",
)  # fmt: skip
"""Keys of the nested statistics that a pass is made of."""
_LATENCY, _RANK = "iterLatencyMS", "attentionDpRank"


class RankPass(Struct, frozen=True):
    """One row, mapped."""

    dp_rank: int
    metrics: ForwardPassMetrics
    """Without identity and number, which the publisher stamps. All variances are 0.0: no lengths are told."""


def missing_keys(row: object) -> tuple[str, ...]:
    """Return the keys that a row would need and does not have; the nested map's own name if that is not
    there. Asked of a worker's first row.
    """
    nested = row.get(BATCHING) if isinstance(row, Mapping) else None
    if not isinstance(nested, Mapping):
        return (BATCHING,)
    return tuple(key for key in NEEDED if key not in nested)


def map_row(row: object) -> RankPass:
    """Return the pass in ``row``, a map as JSON gives it.

    ``iterLatencyMS`` becomes seconds. A request that is paused counts as a queued decode, as it does where
    it is scheduled. Raises :class:`EngineError` that names the key for a row that is not as documented.
    """
    if not isinstance(row, Mapping):
        raise EngineError(f"a row of iteration statistics is a {type(row).__name__}; expected an object")
    missing = missing_keys(row)
    if missing:
        raise EngineError(f"a row of iteration statistics lacks {', '.join(missing)}")
    counts = {key: _count(key, row[BATCHING][key]) for key in NEEDED}
    scheduled = ScheduledRequestMetrics(
        num_prefill_requests=counts["numContextRequests"],
        sum_prefill_tokens=counts["numCtxTokens"],
        sum_prefill_kv_tokens=counts["numCtxKvTokens"],
        num_decode_requests=counts["numGenRequests"],
        sum_decode_kv_tokens=counts["numGenKvTokens"],
    )
    queued = QueuedRequestMetrics(
        num_prefill_requests=counts["numQueuedContextRequests"],
        sum_prefill_tokens=counts["numQueuedCtxTokens"],
        num_decode_requests=counts["numPausedRequests"] + counts["numQueuedGenRequests"],
        sum_decode_kv_tokens=counts["numPausedKvTokens"] + counts["numQueuedGenKvTokens"],
    )
    rank = row.get(_RANK)
    return RankPass(
        dp_rank=0 if rank is None else _count(_RANK, rank),
        metrics=ForwardPassMetrics(
            wall_time=_milliseconds(row.get(_LATENCY)) / 1000,
            scheduled_requests=scheduled,
            queued_requests=queued,
        ),
    )


def _count(key: str, value: object) -> int:
    if type(value) is int and value >= 0:
        return value
    raise EngineError(f"{key}={value!r} in iteration statistics: expected an integer of at least 0")


def _milliseconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        milliseconds = float(value) if abs(value) < 1e300 else math.inf
        if math.isfinite(milliseconds) and milliseconds >= 0:
            return milliseconds
    raise EngineError(f"{_LATENCY}={value!r} in iteration statistics: expected milliseconds of at least 0")
