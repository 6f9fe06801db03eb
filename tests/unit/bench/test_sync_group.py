"""A rank's part in a run, over a link that is only memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engines import capacity

from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.group import Group, GroupResult, StageVerdict, open_group
from forwardpass.errors import BenchError, ConfigError, OutOfLockstep, PeerAborted, SyncTimeout
from forwardpass.testing.clock import ManualClock

DIGEST = "a" * 64
RUN_ID = "0f" * 16


class ScriptedLink:
    """Gives what ``answer`` returns for each message that is sent; time passes where there is nothing."""

    def __init__(self, clock: ManualClock, answer: Callable[[int, Any], Sequence[tuple[int, Any]]]) -> None:
        self.clock = clock
        self.answer = answer
        self.queue: deque[tuple[int, bytes]] = deque()
        self.sent: list[tuple[int, str]] = []
        self.unreachable: set[int] = set()
        self.lingered: list[float] = []

    def send(self, rank: int, payload: bytes) -> bool:
        if rank in self.unreachable:
            return False
        message = m.read_from_zero(payload) if rank else m.read_from_follower(payload)
        self.sent.append((rank, m.type_of(message)))
        self.queue += [(sender, m.encode(reply)) for sender, reply in self.answer(rank, message)]
        return True

    def receive(self, seconds: float) -> tuple[bytes, Sequence[bytes]] | None:
        if self.queue:
            sender, payload = self.queue.popleft()
            return str(sender).encode(), [payload]
        self.clock.advance(seconds)
        return None

    def close(self, linger_seconds: float) -> None:
        self.lingered.append(linger_seconds)


def silent(rank: int, message: Any) -> Sequence[tuple[int, Any]]:
    return []


def group(rank: int, size: int, answer: Any = silent) -> tuple[Group, ScriptedLink]:
    clock = ManualClock()
    link = ScriptedLink(clock, answer)
    return Group(rank, size, link, run_id=None if rank else RUN_ID, clock=clock), link


def never() -> bool:
    return False


def test_a_rank_alone_gets_the_same_structures() -> None:
    """SYNC-27: One rank needs no link: its capacity, its results and its wish to stop are the group's."""
    with open_group(0, 1, "nowhere.invalid", 1) as alone:
        mine = capacity(grid_invariants_digest=DIGEST)

        assert alone.agree_capacity(mine) == mine
        alone.agree_grid(DIGEST, 3)
        assert not alone.boundary(1, never)
        assert alone.go(1, DIGEST, {"n": 1}) == alone.run_id
        assert len(alone.run_id or "") == 32
        assert alone.exchange(1, DIGEST, [{"wall_time": 1.0}], lambda: True) == GroupResult(
            (m.RankResult(0, ({"wall_time": 1.0},)),), True
        )
        assert alone.stage(1, 8, m.StagePhase.BUILDING) == StageVerdict(False, None)
        assert alone.stage(2, 8, m.StagePhase.DONE, False) == StageVerdict(True, False)
        alone.cleanup()


def test_a_rank_alone_fails_for_the_same_reasons() -> None:
    """SYNC-27: A pass that does not fit its point is an error with one rank too."""
    with pytest.raises(OutOfLockstep, match=r"rank 0: .*255 tokens"):
        Group(0, 1).go(1, DIGEST, None, "255 tokens")


def test_after_a_failure_every_call_fails_alike() -> None:
    """SYNC-06, SYNC-07: A missing rank is named; the group stays failed, and tells the others only once."""
    zero, link = group(0, 3)

    with pytest.raises(SyncTimeout) as caught:
        zero.agree_grid(DIGEST, 3)
    with pytest.raises(SyncTimeout) as again:
        zero.boundary(1, never)
    zero.abort("too late")

    assert caught.value.missing == (1, 2)
    assert again.value is caught.value
    assert link.sent == [(1, "error"), (2, "error")]


