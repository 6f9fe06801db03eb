"""What AISimulate gets of a trace."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forwardpass.analyze.iterations import MAX_SUM, IterationExport, LeftOut, message_fault
from forwardpass.analyze.ranks import ranks_of_workers
from forwardpass.testing.traces import decode_pass, prefill_pass, trace_line, trace_record
from forwardpass.trace.record import TraceRecord, decode_line
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

START = 1_796_042_065_000


def export(records: list[TraceRecord]) -> tuple[list[list[dict[str, Any]]], dict[LeftOut, int]]:
    """Return the iterations of records and what was left out."""
    out = IterationExport(ranks_of_workers(records))
    iterations = list(out.iterations(records))
    assert out.exported == len(iterations)
    return iterations, out.left_out


def test_iterations_of_two_ranks() -> None:
    """DERIVE-12: Each iteration has one message per rank, in order of ranks, with every field of the wire."""
    records = [
        trace_record(counter, decode_pass(), dp_rank=rank, observed_at_unix_ms=START + 20 * counter + rank)
        for counter in range(3)
        for rank in range(2)
    ]
    iterations, left_out = export(records)

    assert [[message["dp_rank"] for message in each] for each in iterations] == [[0, 1]] * 3
    assert iterations[2][1] == msgspec.to_builtins(records[5].metrics)
    assert left_out == {}


def test_unknown_fields_go_along() -> None:
    """DERIVE-12: Fields that only a message's writer knows stay in place, missing ones are filled in."""
    line = trace_line(0, prefill_pass())
    line = line.replace(b'"num_prefill_requests":1,', b'"extend_lengths":[100],"num_prefill_requests":1,', 1)
    line = line.replace(b'"var_decode_kv_tokens":0.0},"queued', b'"note":1},"extra":{"a":2},"queued', 1)
    ((message,),), _ = export([decode_line(line)])

    assert message["scheduled_requests"]["extend_lengths"] == [100]
    assert message["scheduled_requests"]["var_decode_kv_tokens"] == 0.0
    assert (message["scheduled_requests"]["note"], message["extra"]) == (1, {"a": 2})


@pytest.mark.parametrize(
    ("scheduled", "queued", "wall_time", "reason"),
    [
        (prefill_pass(1, 0, 64), QueuedRequestMetrics(), 0.1, None),  # fully cached is legal
        (decode_pass(1, MAX_SUM), QueuedRequestMetrics(), 0.1, None),
        (decode_pass(1, 0), QueuedRequestMetrics(), 0.1, None),
        (ScheduledRequestMetrics(), QueuedRequestMetrics(3, 30), 0.0, LeftOut.HEARTBEAT),
        (prefill_pass(0, 5), QueuedRequestMetrics(), 0.1, LeftOut.TOKENS_WITHOUT_REQUESTS),
        (prefill_pass(0, 0, 5), QueuedRequestMetrics(), 0.1, LeftOut.TOKENS_WITHOUT_REQUESTS),
        (decode_pass(0, 5), QueuedRequestMetrics(), 0.1, LeftOut.TOKENS_WITHOUT_REQUESTS),
        (decode_pass(), QueuedRequestMetrics(0, 5), 0.1, LeftOut.TOKENS_WITHOUT_REQUESTS),
        (decode_pass(), QueuedRequestMetrics(0, 0, 0.0, 0, 5), 0.1, LeftOut.TOKENS_WITHOUT_REQUESTS),
        (decode_pass(1, MAX_SUM + 1), QueuedRequestMetrics(), 0.1, LeftOut.TOO_LARGE),
        (decode_pass(1, -1), QueuedRequestMetrics(), 0.1, LeftOut.NOT_FINITE),
        (decode_pass(), QueuedRequestMetrics(var_prefill_length=float("nan")), 0.1, LeftOut.NOT_FINITE),
        (decode_pass(), QueuedRequestMetrics(), float("inf"), LeftOut.NOT_FINITE),
    ],
)
def test_what_would_be_refused(
    scheduled: ScheduledRequestMetrics,
    queued: QueuedRequestMetrics,
    wall_time: float,
    reason: LeftOut | None,
) -> None:
    """DERIVE-12: A message that would make the whole call fail is told by its reason."""
    message = ForwardPassMetrics(wall_time=wall_time, scheduled_requests=scheduled, queued_requests=queued)

    assert message_fault(message) is reason


def test_iterations_that_teach_nothing() -> None:
    """DERIVE-12: Without one of its ranks, without requests or without time an iteration is left out."""
    full = [trace_record(0, decode_pass(), dp_rank=rank, observed_at_unix_ms=START) for rank in (0, 1)]
    alone = trace_record(1, decode_pass(), dp_rank=0, observed_at_unix_ms=START + 5_000)
    dummies = [
        trace_record(2, decode_pass(0, 0), dp_rank=rank, observed_at_unix_ms=START + 10_000)
        for rank in (0, 1)
    ]
    untimed = [
        trace_record(3, decode_pass(), dp_rank=rank, wall_time=0.0, observed_at_unix_ms=START + 15_000)
        for rank in (0, 1)
    ]
    iterations, left_out = export([*full, alone, *dummies, *untimed])

    assert len(iterations) == 1
    assert left_out == {LeftOut.RANK_MISSING: 1, LeftOut.EMPTY: 1, LeftOut.UNTIMED: 1}


def test_a_dummy_beside_a_busy_rank_stays() -> None:
    """DERIVE-12: A rank that only kept step is part of the iteration of those that had work."""
    records = [
        trace_record(0, decode_pass(), dp_rank=0, observed_at_unix_ms=START),
        trace_record(0, decode_pass(0, 0), dp_rank=1, observed_at_unix_ms=START),
    ]
    iterations, left_out = export(records)

    assert [len(each) for each in iterations] == [2]
    assert left_out == {}
