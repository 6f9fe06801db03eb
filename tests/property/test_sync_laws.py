"""Laws of agreement: whatever is lost, doubled, delayed or killed, ranks decide alike or all give up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from sync_network import Network, one_step, whole_run

from forwardpass.bench.sync.rounds import RoundKind
from forwardpass.errors import OutOfLockstep, PeerAborted, SyncTimeout

KINDS = [kind for kind in RoundKind if kind is not RoundKind.NONE]
FAULTS = ("lose", "double", "kill 0", "kill 1", "kill 2", "overtake")


class Ranks(RuleBasedStateMachine):
    """Two to five ranks work through a run, while anything happens to their messages and to them."""

    @initialize(size=st.integers(2, 5))
    def begin(self, size: int) -> None:
        self.network = Network(size, whole_run())
        self.faults = False
        self.stopped: set[int] = set()

    @rule(data=st.data())
    def start_round(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.network.ranks)).begin()

    @rule(data=st.data(), count=st.integers(1, 30))
    def deliver(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            for one in self.network.ranks:
                one.begin()
            if waiting := self.network.waiting():
                self.network.deliver(data.draw(st.sampled_from(waiting)))

    @precondition(lambda self: any(self.network.queues.values()))
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        queue = self.network.queues[self._draw_channel(data)]
        del queue[data.draw(st.integers(0, len(queue) - 1))]
        self.faults = True

    @precondition(lambda self: any(self.network.queues.values()))
    @rule(data=st.data())
    def double(self, data: st.DataObject) -> None:
        queue = self.network.queues[self._draw_channel(data)]
        queue.insert(data.draw(st.integers(0, len(queue))), queue[data.draw(st.integers(0, len(queue) - 1))])
        self.faults = True

    @rule(data=st.data())
    def kill(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.network.ranks)).dead = True
        self.faults = True

    @rule(seconds=st.sampled_from([0.5, 5.0, 9.9, 10.5, 60.0]))
    def wait(self, seconds: float) -> None:
        self.network.advance(seconds)
        self.faults = self.faults or any(one.failure for one in self.network.ranks)

    @rule(data=st.data())
    def want_to_stop(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.network.ranks)).stops = True

    def _draw_channel(self, data: st.DataObject) -> tuple[int, int]:
        return data.draw(st.sampled_from([one for one, queue in self.network.queues.items() if queue]))

    @invariant()
    def decides_alike(self) -> None:
        if hasattr(self, "network"):
            self.network.check_decisions()

    def teardown(self) -> None:
        if hasattr(self, "network"):
            self.network.finish()
            self.network.check_end(faults=self.faults)


TestRanks = Ranks.TestCase
TestRanks.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestRanks.__doc__ = """SYNC-01, SYNC-06, SYNC-07: Over any interleaving, loss, doubling, delay and death ranks
decide alike or all give up; each round ends in bounded time, and each failure names its round and a rank."""


def choices(kind: RoundKind, fault: str | None, at: int) -> Iterator[Network]:
    """Yield the end of every order in which the messages of one round among three ranks can be delivered, the
    ``at``-th of them with a fault. Another round follows.
    """
    pending: list[list[int]] = [[]]
    while pending:
        path = pending.pop()
        network = Network(3, [one_step(kind, 0 if kind in SETUP else 1), one_step(RoundKind.BOUNDARY, 9)])
        for one in network.ranks:
            one.begin()
        depth = 0
        while waiting := network.waiting():
            if depth == at and fault is not None:
                hit(network, fault, waiting[0])
            if depth < len(path):
                choice = path[depth]
            else:
                choice = 0
                pending += [[*path, other] for other in range(1, len(waiting))]
                path = [*path, 0]
            if not (waiting := network.waiting()):
                break
            network.deliver(waiting[min(choice, len(waiting) - 1)])
            depth += 1
        network.finish()
        yield network


SETUP = {RoundKind.CAPACITY, RoundKind.GRID, RoundKind.STAGE, RoundKind.CLEANUP}


def hit(network: Network, fault: str, channel: tuple[int, int]) -> None:
    """Let something go wrong with the message that is next."""
    queue = network.queues[channel]
    if fault == "lose":
        queue.popleft()
    elif fault == "double":
        queue.append(queue[0])
    elif fault == "overtake":
        queue.reverse()
    else:
        network.ranks[int(fault.split()[1])].dead = True


@pytest.mark.parametrize("kind", KINDS)
def test_every_order_of_messages_ends_alike(kind: RoundKind) -> None:
    """SYNC-01: In whatever order the messages of a round arrive, all ranks decide, and alike."""
    ends = list(choices(kind, None, 0))

    assert ends
    for network in ends:
        network.check_end(faults=False)
        assert all(len(one.decisions) == 2 for one in network.ranks)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_order_with_one_fault_ends(kind: RoundKind, fault: str) -> None:
    """SYNC-01, SYNC-07: One message lost, doubled or overtaken, or one rank killed, at each place of each
    order of a round: no two ranks decide differently, and each ends in time.
    """
    failed: set[type[Any]] = set()
    for at in range(14):
        for network in choices(kind, fault, at):
            network.check_end(faults=True)
            failed |= {type(one.failure) for one in network.ranks if one.failure}

    if fault != "overtake":  # nothing can overtake where each queue holds one message
        assert failed
    assert failed <= {OutOfLockstep, PeerAborted, SyncTimeout}