@pytest.mark.parametrize(("rank", "sent"), [(0, [(1, "error"), (2, "error")]), (2, [(0, "abort")])])
def test_an_abort_between_rounds_is_told(rank: int, sent: list[tuple[int, str]]) -> None:
    """SYNC-06: Rank 0 tells all that it gives up, another tells rank 0; once, and then takes no part."""
    one, link = group(rank, 3)

    one.abort("the engine\nbroke")
    one.abort("again")

    assert link.sent == sent
    with pytest.raises(PeerAborted) as caught:
        one.boundary(1, never)
    assert (caught.value.rank, caught.value.reason) == (rank, "the engine?broke")


@pytest.mark.parametrize(
    "call",
    [
        lambda one: one.exchange(4, DIGEST, [{"wall_time": float("nan")}], never),
        lambda one: one.go(4, DIGEST, {"sum_prefill_tokens": object()}),
    ],
)
def test_what_is_no_json_ends_the_run(call: Callable[[Group], Any]) -> None:
    """SYNC-23: What cannot be sent unchanged is an error, of which the others are told."""
    one, link = group(1, 2)

    with pytest.raises(BenchError, match="rank 1 has of point 4"):
        call(one)

    assert link.sent == [(0, "abort")]


def test_a_gone_rank_ends_the_round_at_once() -> None:
    """SYNC-07: Rank 0 does not wait for a rank to which nothing can be sent."""
    zero, link = group(0, 3)
    link.unreachable.add(2)
    for rank in (1, 2):
        link.queue.append((rank, m.encode(m.CleanupReady(benchmark_id=0, dp_rank=rank))))

    with pytest.raises(PeerAborted) as caught:
        zero.cleanup()

    assert caught.value.rank == 2
    assert link.sent == [(1, "cleanup_release"), (1, "error")]


def obliging(rank: int, message: Any) -> Sequence[tuple[int, Any]]:
    """Answer a rank's clean-up and points as rank 0 does."""
    answers: dict[type[Any], Callable[[Any], Any]] = {
        m.CleanupReady: lambda one: m.CleanupRelease(benchmark_id=0),
        m.CleanupAck: lambda one: m.CleanupComplete(benchmark_id=0),
        m.Ready: lambda one: m.Prepare(benchmark_id=one.benchmark_id),
        m.Prepared: lambda one: m.Arm(benchmark_id=one.benchmark_id),
        m.Armed: lambda one: m.Go(
            benchmark_id=one.benchmark_id, run_id=(RUN_ID if one.benchmark_id == 1 else "9" * 32)
        ),
    }
    return [(0, answers[type(message)](message))] if type(message) in answers else []


def test_the_run_id_is_adopted_and_stays() -> None:
    """SYNC-22: A rank takes the run's id from the first point, and refuses another later."""
    one, link = group(1, 2, obliging)
    assert one.run_id is None

    assert one.go(1, DIGEST, None) == one.run_id == RUN_ID
    with pytest.raises(OutOfLockstep) as caught:
        one.go(2, DIGEST, None)

    assert (caught.value.expected, caught.value.actual) == (f"run_id {RUN_ID}", f"run_id {'9' * 32}"[7:])
    assert link.sent[-1] == (0, "abort")


def test_how_long_a_socket_lingers() -> None:
    """SYNC-02: What was sent last has 11 s to leave after the clean-up and after a failure, else nothing."""
    lingered = []
    for end in (lambda one: None, Group.cleanup, lambda one: one.abort("over")):
        one, link = group(1, 2, obliging)
        end(one)
        one.close()
        lingered += link.lingered

    assert lingered == [0.0, 11.0, 11.0]


@pytest.mark.parametrize(("rank", "size"), [(1, 1), (-1, 2), (0, 2), (0, 0)])
def test_a_group_that_cannot_be(rank: int, size: int) -> None:
    """SYNC-02: A rank that is not of the group, and others without a link to them, are wrong use."""
    with pytest.raises(ConfigError):
        Group(rank, size)
