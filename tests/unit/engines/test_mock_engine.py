"""One rank in time: when it wants to be called, what it publishes, how faults change it."""

from itertools import islice
from math import inf

import pytest

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.load import Arrival
from forwardpass.engines.mock.model import CostModel
from forwardpass.testing.passes import simulated_passes
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import QueuedRequestMetrics

COST = CostModel(
    weights_seconds=1.0, token_seconds=0.0, pair_seconds=0.0, kv_token_seconds=0.0, request_seconds=0.0,
    host_seconds=0.25,
)  # fmt: skip


class Rank:
    """An engine with list publishers, run in simulated time."""

    def __init__(self, arrivals, **config):
        self.publishers = []
        self.times = []
        self.engine = MockEngine(MockConfig(cost=COST, noise=0.0, **config), self.open, arrivals)

    def open(self, dp_rank):
        self.publishers.append(ListPublisher(dp_rank))
        return self.publishers[-1]

    def run(self, until=inf, start=0.0):
        moment = start
        while moment <= until and moment != inf:
            self.times.append(moment)
            moment = self.engine.turn(moment)
        return moment

    @property
    def messages(self):
        return self.publishers[-1].messages

    @property
    def wall_times(self):
        return [message.wall_time for message in self.messages]


def test_synchronous_passes_take_host_and_gpu_time_one_after_the_other():
    """ENG-03, ENG-20: Each pass is 0.25 s on the host and 1 s on the GPU; the first counts from its
    scheduling.
    """
    rank = Rank([Arrival(10.0, 4, 3)])
    rank.run()

    assert rank.wall_times == [1.25, 1.25, 1.25]


def test_asynchronous_passes_hide_the_host_behind_the_gpu():
    """ENG-03, ENG-20: Two in flight: after the first output the period is the GPU's alone."""
    rank = Rank([Arrival(10.0, 4, 4)], async_scheduling=True)
    rank.run()

    assert rank.wall_times == [1.25, 1.0, 1.0, 1.0]


def test_idle_time_is_not_counted():
    """ENG-03, ENG-20: The empty step after the last request ends the period, so the next pass counts from
    scheduling.
    """
    rank = Rank([Arrival(0.0, 4, 2), Arrival(100.0, 4, 2)])
    rank.run()

    assert rank.wall_times == [1.25, 1.25, 1.25, 1.25]


def test_asynchronous_idle_time_is_not_counted_either():
    """The same with two in flight, where the empty step overtakes nothing."""
    rank = Rank([Arrival(0.0, 4, 2), Arrival(100.0, 4, 2)], async_scheduling=True)
    rank.run()

    assert rank.wall_times == [1.25, 1.0, 1.25, 1.0]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_empty_steps_note_the_queue_and_publish_nothing(async_scheduling):
    """What heartbeats report after the last request is the empty queue of that step."""
    rank = Rank([Arrival(0.0, 4, 2)], async_scheduling=async_scheduling)
    rank.run()

    assert len(rank.messages) == 2
    assert rank.publishers[0].queue_notes
    assert set(rank.publishers[0].queue_notes) == {QueuedRequestMetrics()}


def test_requests_that_arrive_during_a_pass_are_in_its_queue_report_only_if_known():
    """The snapshot is taken at the output, before later arrivals are received."""
    rank = Rank([Arrival(0.0, 4, 2), Arrival(0.0, 6, 1), Arrival(0.0, 8, 1)], max_num_seqs=1)
    rank.run()
    first = rank.messages[0].queued_requests

    assert (first.num_prefill_requests, first.sum_prefill_tokens) == (2, 14)


def test_an_idle_rank_asks_for_its_next_arrival_and_then_for_nothing():
    """Nothing polls: the next wish is the next event, and ``inf`` when the load has ended."""
    rank = Rank([Arrival(5.0, 4, 1)])

    assert rank.engine.turn(0.0) == 5.0
    assert rank.run(start=5.0) == inf


def test_a_late_call_is_measured_as_late():
    """In real time the wall time is what really passed, not what the model planned."""
    rank = Rank([Arrival(0.0, 4, 1)])
    rank.engine.turn(0.0)
    rank.engine.turn(2.0)

    assert rank.wall_times == [2.0]


def test_a_slow_rank_takes_longer_until_it_is_told_otherwise():
    """The factor holds for every pass scheduled from then on."""
    rank = Rank([Arrival(0.0, 4, 4)])
    rank.engine.slow_down(3.0)
    moment = rank.run(until=4.0)
    rank.engine.slow_down(1.0)
    rank.run(start=moment)

    assert rank.wall_times == [3.25, 3.25, 1.25, 1.25]


def test_a_stall_makes_one_pass_longer():
    """The stall is used up by the next pass that is scheduled."""
    rank = Rank([Arrival(0.0, 4, 3)])
    rank.engine.stall(5.0)
    rank.run()

    assert rank.wall_times == [6.25, 1.25, 1.25]


def test_a_crashed_rank_comes_back_empty_with_a_new_publisher():
    """A restart loses the requests, misses those that arrive meanwhile, and counts from 0 again."""
    rank = Rank([Arrival(0.0, 4, 50), Arrival(3.0, 4, 2), Arrival(9.0, 4, 2)])
    rank.run(until=2.0)
    rank.engine.crash(2.0, down_seconds=4.0)

    assert rank.publishers[0].closed
    assert rank.engine.turn(2.0) == 6.0

    rank.run(start=6.0)

    assert len(rank.publishers) == 2
    assert [message.counter_id for message in rank.messages] == [0, 1]
    assert rank.engine.totals.submitted == 2


def test_the_simulated_time_of_a_pass_is_a_duration():
    """TRAP-14, ENG-20: Times do not grow with the simulation's clock: together they are no longer than it."""
    times = [one.wall_time for one in islice(simulated_passes(), 3000)]

    assert sum(times) > 20.0
    assert max(times) < 2.0
