"""The garbage collector during a benchmark: held, frozen, and as before whatever comes of the run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.garbage import NEVER, hold_garbage
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.manifest import points_from
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.sync.group import Group
from forwardpass.config.settings import Sources
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_faults import parse_bench_fault
from forwardpass.engines.mock.bench_rank import MockRank
from forwardpass.engines.mock.config import MockConfig
from forwardpass.errors import BenchError

FREEZING = BenchEnvironment.load(Sources({"DYN_FPM_GC_POLICY": "freeze"}))
PLAIN = BenchEnvironment.load(Sources({}))


class State(NamedTuple):
    """All that a hold may change."""

    enabled: bool
    threshold: tuple[int, int, int]
    frozen: int
    threads: int


def state() -> State:
    """Return the collector's."""
    freezing = sum(1 for thread in threading.enumerate() if thread.name == "forwardpass-freeze")
    return State(gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), freezing)


@pytest.fixture(autouse=True)
def before() -> Iterator[State]:
    """Give the collector's state before the test, which has nothing frozen, and put it back."""
    gc.unfreeze()
    found = state()
    yield found
    gc.unfreeze()
    gc.set_threshold(*found.threshold)


def test_a_hold_freezes_and_is_given_back(before: State) -> None:
    """BCONF-15, PIT-15: While it is held, what is alive is frozen and the oldest generation is not collected
    by itself; then all is as before. Releasing it again changes nothing.
    """
    hold = hold_garbage(FREEZING)
    during = state()
    hold.release(freeze_again=False)
    hold.release(freeze_again=False)

    assert during.frozen > 1000
    assert during.threshold == (*before.threshold[:2], NEVER)
    assert (during.enabled, during.threads) == (before.enabled, 1)
    assert state() == before


def test_without_the_policy_nothing_is_touched(before: State) -> None:
    """BCONF-15: The policy is asked for, or there is none; then a release does not even collect."""
    collections = gc.get_stats()[2]["collections"]
    hold = hold_garbage(PLAIN)
    during = state()
    hold.release(freeze_again=True)

    assert during == state() == before
    assert gc.get_stats()[2]["collections"] == collections


def test_a_collector_that_was_off_stays_off(before: State) -> None:
    """BCONF-15: Whether it is enabled, and thresholds that somebody changes meanwhile, are not ours."""
    gc.disable()
    try:
        hold = hold_garbage(FREEZING)
        gc.set_threshold(123, 4, NEVER)
        hold.release(freeze_again=False)
        assert not gc.isenabled()
        assert gc.get_threshold() == (123, 4, before.threshold[2])
    finally:
        gc.enable()


@pytest.mark.parametrize("first_out", [0, 1])
def test_the_last_of_two_holders_gives_back(before: State, first_out: int) -> None:
    """BCONF-15: An engine and its worker in one process: whoever lets go first changes nothing, and what is
    alive stays frozen if either serves.
    """
    holds = [hold_garbage(FREEZING), hold_garbage(FREEZING)]
    during = state()
    holds.pop(first_out).release(freeze_again=True)
    between = state()
    holds[0].release(freeze_again=False)
    after = state()

    assert between.threshold == during.threshold
    assert (during.threads, between.threads) == (1, 1)
    assert (after.threshold, after.threads) == (before.threshold, 0)
    assert after.frozen > 1000


def test_garbage_of_the_run_is_collected(before: State) -> None:
    """BCONF-15: What became garbage while it was frozen is gone after the release."""

    class Knot:
        alive = 0

        def __init__(self) -> None:
            self.self = self
            Knot.alive += 1

        def __del__(self) -> None:
            Knot.alive -= 1

    knots = [Knot() for _ in range(10)]
    hold = hold_garbage(FREEZING)
    del knots
    gc.collect()
    frozen = Knot.alive
    hold.release(freeze_again=True)

    assert (frozen, Knot.alive) == (10, 0)


# --- a rank's run ----------------------------------------------------------------------------------------


def rank(path: Path, environment: BenchEnvironment = FREEZING, **changes: Any) -> MockRank:
    """Return a small simulated rank."""
    return MockRank(
        engine=MockBenchConfig(MockConfig(max_num_seqs=8, max_model_len=256, num_blocks=300)),
        config=BenchConfig(BenchMode.AGG, samples=SampleLimits(4, 2, 1, 2, 2), output_path=str(path)),
        environment=environment,
        **changes,
    )


@pytest.mark.parametrize("end", ["normal", "failure", "abort"])
def test_every_end_of_a_run_gives_it_back(tmp_path: Path, before: State, end: str) -> None:
    """BCONF-15, PIT-15: The collector is held during a run and as before after it: after its last point,
    after a fault that ends it, and after an interruption in the middle.
    """
    during: list[State] = []

    def look(log: RunLog) -> None:
        during.append(state())
        if end == "abort":
            raise KeyboardInterrupt

    faults = (parse_bench_fault("chunked-prefill=0@3"),) if end == "failure" else ()
    some = rank(tmp_path / "bench.json", faults=faults, on_progress=look)
    if end == "normal":
        assert some.measure(Group(0, 1)).error is None
    else:
        with pytest.raises(KeyboardInterrupt if end == "abort" else BenchError):
            some.measure(Group(0, 1))

    assert {(each.threads, each.threshold[2]) for each in during} == {(1, NEVER)}
    assert min(each.frozen for each in during) > 1000
    assert state() == before


def test_an_agreement_that_fails_gives_it_back(tmp_path: Path, before: State) -> None:
    """BCONF-15: Also a run that ends before its first point, because its settings fit no grid."""
    some = rank(tmp_path / "bench.json")
    too_many = {"batch_size": 9, "total_kv_read_tokens": 90}
    points = points_from({"schema_version": 1, "prefill": [], "decode": [too_many]})
    config = msgspec.structs.replace(some.config, points=points)
    some = msgspec.structs.replace(some, config=config)
    with pytest.raises(BenchError):
        some.measure(Group(0, 1))

    assert state() == before
