"""Whole runs on the simulated engine with what once spoiled a benchmark: what is measured stays right."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rig import GRAPH, RUN_ID, Rig, decode, prefill

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.context import RunSettings
from forwardpass.bench.digest import point_key, record
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.limits import GraphMode, GraphSettings
from forwardpass.bench.outcome import SkipReason
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.sync.group import Group
from forwardpass.bench.sync.messages import RankResult
from forwardpass.config.settings import Sources
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_rank import MockRank
from forwardpass.errors import EngineError
from forwardpass.wire.schema import ForwardPassMetrics

CAPTURED = msgspec.structs.replace(GRAPH, capture_sizes=(1, 2, 4, 8, 16, 32, 64, 128))
"""Every shape has a graph: no replicas."""
BARE = RunSettings(warmup_iterations=0)
REPEATED = RunSettings(warmup_iterations=0, giant_threshold=10, giant_repeats=3)
SLOW_SECONDS = 2.0


def rig(*points: Point, settings: RunSettings = BARE, **more: Any) -> Rig:
    return Rig(points=points, settings=settings, graph=CAPTURED, **more)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_slow_admission_is_not_the_decodes_time(asynchronous: bool) -> None:
    """PIT-07, RUN-33: The step in which decodes are admitted takes seconds; the point's time is that of the
    step after it, and the other is kept beside it.
    """
    bench = rig(decode(64, 2), async_scheduling=asynchronous)
    original, extra = bench.engine.costs.of, [SLOW_SECONDS]

    def of(step: Any) -> Any:
        seconds, dispatch = original(step)
        return seconds + (extra.pop() if extra else 0.0), dispatch

    bench.engine.costs.of = of  # type: ignore[method-assign]
    (row,) = bench.run().measured

    assert row.wall_time < 0.1
    assert [sample.metrics.wall_time > SLOW_SECONDS for sample in row.samples] == [True, False]


@pytest.mark.parametrize("missing", [1, 1 << 30])
def test_a_steady_step_without_a_block_is_not_tried_again(missing: int) -> None:
    """RUN-20, RUN-44, PIT-08: After a step that runs nothing vLLM's runner has taken the requests out of its
    batch. So a steady step for which a block is missing is not made up for later: the point is skipped at its
    deadline, and the next one is measured.
    """
    bench = rig(decode(64, 2), decode(32, 2))
    bench.driver.steady_missing = missing
    log = bench.run()
    first = bench.driver.order[: bench.driver.order.index("inject", 1)]

    assert first[:2] == ["inject", "steady"]
    assert set(first[2:]) == {"empty"}
    assert (log.skipped[0].point.benchmark_id, log.skipped[0].reason) == (1, SkipReason.DECODE_CONTEXT)
    assert [row.point.benchmark_id for row in log.measured] == ([2] if missing == 1 else [])


def test_a_repeated_steady_step_without_a_block_is_the_last() -> None:
    """RUN-21, PIT-08: Where only a later one of several steady steps finds no block, the median is that of
    those before it.
    """
    bench = rig(decode(64, 2), settings=REPEATED)
    steady = bench.driver.inner.steady
    calls: list[tuple[str, ...]] = []

    def second_is_missing(ids: tuple[str, ...]) -> Any:
        calls.append(ids)
        return steady(ids) if len(calls) == 1 else None

    bench.driver.steady = second_is_missing  # type: ignore[method-assign]
    (row,) = bench.run().measured

    assert len(calls) == 2
    assert [sample.metrics.scheduled_requests.sum_decode_kv_tokens for sample in row.samples] == [62, 64]
    assert row.wall_time == row.samples[1].metrics.wall_time


def test_waiting_for_the_others_is_in_no_pass() -> None:
    """PIT-10, RUN-30: However long it takes until all ranks are let go together, a pass is timed from then
    on.
    """
    bench = rig(prefill(64), decode(64, 2))
    original = bench.group.go

    def go(*args: Any, **kwargs: Any) -> str:
        bench.clock.now += SLOW_SECONDS
        return original(*args, **kwargs)

    bench.group.go = go  # type: ignore[method-assign]
    log = bench.run()

    walls = [sample.metrics.wall_time for row in log.measured for sample in row.samples]
    assert len(walls) == 3
    assert max(walls) < 0.1


@pytest.mark.parametrize("real", [False, True])
def test_a_request_that_reads_nothing_has_no_prefix(real: bool) -> None:
    """PIT-20, RUN-11, RUN-12: Of two requests one reads nothing: nothing is put in the cache for it, since an
    empty prompt is no request; the point is measured.
    """
    point = Point(Phase.PREFILL, 0, 30, 32, 2, rows=((20, 0), (10, 32)))
    bench = rig(point, settings=RunSettings(warmup_iterations=0, real_seed=real))
    log = bench.run()
    seeds = bench.driver.injected[0] if real else bench.driver.seeds[0]

    assert [(request.slot, len(request.token_ids)) for request in seeds.requests] == [(1, 32)]
    assert [row.point.rows for row in log.measured] == [point.rows]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_end_waits_for_fenced_blocks(asynchronous: bool) -> None:
    """PIT-31, RUN-02: At the end the cache is cleared only when every released block is free."""
    bench = rig(decode(64, 2), async_scheduling=asynchronous)
    release = bench.driver.release

    def fence(ids: tuple[str, ...]) -> None:
        release(ids)
        bench.driver.unsettled = 3

    bench.driver.release = fence  # type: ignore[method-assign]
    log = bench.run()

    assert bench.driver.order[-4:] == ["unsettled", "unsettled", "unsettled", "reset"]
    assert log.error is None


def test_a_coordinate_that_was_corrected_has_its_key_on_every_rank() -> None:
    """PIT-33, RUN-41: A giant point that all ranks measured one token a request short is recorded there, and
    the evidence of every rank has the key of what is recorded; the prompts stay those that ran.
    """

    def short(metrics: ForwardPassMetrics) -> ForwardPassMetrics:
        scheduled = metrics.scheduled_requests
        less = msgspec.structs.replace(
            scheduled, sum_decode_kv_tokens=scheduled.sum_decode_kv_tokens - scheduled.num_decode_requests
        )
        return msgspec.structs.replace(metrics, scheduled_requests=less)

    settings = RunSettings(warmup_iterations=0, giant_threshold=100, giant_repeats=1)
    bench = rig(decode(120, 4), settings=settings, tamper=short)
    bench.group.others = lambda own: (RankResult(1, ({**own[0], "dp_rank": 1},)),)
    (row,) = bench.run().measured
    evidence = [rank.fpms[0]["benchmark_measurement"] for rank in row.ranks]

    assert row.point.total_kv_read_tokens == 116
    assert {each["point_key"] for each in evidence} == {point_key(record(row.point))}
    assert [len(evidence), sum(each["num_tokens"] for each in evidence[0]["prompts"]["requests"])] == [2, 120]


def test_a_median_has_no_dispatch_of_its_own() -> None:
    """PIT-35, EVID-05: What is retained of several steady steps says of none of them how it was dispatched;
    each original pass says it of itself.
    """
    settings = RunSettings(warmup_iterations=0, giant_threshold=100, giant_repeats=4)
    for point in (decode(120), decode(64, 2), prefill(64)):
        (row,) = rig(point, settings=settings).run().measured
        (retained,) = row.ranks[0].fpms
        raw = retained["benchmark_measurement"]["raw_fpms"]

        assert "benchmark_sample" not in retained
        assert [each["benchmark_sample"]["sample_index"] for each in raw] == list(range(len(raw)))


def test_passes_are_counted_once_from_beginning_to_end() -> None:
    """PIT-36, RUN-31: In the order of the results the indices of passes only grow; warm-ups, and requests
    that seed a prefix, are counted in between.
    """
    log = Rig(
        settings=RunSettings(real_seed=True), samples=SampleLimits(4, 3, 2, 3, 3), async_scheduling=True
    ).run()
    indices = [sample.forward_index for row in log.measured for sample in row.samples]

    assert all(index < following for index, following in pairwise(indices))
    assert log.next_forward > indices[-1] + 1 - len(indices) > 0


def test_what_is_undone_is_undone_in_one_order() -> None:
    """PIT-38, RUN-04: Requests are aborted in an order that no hash decides, so that it is every rank's."""
    bench = rig(decode(64, 16))

    def broken(ids: tuple[str, ...]) -> Any:
        raise EngineError("lost the device")

    bench.driver.steady = broken  # type: ignore[method-assign]
    with pytest.raises(EngineError):
        bench.run()

    (released,) = bench.driver.released
    assert len(released) == 16
    assert list(released) == sorted(released)


