"""Ranks in a network that is simulated: messages wait until they are delivered, lost, or delivered twice, and
ranks die, all by choice; time passes only when told to.

Each rank works through the same list of rounds with the real state machines, as a group does: the next begins
when one is over, and none after a failure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.sync import decisions
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.rounds import Coordinator, Follower, Legs, Own, RoundKind, RoundSpec, Sends
from forwardpass.errors import SyncError

RUN_ID = "0123456789abcdef" * 2
DIGEST = "ab" * 32
LEGS = Legs(leg=10.0, grace=1.0, first=300.0)
LONGEST_ROUND = {
    RoundKind.CAPACITY: 310.0,
    RoundKind.STAGE: 10.0,
    RoundKind.GRID: 20.0,
    RoundKind.CLEANUP: 21.0,
    RoundKind.GO: 31.0,
    RoundKind.RESULT: 31.0,
    RoundKind.BOUNDARY: 31.0,
}
"""Seconds after which a rank has ended a round that it began, whatever happens."""

Channel = tuple[int, int]


class Step(NamedTuple):
    """A round of the list: what is agreed on, and what each rank reports."""

    spec: RoundSpec[Any, Any]
    report: Callable[[int], Any]


def capacity(rank: int) -> CapacityEnvelope:
    """Return what a rank can hold: each is short of something else."""
    return CapacityEnvelope(1000 + rank, 500 - rank, 16, 100 + rank % 2, 90 - rank, DIGEST, rank != 1)


def one_step(kind: RoundKind, benchmark_id: int = 0) -> Step:
    """Return a round that succeeds if nothing goes wrong."""
    digest = f"{benchmark_id:064x}"
    named: dict[str, Any] = {"benchmark_id": benchmark_id}
    reports: dict[RoundKind, tuple[RoundSpec[Any, Any], Callable[[int], Any]]] = {
        RoundKind.CAPACITY: (
            decisions.CAPACITY,
            lambda rank: m.Capacity(**named, dp_rank=rank, capacity=capacity(rank)),
        ),
        RoundKind.GRID: (
            decisions.GRID,
            lambda rank: m.Grid(
                **named, dp_rank=rank, grid_digest=DIGEST, expected_points=2, missing_phases=()
            ),
        ),
        RoundKind.GO: (
            decisions.GO,
            lambda rank: m.Ready(
                **named, dp_rank=rank, point_digest=digest, output_summary={"n": 3}, validation_error=None
            ),
        ),
        RoundKind.RESULT: (
            decisions.RESULT,
            lambda rank: m.Result(
                **named,
                dp_rank=rank,
                point_digest=digest,
                fpms=({"wall_time": 0.5 + rank},),
                stop_requested=False,
            ),
        ),
        RoundKind.BOUNDARY: (
            decisions.BOUNDARY,
            lambda rank: m.Boundary(**named, dp_rank=rank, stop_requested=False),
        ),
        RoundKind.STAGE: (
            decisions.STAGE,
            lambda rank: m.StageRound(
                **named, dp_rank=rank, seq=7, batch=4, phase=m.StagePhase.DONE, ok=rank != 2
            ),
        ),
        RoundKind.CLEANUP: (decisions.CLEANUP, lambda rank: m.CleanupReady(**named, dp_rank=rank)),
    }
    return Step(*reports[kind])


def whole_run(points: int = 2) -> list[Step]:
    """Return the rounds of a short run."""
    steps = [one_step(RoundKind.CAPACITY), one_step(RoundKind.GRID), one_step(RoundKind.STAGE)]
    for point in range(1, points + 1):
        steps += [one_step(kind, point) for kind in (RoundKind.BOUNDARY, RoundKind.GO, RoundKind.RESULT)]
    return [*steps, one_step(RoundKind.CLEANUP)]


class Rank:
    """One rank: where it is in the list, what was decided, why it failed."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.dead = False
        self.stops = False
        self.run_id = None if rank else RUN_ID
        self.decisions: list[Any] = []
        self.failure: SyncError | None = None
        self.round: Coordinator[Any, Any] | Follower[Any, Any] | None = None
        self.began = 0.0
        self.longest = 0.0
        """Seconds by which a round took longer than any may; at most 0."""

    @property
    def busy(self) -> bool:
        """Whether it waits in a round."""
        return not self.dead and self.round is not None

    @property
    def kind(self) -> RoundKind:
        """What it agrees on now, or was about to."""
        return self.network.steps[min(len(self.decisions), len(self.network.steps) - 1)].spec.kind

    def begin(self) -> None:
        """Begin the next round, if there is one."""
        if self.dead or self.failure or self.round or len(self.decisions) == len(self.network.steps):
            return
        spec, report = self.network.steps[len(self.decisions)]
        side = Follower if self.rank else Coordinator
        own = Own(self.rank, self.network.size, self.run_id)
        self.round = side(spec, report(self.rank), own, stop=lambda: self.stops, legs=LEGS)
        self.began = self.network.now
        self._done(self.round.start(self.network.now))

    def take(self, sender: int, payload: bytes) -> None:
        """Get a message out of the queue."""
        assert self.round is not None
        self._done(self.round.receive(str(sender).encode(), [payload], self.network.now))

    def expire(self) -> None:
        """Give up if it is time."""
        if self.busy and self.round is not None and self.round.deadline <= self.network.now:
            self._done(self.round.expire())

    def _done(self, sends: Sends) -> None:
        self.network.send(self.rank, sends)
        going = self.round
        if going is None or not going.over:
            return
        self.round = None
        self.longest = max(self.longest, self.network.now - self.began - LONGEST_ROUND[going.spec.kind])
        self.failure = going.failure
        if going.failure is None:
            self.decisions.append(going.decision)
            self.run_id = getattr(going.decision, "run_id", self.run_id)


