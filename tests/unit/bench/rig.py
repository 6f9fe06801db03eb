"""A benchmark on the simulated engine, in one process and simulated time; things go wrong on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from forwardpass.bench.content.synthetic import RandomTokens
from forwardpass.bench.content.writer import PromptWriter
from forwardpass.bench.context import RunContext, RunSettings
from forwardpass.bench.driver import Admitted, Batch, BenchDriver, Refused
from forwardpass.bench.grid import Grid, SampleLimits, arrange, build_grid, expecting, feasible_max_batch
from forwardpass.bench.limits import CapacityEnvelope, GraphMode, GraphSettings
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.run import benchmark
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.session import Session
from forwardpass.bench.sync.group import Group, GroupResult
from forwardpass.bench.sync.messages import RankResult
from forwardpass.engines.mock.bench_costs import PassCosts
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_engine import MockBenchEngine, SimulatedClock
from forwardpass.engines.mock.config import MockConfig
from forwardpass.wire.schema import ForwardPassMetrics

GRAPH = GraphSettings("FULL_AND_PIECEWISE", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8))
FEW = SampleLimits(4, 3, 2, 3, 3)
RUN_ID = "ab" * 16


class Alone(Group):
    """A group of one rank, which notes what it was asked; ``others`` are results that other ranks add."""

    def __init__(self) -> None:
        super().__init__(0, 1, run_id=RUN_ID)
        self.calls: list[tuple[str, Any]] = []
        self.others: Callable[[tuple[dict[str, Any], ...]], tuple[RankResult, ...]] = lambda passes: ()
        self.stop_at: int | None = None

    def go(self, benchmark_id: int, point_digest: str, output_summary: Any, error: Any = None) -> str:
        self.calls.append(("go", output_summary))
        return super().go(benchmark_id, point_digest, output_summary)

    def exchange(self, benchmark_id: int, point_digest: str, fpms: Any, stop: Any) -> GroupResult:
        self.calls.append(("exchange", fpms))
        own, stops = super().exchange(benchmark_id, point_digest, fpms, stop)
        return GroupResult((*own, *self.others(own[0].fpms)), stops)

    def boundary(self, benchmark_id: int, stop: Any) -> bool:
        self.calls.append(("boundary", benchmark_id))
        asked = len([call for call in self.calls if call[0] == "boundary"])
        return super().boundary(benchmark_id, stop) or self.stop_at == asked

    def cleanup(self) -> None:
        self.calls.append(("cleanup", None))
        super().cleanup()


class Watched:
    """A driver in front of the real one that keeps what it was asked; ``refuse`` may refuse an injection."""

    def __init__(self, inner: BenchDriver) -> None:
        self.inner = inner
        self.injected: list[Batch] = []
        self.seeds: list[Batch] = []
        self.released: list[tuple[str, ...]] = []
        self.order: list[str] = []
        self.refuse: Callable[[int, Batch], Refused | None] = lambda number, batch: None
        self.refuse_seed: Refused | None = None
        self.steady_missing = 0
        self.unsettled = 0
        self.hang = False
        self.clear = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def inject(self, batch: Batch) -> Admitted | Refused:
        self.order.append("inject")
        self.injected.append(batch)
        refused = self.refuse(len(self.injected), batch)
        if refused is not None:
            return refused
        if self.hang and batch.phase is Phase.PREFILL:
            return Admitted((f"hanging-{len(self.injected)}",))
        return self.inner.inject(batch)

    def seed_prefixes(self, batch: Batch) -> Refused | None:
        self.seeds.append(batch)
        return self.refuse_seed or self.inner.seed_prefixes(batch)

    def steady(self, ids: tuple[str, ...]) -> Any:
        self.order.append("steady")
        if self.steady_missing:
            self.steady_missing -= 1
            return None
        return self.inner.steady(ids)

    def empty(self) -> Any:
        self.order.append("empty")
        return self.inner.empty()

    def alive(self, ids: tuple[str, ...]) -> int:
        hanging = [each for each in ids if each.startswith("hanging") and each not in sum(self.released, ())]
        return len(hanging) or self.inner.alive(ids)

    def release(self, ids: tuple[str, ...]) -> None:
        self.released.append(ids)
        self.inner.release(ids)

    def settled(self) -> bool:
        if self.unsettled:
            self.unsettled -= 1
            self.order.append("unsettled")
            return False
        return self.inner.settled()

    def reset_prefix_cache(self) -> bool:
        self.order.append("reset")
        return self.clear and self.inner.reset_prefix_cache()


class Rig:
    """One rank."""

    def __init__(
        self,
        *,
        settings: RunSettings | None = None,
        points: Sequence[Point] | None = None,
        phases: Sequence[Phase] = (Phase.PREFILL, Phase.DECODE),
        samples: SampleLimits = FEW,
        graph: GraphSettings = GRAPH,
        tamper: Callable[[ForwardPassMetrics], ForwardPassMetrics] | None = None,
        watermark_blocks: int = 0,
        **engine: Any,
    ) -> None:
        limits: dict[str, Any] = {
            "max_num_seqs": 16,
            "max_num_batched_tokens": 128,
            "max_model_len": 512,
            "num_blocks": 600,
            "noise": 0.0,
        }
        config = MockBenchConfig(MockConfig(**(limits | engine)), graph, watermark_blocks=watermark_blocks)
        self.clock = SimulatedClock(unix_ms=1_700_000_000_000)
        self.log = RunLog()
        costs = PassCosts(config.engine.cost, graph, seed="rig", request_limit=config.engine.max_num_seqs)
        self.engine = MockBenchEngine(config, costs, self.clock, worker_id="7", tamper=tamper)
        self.driver = Watched(self.engine.driver)
        self.group = Alone()
        prompts = PromptWriter(RandomTokens(1000), seed="0", dp_rank=0)
        self.context = RunContext(
            settings or RunSettings(), self.driver.layout(), prompts, self.log, self.clock
        )
        self.context.usable_blocks = self.driver.capacity().usable_blocks_with_watermark
        self._points, self._phases, self._samples = points, phases, samples
        self.session = Session(
            self.context, self.driver, self.group, lambda context: benchmark(context, self.agree)
        )

    def agree(self) -> tuple[CapacityEnvelope, Grid]:
        layout, capacity = self.driver.layout(), self.driver.capacity()
        if self._points is None:
            return capacity, build_grid(self._phases, layout, capacity, samples=self._samples)
        ends = {Phase.PREFILL: capacity.max_num_scheduled_tokens}
        ends[Phase.DECODE] = feasible_max_batch(layout, capacity)
        return capacity, arrange(
            [expecting(point, layout, capacity, ends[point.point_type]) for point in self._points]
        )

    def run(self) -> RunLog:
        """Run to the end."""
        self.engine.run(self.session)
        return self.log


def prefill(total: int, batch: int = 1, read: int = 0) -> Point:
    """Return a prefill point."""
    return Point(Phase.PREFILL, 0, total, read, batch)


def decode(total: int, batch: int = 1) -> Point:
    """Return a decode point."""
    return Point(Phase.DECODE, 0, 0, total, batch)
