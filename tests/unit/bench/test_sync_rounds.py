"""One round from either side: what is refused, whom the error names, how long one waits."""

from __future__ import annotations

from typing import Any

import pytest
from engines import capacity

from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.decisions import BOUNDARY, CAPACITY, CLEANUP, GO, GRID, RESULT, SPECS, STAGE
from forwardpass.bench.sync.rounds import Coordinator, Follower, Legs, Own, RoundSpec
from forwardpass.errors import OutOfLockstep, PeerAborted, SyncTimeout

RUN_ID = "0f" * 16
LEGS = Legs(leg=10.0, grace=1.0, first=300.0)


def ready(rank: int, benchmark_id: int = 7) -> m.Ready:
    return m.Ready(
        benchmark_id=benchmark_id, dp_rank=rank, point_digest="d", output_summary=None, validation_error=None
    )


def coordinator(size: int = 3) -> Coordinator[Any, Any]:
    """Return rank 0 waiting for ``ready`` at second 100."""
    going: Coordinator[Any, Any] = Coordinator(GO, ready(0), Own(0, size, RUN_ID), legs=LEGS)
    assert going.start(100.0) == ()
    return going


def follower(**more: Any) -> Follower[Any, Any]:
    """Return rank 1, which has reported at second 100."""
    going: Follower[Any, Any] = Follower(GO, ready(1), Own(1, 3, None), legs=LEGS, **more)
    going.start(100.0)
    return going


def told(sends: Any) -> list[tuple[tuple[int, ...], str]]:
    read = {True: m.read_from_follower, False: m.read_from_zero}
    return [(ranks, m.type_of(read[ranks == (0,)](payload))) for ranks, payload in sends]


@pytest.mark.parametrize(
    ("identity", "frames", "rank", "expected", "actual"),
    [
        (b"1", [m.encode(ready(1, 8))], 1, "'ready' for point 7", "'ready' for point 8"),
        (
            b"1",
            [m.encode(m.Prepared(benchmark_id=7, dp_rank=1))],
            1,
            "'ready' for point 7",
            "'prepared' for point 7",
        ),
        (b"1", [m.encode(ready(2))], 1, "dp_rank 1", "dp_rank 2"),
        (b"1", [m.encode(ready(1)), b""], 1, "one frame", "2 frames"),
        (b"1", [], 1, "one frame", "0 frames"),
        (b"1", [b"{}"], 1, "'ready' for point 7", "Object missing required field `type`"),
        (b"1", [b"\xff"], 1, "'ready' for point 7", "JSON is malformed"),
        (b"0", [m.encode(ready(0))], -1, "a rank from 1 to 2", "b'0'"),
        (b"3", [m.encode(ready(3))], -1, "a rank from 1 to 2", "b'3'"),
        (b"01", [m.encode(ready(1))], -1, "a rank from 1 to 2", "b'01'"),
        (b"\x00\x1b[2J", [m.encode(ready(1))], -1, "a rank from 1 to 2", "b'\\x00\\x1b[2J'"),
    ],
)
def test_rank_0_refuses_what_is_not_due(
    identity: bytes, frames: list[bytes], rank: int, expected: str, actual: str
) -> None:
    """SYNC-02, SYNC-04: Another type, point, rank or sender than is due ends the round for all, and the error
    names rank, round, what was expected and what was found.
    """
    going = coordinator()

    sends = going.receive(identity, frames, 101.0)

    assert told(sends) == [((1, 2), "error")]
    error = going.failure
    assert isinstance(error, OutOfLockstep)
    assert (error.round, error.rank, error.expected) == ("go", rank, expected)
    assert error.actual.startswith(actual)
    assert str(error).isprintable()


def test_rank_0_refuses_a_second_report() -> None:
    """SYNC-04: Each rank reports once in a round."""
    going = coordinator()
    assert going.receive(b"1", [m.encode(ready(1))], 101.0) == ()

    assert told(going.receive(b"1", [m.encode(ready(1))], 101.0)) == [((1, 2), "error")]
    assert isinstance(going.failure, OutOfLockstep)
    assert going.failure.rank == 1


@pytest.mark.parametrize(
    ("message", "actual"),
    [
        (m.Prepare(benchmark_id=8), "'prepare' for point 8"),
        (m.Arm(benchmark_id=7), "'arm' for point 7"),
        (m.CapacityCommit(benchmark_id=0), "'capacity_commit' for point 0"),
        (m.Go(benchmark_id=7, run_id=RUN_ID), "'go' for point 7"),
    ],
)
def test_another_rank_refuses_what_is_not_due(message: m.FromZero, actual: str) -> None:
    """SYNC-04, SYNC-06: A rank that gets another message than is due gives up and tells rank 0."""
    going = follower()

    assert told(going.receive(b"0", [m.encode(message)], 101.0)) == [((0,), "abort")]
    assert isinstance(going.failure, OutOfLockstep)
    assert (going.failure.rank, going.failure.round) == (0, "go")
    assert going.failure.expected == "'prepare' for point 7"
    assert actual.replace(" for point 0", "") in going.failure.actual


@pytest.mark.parametrize("frames", [[], [b"x"], [b"", b""], [m.encode(ready(2))]])
def test_another_rank_refuses_what_is_no_message(frames: list[bytes]) -> None:
    """SYNC-04: Bytes that are no message of rank 0 end the round."""
    going = follower()

    assert told(going.receive(b"0", frames, 101.0)) == [((0,), "abort")]
    assert isinstance(going.failure, OutOfLockstep)