def test_a_rank_limit_of_its_own_changes_no_digest() -> None:
    """PIT-12, BCONF-40, GRID-20: Two ranks of which one may run fewer requests go on: what they compare has
    the list of captured sizes as it was configured, and not as each of them would cut it.
    """
    first, second = (Rig(max_num_seqs=seqs, points=[decode(8, 2)]).driver.layout() for seqs in (16, 2))

    assert first == second
    assert first.graph.capture_sizes[-1] == 8


def test_the_file_is_written_after_everything_else(tmp_path: Path) -> None:
    """PIT-41, PIT-43, RUN-02: An older file is gone before anything runs; while ranks still agree that all is
    undone there is none.
    """
    path = tmp_path / "bench.json"
    path.write_text("{}")
    seen = []

    class Looking(Group):
        def agree_capacity(self, capacity: Any) -> Any:
            seen.append(path.exists())
            return super().agree_capacity(capacity)

        def cleanup(self) -> None:
            super().cleanup()
            seen.append(path.exists())

    graph = GraphSettings("FULL", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8))
    MockRank(
        engine=MockBenchConfig(graph=graph),
        config=BenchConfig(BenchMode.DECODE, samples=SampleLimits(2, 2, 1, 2, 2), output_path=str(path)),
        environment=BenchEnvironment.load(Sources({})),
    ).measure(Looking(0, 1, run_id=RUN_ID))

    assert seen == [False, False]
    assert path.exists()
