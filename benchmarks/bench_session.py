"""Knows what a self-benchmark adds to each step of an engine: its session beside the verbs alone.

Both drive the same simulated scheduler through the same decode points: inject, run, run once more, release,
an empty step. The bare way has its prompts ready and keeps nothing. The session makes prompts and hashes
them, asks the group, times, judges and keeps the evidence of every pass; most of that is done where nothing
is timed. A steady sample begins with the output before it, so what is done until its own pass starts is in
it: that is shown by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any, cast

from forwardpass.bench.content.synthetic import RandomTokens
from forwardpass.bench.content.writer import PromptWriter
from forwardpass.bench.context import RunContext, RunSettings
from forwardpass.bench.driver import Admitted, Batch, SyntheticRequest
from forwardpass.bench.grid import Grid, arrange
from forwardpass.bench.limits import CapacityEnvelope, GraphSettings
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.run import benchmark
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.session import Delegate, OutputSummary, Run, Session, Step, Ticket
from forwardpass.bench.sync.group import Group
from forwardpass.engines.mock.bench_costs import PassCosts
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_engine import MockBenchEngine, SimulatedClock
from forwardpass.engines.mock.config import MockConfig
from harness import Result, compare, is_quick, run_script

__all__ = ["main"]

BATCHES = (1, 32, 256)
CONTEXT = 64
"""Tokens of each request."""
STEPS = 3
"""Of a point: the admission, the steady step, an empty one."""
CONFIG = MockBenchConfig(MockConfig(max_num_seqs=256, num_blocks=4096, noise=0.0), GraphSettings())


def engine() -> MockBenchEngine:
    """Return a fresh engine."""
    costs = PassCosts(CONFIG.engine.cost, CONFIG.graph, seed="bench")
    return MockBenchEngine(CONFIG, costs, SimulatedClock())


class Bare:
    """What an engine calls of a session, without any of what a session does."""

    def __init__(self, run_on: MockBenchEngine, batch: int, points: int) -> None:
        tokens = tuple(range(1, CONTEXT + 1))
        requests = tuple(SyntheticRequest(slot, tokens) for slot in range(batch))
        self.active = True
        self._engine = run_on
        self._steps = self._points(Batch(Phase.DECODE, requests), points)
        self._ticket = Ticket(0.0, None)

    def _points(self, batch: Batch, points: int) -> Generator[Step, None, None]:
        driver = self._engine.driver
        for _ in range(points):
            admitted = driver.inject(batch)
            assert isinstance(admitted, Admitted)
            yield Run(admitted.output)
            yield Run(driver.steady(admitted.ids))
            driver.release(admitted.ids)
            yield Delegate()

    def on_schedule(self) -> Step:
        step = next(self._steps, None)
        self.active = step is not None
        return step or Delegate()

    def on_scheduled(self, summary: OutputSummary | None) -> Ticket:
        return self._ticket

    def on_output(self, *_: Any) -> None:
        pass


class Window:
    """A session that times what a steady sample has of it: from the output before it to its own start."""

    def __init__(self, inner: Session) -> None:
        self.spent = 0.0
        self._inner, self._outputs, self._opened = inner, 0, 0.0
        self.on_schedule = inner.on_schedule

    @property
    def active(self) -> bool:
        return self._inner.active

    def on_scheduled(self, summary: OutputSummary | None) -> Ticket:
        ticket = self._inner.on_scheduled(summary)
        if self._opened:
            self.spent += time.perf_counter() - self._opened
            self._opened = 0.0
        return ticket

    def on_output(self, ticket: Ticket, arrived_at: float, metrics: Any, *dispatch: Any) -> None:
        self._outputs += metrics is not None
        if metrics is not None and self._outputs % 2:  # of a point's two, the admission
            self._opened = time.perf_counter()
        self._inner.on_output(ticket, arrived_at, metrics, *dispatch)


def bare_on(run_on: MockBenchEngine, batch: int, points: int) -> Session:
    """Return what does the verbs of the points alone."""
    return cast(Session, Bare(run_on, batch, points))


def session_on(run_on: MockBenchEngine, batch: int, points: int) -> Session:
    """Return a session that measures the points."""
    capacity: CapacityEnvelope = run_on.driver.capacity()
    grid: Grid = arrange([Point(Phase.DECODE, 0, 0, batch * CONTEXT, batch)] * points)
    prompts = PromptWriter(RandomTokens(32_000), seed="0", dp_rank=0)
    settings = RunSettings(warmup_iterations=0)
    context = RunContext(settings, run_on.driver.layout(), prompts, RunLog(), run_on.clock)
    context.usable_blocks = capacity.usable_blocks_with_watermark
    return Session(context, run_on.driver, Group(0, 1), lambda own: benchmark(own, lambda: (capacity, grid)))


Way = Callable[[MockBenchEngine, int, int], Session]


def whole(way: Way, batch: int, points: int) -> float:
    """Return the seconds of all steps of the points."""
    run_on = engine()
    session = way(run_on, batch, points)
    begin = time.perf_counter()
    run_on.run(session)
    return time.perf_counter() - begin


def within(way: Way, batch: int, points: int) -> float:
    """Return the seconds that are in the points' steady samples before their passes start."""
    run_on = engine()
    window = Window(way(run_on, batch, points))
    run_on.run(cast(Session, window))
    return window.spent


def main() -> list[Result]:
    """Compare a whole step, and what of it lies within a pass, for batches of three sizes."""
    results = []
    for batch in BATCHES:
        points = 20 if is_quick() else 200 if batch < 100 else 60
        name = f"session, {batch} requests of {CONTEXT} tokens"
        for what, of, items in (("a step", whole, STEPS * points), ("in a steady sample", within, points)):
            ways = {
                label: lambda of=of, way=way, batch=batch, points=points: of(way, batch, points)
                for label, way in (("verbs alone", bare_on), ("session", session_on))
            }
            results.append(compare(f"{name}, {what}", ways, items=items, rounds=9))
    return results


if __name__ == "__main__":
    run_script(main)