def test_an_abort_is_told_to_all() -> None:
    """SYNC-06, SYNC-07: When a rank gives up, rank 0 tells all others who did, why, and who was not heard."""
    zero, one = coordinator(), follower()

    sends = zero.receive(b"2", [m.encode(m.Abort(dp_rank=2, error="out of\x1b blocks"))], 101.0)
    answers = one.receive(b"0", [sends[0].payload], 101.0)

    assert isinstance(zero.failure, PeerAborted)
    assert (zero.failure.rank, zero.failure.reason) == (2, "out of? blocks")
    assert zero.failure.missing == (1,)
    assert isinstance(one.failure, PeerAborted)
    assert one.failure.rank == 0
    assert "rank 2 aborted: out of? blocks" in str(one.failure)
    assert "not heard yet: rank 1" in str(one.failure)
    assert answers == ()


def test_a_deadline_names_who_is_missing() -> None:
    """SYNC-07: Where a rank is not heard, rank 0 says which, in what round, and tells the others."""
    going = coordinator(4)
    going.receive(b"2", [m.encode(ready(2))], 105.0)

    assert going.deadline == 110.0
    assert told(going.expire()) == [((1, 2, 3), "error")]
    assert isinstance(going.failure, SyncTimeout)
    assert (going.failure.missing, going.failure.awaited, going.failure.seconds) == ((1, 3), "ready", 10.0)
    assert str(going.failure) == "agreement on go: no 'ready' from ranks 1, 3 within 10 s"


def test_a_rank_that_cannot_be_sent_to_is_named() -> None:
    """SYNC-07: A rank whose connection is gone ends the round at once."""
    going = coordinator()

    assert told(going.gone(2)) == [((1,), "error")]
    assert isinstance(going.failure, PeerAborted)
    assert going.failure.rank == 2
    assert going.gone(1) == ()


def report_of(spec: RoundSpec[Any, Any], rank: int) -> Any:
    named = {"benchmark_id": 0, "dp_rank": rank}
    return {
        CAPACITY: lambda: m.Capacity(**named, capacity=capacity(grid_invariants_digest="a" * 64)),
        GRID: lambda: m.Grid(**named, grid_digest="d", expected_points=1, missing_phases=()),
        GO: lambda: ready(rank, 0),
        RESULT: lambda: m.Result(**named, point_digest="d", fpms=(), stop_requested=False),
        BOUNDARY: lambda: m.Boundary(**named, stop_requested=False),
        STAGE: lambda: m.StageRound(**named, seq=1, batch=1, phase=m.StagePhase.NONE, ok=None),
        CLEANUP: lambda: m.CleanupReady(**named),
    }[spec]()


WAITS = {
    "capacity": ([300, 10], [300, 10]),
    "grid": ([10, 10], [10, 10]),
    "go": ([10, 8, 6], [10, 10, 11]),
    "result": ([10, 10, 10], [10, 10, 11]),
    "boundary": ([10, 10, 10], [10, 10, 11]),
    "stage": ([10], [10]),
    "cleanup": ([10, 10], [10, 11]),
}
"""Seconds that rank 0, and the others, wait for each message, where each leg takes two."""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.kind))
def test_how_long_each_side_waits(spec: RoundSpec[Any, Any]) -> None:
    """SYNC-05: Ten seconds a leg, 300 for the first of all, one more for others at the last answer of a
    point, a boundary and the clean-up; all legs before a point together have ten.
    """
    zero: Coordinator[Any, Any] = Coordinator(spec, report_of(spec, 0), Own(0, 2, RUN_ID), legs=LEGS)
    one: Follower[Any, Any] = Follower(spec, report_of(spec, 1), Own(1, 2, None), legs=LEGS)
    now = 100.0
    zero.start(now)
    sends = one.start(now)
    waits: tuple[list[float], list[float]] = ([], [])
    while not one.over:
        waits[0].append(zero.deadline - now)
        waits[1].append(one.deadline - now)
        now += 2.0
        for answer in zero.receive(b"1", [sends[0].payload], now):
            sends = one.receive(b"0", [answer.payload], now)

    assert waits == WAITS[spec.kind]
    assert zero.over
    assert zero.decision == one.decision


@pytest.mark.parametrize(
    ("zero_wants", "one_wants", "stops"),
    [
        ([False, False], [False], False),
        ([False, True], [False], True),
        ([False, False], [True], True),
    ],
)
def test_a_late_wish_to_stop_counts(zero_wants: list[bool], one_wants: list[bool], stops: bool) -> None:
    """SYNC-24: Who wants to stop only after it has reported is asked again: the others with the first answer,
    rank 0 right before the decision.
    """
    zero: Coordinator[Any, Any] = Coordinator(
        BOUNDARY, report_of(BOUNDARY, 0), Own(0, 2, RUN_ID), stop=lambda: zero_wants[-1], legs=LEGS
    )
    one: Follower[Any, Any] = Follower(
        BOUNDARY, report_of(BOUNDARY, 1), Own(1, 2, None), stop=lambda: one_wants[-1], legs=LEGS
    )
    zero.start(0.0)
    sends = one.start(0.0)
    while not one.over:
        for answer in zero.receive(b"1", [sends[0].payload], 0.0):
            sends = one.receive(b"0", [answer.payload], 0.0)

    assert zero.decision == one.decision == m.BoundaryDecision(benchmark_id=0, stop_requested=stops)


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: str(spec.kind))
def test_a_rank_alone_has_decided_at_once(spec: RoundSpec[Any, Any]) -> None:
    """SYNC-27: One rank goes through the same rounds, without a message."""
    zero: Coordinator[Any, Any] = Coordinator(spec, report_of(spec, 0), Own(0, 1, RUN_ID), legs=LEGS)

    assert zero.start(0.0) == ()
    assert zero.over
    assert zero.decision is not None
