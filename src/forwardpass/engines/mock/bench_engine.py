"""Knows how a rank of the simulated engine runs a benchmark: schedule, run, update, in simulated time.

One or two steps are in flight. Nothing waits for real: a pass of 10 ms takes as long as computing that it
does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
from msgspec import Struct

from forwardpass.bench.evidence import NO_DISPATCH, Dispatch
from forwardpass.bench.session import Delegate, OutputSummary, Session, Ticket
from forwardpass.clock import SystemClock
from forwardpass.engines.mock.bench_costs import PassCosts
from forwardpass.engines.mock.bench_driver import MockBenchConfig, MockDriver
from forwardpass.engines.mock.extract import measure
from forwardpass.engines.mock.scheduler import Scheduler
from forwardpass.engines.mock.step import Step
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["MockBenchEngine", "SimulatedClock"]

STEP_SECONDS = 20e-6
"""What scheduling a step takes."""
EMPTY_SECONDS = 1e-3
"""What a turn takes that runs nothing."""


class SimulatedClock:
    """A clock that its engine moves."""

    def __init__(self, unix_ms: int | None = None) -> None:
        self.now = 1000.0
        self._unix_ms = SystemClock.unix_ms() if unix_ms is None else unix_ms

    def monotonic(self) -> float:
        """Return the simulated seconds."""
        return self.now

    def unix_ms(self) -> int:
        """Return Unix milliseconds that move with the simulated time."""
        return self._unix_ms + round((self.now - 1000.0) * 1000)


class _Flight(Struct, frozen=True):
    step: Step
    ticket: Ticket
    done_at: float
    dispatch: Dispatch


class MockBenchEngine:
    """One rank. ``tamper`` may change what is reported of a pass, as a faulty engine would."""

    def __init__(
        self,
        config: MockBenchConfig,
        costs: PassCosts,
        clock: SimulatedClock,
        *,
        dp_rank: int = 0,
        worker_id: str = "",
        tamper: Callable[[ForwardPassMetrics], ForwardPassMetrics] | None = None,
    ) -> None:
        self.scheduler = Scheduler(config.engine)
        self.driver = MockDriver(config, self.scheduler)
        self.driver.in_flight = lambda: sum(1 for flight in self._flights if not flight.step.empty)
        self.costs = costs
        self.clock = clock
        self.passes = 0
        self._depth = 2 if config.engine.async_scheduling else 1
        self._host_seconds = config.engine.cost.host_seconds
        self._flights: deque[_Flight] = deque()
        self._gpu_free_at = 0.0
        self._dp_rank, self._worker_id = dp_rank, worker_id
        self.tamper = tamper

    def run(self, session: Session) -> None:
        """Run until the session has ended. Raises what ended it."""
        while session.active:
            self.turn(session)
        while self._flights:
            self._update(session)

    def turn(self, session: Session) -> None:
        """Schedule until enough steps are in flight, then take the oldest output in."""
        while len(self._flights) < self._depth and session.active:
            self._schedule(session)
        if self._flights:
            self._update(session)

    def _schedule(self, session: Session) -> None:
        wanted = session.on_schedule()
        step = self.scheduler.schedule() if isinstance(wanted, Delegate) else wanted.output
        self.clock.now += EMPTY_SECONDS if step.empty else STEP_SECONDS
        ticket = session.on_scheduled(None if step.empty else _summary(step))
        done_at = self.clock.now
        dispatch: Dispatch = NO_DISPATCH
        if not step.empty:
            seconds, dispatch = self.costs.of(step)
            ready = self.clock.now + self._host_seconds
            done_at = self._gpu_free_at = max(ready, self._gpu_free_at) + seconds
        self._flights.append(_Flight(step, ticket, max(self.clock.now, done_at), dispatch))

    def _update(self, session: Session) -> None:
        flight = self._flights.popleft()
        self.clock.now = max(self.clock.now, flight.done_at)
        arrived_at = self.clock.now
        self.scheduler.update(flight.step)
        if flight.step.empty:
            session.on_output(flight.ticket, arrived_at, None)
            return
        self.passes += 1
        metrics = measure(flight.step, self.scheduler.waiting.snapshot(), 0.0, self._dp_rank)
        metrics = msgspec.structs.replace(metrics, worker_id=self._worker_id)
        if self.tamper is not None:
            metrics = self.tamper(metrics)
        session.on_output(flight.ticket, arrived_at, metrics, flight.dispatch)


def _summary(step: Step) -> OutputSummary:
    prefill = sum(chunk.tokens for chunk in step.chunks)
    return OutputSummary(
        total_num_scheduled_tokens=prefill + len(step.contexts),
        num_prefill_requests=len(step.chunks),
        sum_prefill_tokens=prefill,
        sum_prefill_kv_tokens=sum(chunk.computed for chunk in step.chunks),
        num_decode_requests=len(step.contexts),
        sum_decode_kv_tokens=sum(step.contexts),
    )