class Network:
    """All ranks, and what is on the way between them."""

    def __init__(self, size: int, steps: list[Step]) -> None:
        self.size = size
        self.steps = steps
        self.now = 1000.0
        self.ranks = [Rank(self, rank) for rank in range(size)]
        self.queues: dict[Channel, deque[bytes]] = {}
        for rank in range(1, size):
            self.queues[0, rank] = deque()
            self.queues[rank, 0] = deque()

    def send(self, sender: int, sends: Sends) -> None:
        """Put messages on their way."""
        for ranks, payload in sends:
            for rank in ranks:
                self.queues[sender, rank].append(payload)

    def waiting(self) -> list[Channel]:
        """Return where something can be delivered: a rank in no round does not look."""
        return [channel for channel, queue in self.queues.items() if queue and self.ranks[channel[1]].busy]

    def deliver(self, channel: Channel, index: int = 0) -> None:
        """Deliver the first message of a channel, or one that overtakes others."""
        queue = self.queues[channel]
        payload = queue[index]
        del queue[index]
        self.ranks[channel[1]].take(channel[0], payload)

    def advance(self, seconds: float) -> None:
        """Let time pass, stopping at each deadline on the way."""
        end = self.now + seconds
        while True:
            due = [one.round.deadline for one in self.ranks if one.busy and one.round is not None]
            next_one = min([end, *due])
            self.now = max(self.now, next_one)
            for one in self.ranks:
                one.expire()
            if next_one >= end:
                return

    def finish(self) -> None:
        """Let everything go its way: begin, deliver in order, and let time pass where nothing else can."""
        for _ in range(10_000):
            for one in self.ranks:
                one.begin()
            if self.waiting():
                self.deliver(self.waiting()[0])
            elif any(one.busy for one in self.ranks):
                due = [one.round.deadline for one in self.ranks if one.busy and one.round is not None]
                self.advance(max(0.0, min(due) - self.now))
            else:
                return
        raise AssertionError("the ranks never came to an end")

    def check_decisions(self) -> None:
        """No two ranks have decided differently, and none is more than one round ahead."""
        for index, _ in enumerate(self.steps):
            seen = [_plain(one.decisions[index]) for one in self.ranks if len(one.decisions) > index]
            assert all(other == seen[0] for other in seen), seen
        counts = [len(one.decisions) for one in self.ranks if not one.dead]
        assert max(counts, default=0) - min(counts, default=0) <= 1

    def check_end(self, *, faults: bool) -> None:
        """All alive ranks have finished the list, or failed; those that failed say in what and why."""
        self.check_decisions()
        alive = [one for one in self.ranks if not one.dead]
        last = len(self.steps)
        for one in alive:
            assert one.longest <= 0, (one.rank, one.longest)
            assert one.failure is not None or len(one.decisions) == last
            if one.failure is not None:
                assert one.failure.round in str(one.failure)
                assert "rank" in str(one.failure)
        if not faults:
            assert all(one.failure is None for one in alive)
        if any(one.failure for one in alive):
            # whoever finished did so in the very last answer, which says nothing to the sender
            assert all(one.failure or len(one.decisions) == last for one in alive)
            shortest = min(len(one.decisions) for one in alive if one.failure)
            assert shortest >= last - 1 or all(one.failure for one in alive)


def _plain(decision: Any) -> bytes:
    return m.encode(decision)
