"""Several ranks on one timeline."""

from math import inf

import pytest

from forwardpass.engines.mock.cluster import FastTime, MockCluster, RealTime, SimulatedTime
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.load import Lengths, Load, arrivals, realistic
from forwardpass.testing.clock import ManualClock
from forwardpass.testing.passes import simulated_passes
from forwardpass.testing.publishers import ListPublisher


def cluster(load: Load, ranks: int = 2, actions=(), pacer=None, **config) -> MockCluster:
    settings = MockConfig(**config)
    engines = [
        MockEngine(settings, ListPublisher, arrivals(load, f"{settings.seed}/{rank}"), dp_rank=rank)
        for rank in range(ranks)
    ]
    return MockCluster(engines, actions=actions, pacer=pacer)


def stream(run: MockCluster) -> list[bytes]:
    return [payload for engine in run.engines for payload in engine.publisher.payloads]


def test_a_seed_decides_every_byte_in_simulated_time():
    """ENG-21: Same seed and configuration, same bytes; another seed, other bytes."""
    streams = []
    for seed in (1, 1, 2):
        run = cluster(realistic(20.0), seed=seed)
        run.run(5.0)
        streams.append(stream(run))

    assert streams[0] == streams[1]
    assert streams[0] != streams[2]


def test_ranks_have_loads_of_their_own():
    """Two ranks draw from different seeds, so they drift apart as real ones do."""
    run = cluster(realistic(20.0))
    run.run(3.0)
    first, second = (engine.publisher.messages for engine in run.engines)

    assert [m.wall_time for m in first] != [m.wall_time for m in second]
    assert {m.dp_rank for m in second} == {1}


def test_a_rank_in_a_cluster_is_the_rank_alone():
    """Each rank is called exactly when it wished, whoever else shares the timeline."""
    load = Load(20.0, Lengths(300, 0.5), Lengths(40, 0.5), limit=60)
    together = cluster(load, ranks=3, seed=5)
    together.run()

    for rank, engine in enumerate(together.engines):
        alone = list(simulated_passes(load, seed=5, dp_rank=rank, worker_id="list"))
        assert engine.publisher.messages == alone


def test_a_run_in_pieces_is_the_run_in_one():
    """Stopping in between changes nothing."""
    whole, pieces = cluster(realistic(20.0)), cluster(realistic(20.0))
    whole.run(4.0)
    for until in (0.5, 0.6, 2.0, 4.0):
        pieces.run(until)

    assert stream(whole) == stream(pieces)


def test_a_finite_load_ends_by_itself():
    """Without a time limit the run ends when nothing is left to do."""
    run = cluster(Load(10.0, Lengths(50), Lengths(5), limit=20), ranks=1)
    ended = run.run()

    assert ended < inf
    assert run.report()[0].requests.finished == 20


def test_actions_happen_at_their_time_between_the_ranks_turns():
    """An action sees what happened before it and nothing later."""
    seen = []
    run = cluster(realistic(20.0), ranks=1)
    done = MockCluster(run.engines, actions=[(1.5, lambda now: seen.append((now, run.engines[0].passes)))])
    done.run(3.0)
    ((at, passes),) = seen

    assert at == 1.5
    assert 0 < passes < run.engines[0].passes


def test_an_idle_rank_waits_in_real_time_until_it_should_stop():
    """Without any request a real-time run does not end by itself: the stream has heartbeats to send."""
    asked = iter(range(1000))
    run = cluster(realistic(0.0), ranks=1, pacer=RealTime(ManualClock()))
    run.run(give_up=lambda: next(asked) > 3)

    assert next(asked) > 3


def test_giving_up_ends_the_run_at_once():
    """The stop condition is asked before every event."""
    run = cluster(realistic(20.0), ranks=1)
    run.run(give_up=lambda: run.engines[0].passes >= 3)

    assert run.engines[0].passes == 3


def test_reports_agree_with_what_was_published():
    """A report's passes are the publisher's offered messages, and closing closes every publisher."""
    run = cluster(realistic(20.0))
    run.run(2.0)
    run.close()

    assert [report.passes for report in run.report()] == [report.published.offered for report in run.report()]
    assert all(engine.publisher.closed for engine in run.engines)


def test_simulated_time_is_the_moment_asked_for():
    """It jumps."""
    assert SimulatedTime().reach(17.5, lambda: False) == 17.5


def test_fast_time_waits_for_the_publishers():
    """Every so often it looks whether too much waits to be sent, and then until that is less."""
    backlog = iter([FastTime.MOST_WAITING + 1, FastTime.MOST_WAITING, 0])
    looked = []

    def waiting() -> int:
        looked.append(next(backlog))
        return looked[-1]

    pacer = FastTime(waiting)
    moments = [pacer.reach(float(index), lambda: False) for index in range(FastTime.CHECK_EVERY)]

    assert moments == [float(index) for index in range(FastTime.CHECK_EVERY)]
    assert looked == [FastTime.MOST_WAITING + 1, FastTime.MOST_WAITING]


def test_real_time_counts_from_its_first_use_and_is_late_rather_than_wrong():
    """The time returned is the clock's, even when the moment is long gone."""
    clock = ManualClock()
    pacer = RealTime(clock)
    pacer.reach(0.0, lambda: False)
    clock.advance(2.5)

    assert pacer.reach(1.0, lambda: False) == 2.5


def test_real_time_does_not_wait_once_it_should_stop():
    """Giving up ends a wait for a moment that is far away."""
    assert RealTime(ManualClock()).reach(1e9, lambda: True) == 0.0


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_the_realistic_load_shows_every_kind_of_pass(async_scheduling):
    """Twelve seconds of it contain prefills, decodes, mixed passes, prefix hits and a queue."""
    run = cluster(realistic(12.0), async_scheduling=async_scheduling)
    run.run(12.0)
    messages = [message for engine in run.engines for message in engine.publisher.messages]
    scheduled = [message.scheduled_requests for message in messages]
    kinds = {(part.num_prefill_requests > 0, part.num_decode_requests > 0) for part in scheduled}

    assert kinds == {(True, False), (False, True), (True, True)}
    assert any(part.sum_prefill_kv_tokens for part in scheduled)
    assert any(message.queued_requests.num_prefill_requests for message in messages)
