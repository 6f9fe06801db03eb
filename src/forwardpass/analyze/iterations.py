"""Knows the form in which AISimulate (AIConfigurator) takes observed passes, and which it would refuse.

One list of iterations, each a list with one message for each attention-data-parallel rank, as maps with the
names of the wire. It refuses a whole call for one message with tokens but no requests, so those are left out
here and counted. Heartbeats are no passes; an iteration without work or time is learned by nobody.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from forwardpass.analyze.kinds import PassKind, kind_of
from forwardpass.analyze.ranks import DEFAULT_MAX_SKEW_MS, RankGroup, WorkerName, group_ranks
from forwardpass.errors import TraceRecordError
from forwardpass.trace.record import TraceRecord
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["MAX_SUM", "IterationExport", "LeftOut", "message_fault"]

MAX_SUM = 2**32 - 1
"""Largest sum that the models downstream can read."""


_WITHOUT_REQUESTS = (PassKind.IDLE, PassKind.DP_DUMMY, PassKind.HEARTBEAT)


class LeftOut(StrEnum):
    """Why a message or an iteration is not exported."""

    HEARTBEAT = "heartbeat"
    NOT_FINITE = "not_finite"
    """A number that is negative, infinite or none."""
    TOKENS_WITHOUT_REQUESTS = "tokens_without_requests"
    TOO_LARGE = "too_large"
    """A sum of 2**32 or more."""
    RANK_MISSING = "rank_missing"
    """An iteration in which a rank of the worker has no message."""
    EMPTY = "empty"
    """An iteration in which no rank had a request."""
    UNTIMED = "untimed"
    """An iteration in which no rank's pass took time: the slowest is what is learned."""


def message_fault(metrics: ForwardPassMetrics) -> LeftOut | None:
    """Return why a message cannot be exported, or ``None``."""
    if kind_of(metrics) is PassKind.HEARTBEAT:
        return LeftOut.HEARTBEAT
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
    numbers = [metrics.wall_time, metrics.dp_rank, metrics.counter_id]
    numbers += [*msgspec.structs.astuple(scheduled), *msgspec.structs.astuple(queued)]
    if not all(0 <= number < math.inf for number in numbers):
        return LeftOut.NOT_FINITE
    pairs = (
        (scheduled.num_prefill_requests, scheduled.sum_prefill_tokens + scheduled.sum_prefill_kv_tokens),
        (scheduled.num_decode_requests, scheduled.sum_decode_kv_tokens),
        (queued.num_prefill_requests, queued.sum_prefill_tokens),
        (queued.num_decode_requests, queued.sum_decode_kv_tokens),
    )
    if any(tokens and not requests for requests, tokens in pairs):
        return LeftOut.TOKENS_WITHOUT_REQUESTS
    integers = (number for number in numbers[3:] if isinstance(number, int))
    return LeftOut.TOO_LARGE if any(number > MAX_SUM for number in integers) else None


class IterationExport:
    """Turns rows into iterations, and counts what is left out.

    ``ranks`` says which ranks each worker has (:func:`~forwardpass.analyze.ranks.ranks_of_workers` reads it
    off the same rows); a worker that is not in it has those that were seen so far.
    """

    def __init__(
        self,
        ranks: Mapping[WorkerName, frozenset[int]] | None = None,
        *,
        max_skew_ms: int = DEFAULT_MAX_SKEW_MS,
    ) -> None:
        self._ranks = ranks
        self._max_skew_ms = max_skew_ms
        self.exported = 0
        """Iterations so far."""
        self.left_out: dict[LeftOut, int] = {}
        """Messages and iterations that were not exported, by reason."""

    def iterations(self, records: Iterable[TraceRecord]) -> Iterator[list[dict[str, Any]]]:
        """Yield one iteration after the other; ``records`` as :func:`~.ranks.group_ranks` takes them."""
        groups = group_ranks(self._usable(records), ranks=self._ranks, max_skew_ms=self._max_skew_ms)
        for group in groups:
            reason = _group_fault(group)
            if reason is not None:
                self._leave_out(reason)
                continue
            self.exported += 1
            yield [_document(row) for row in group.rows]

    def _usable(self, records: Iterable[TraceRecord]) -> Iterator[TraceRecord]:
        for record in records:
            reason = message_fault(record.metrics)
            if reason is None:
                yield record
            else:
                self._leave_out(reason)

    def _leave_out(self, reason: LeftOut) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1


def _group_fault(group: RankGroup) -> LeftOut | None:
    if group.missing:
        return LeftOut.RANK_MISSING
    if not any(kind_of(row.metrics) not in _WITHOUT_REQUESTS for row in group.rows):
        return LeftOut.EMPTY
    return None if any(row.metrics.wall_time > 0 for row in group.rows) else LeftOut.UNTIMED


def _document(record: TraceRecord) -> dict[str, Any]:
    """Return a message with every field of the schema, and those that only its writer knows."""
    document: dict[str, Any] = msgspec.to_builtins(record.metrics)
    try:
        written = record.fpm
    except TraceRecordError:  # a number in an unknown field that no float can hold
        return document
    for name, value in written.items():
        known = document.get(name)
        if isinstance(known, dict) and isinstance(value, dict):
            document[name] = {**known, **value}
        elif name not in document:
            document[name] = value
    return document
