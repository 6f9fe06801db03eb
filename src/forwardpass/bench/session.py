"""Knows how a run is carried out between an engine's steps: asks the procedures, performs what they want.

An engine's scheduler calls it three times a step::

    step = session.on_schedule()             # what shall run: an output, or whatever the engine wants
    ticket = session.on_scheduled(summary)   # it is about to run; all ranks are let go together here
    session.on_output(ticket, arrived_at, metrics, dispatch)

so it needs to know nothing of threads, queues or sockets, and runs the same in an engine with one step in
flight and with two. A ticket belongs to one output: one that comes late is recognised and is nobody's sample.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench import ops
from forwardpass.bench.context import Current, RunContext
from forwardpass.bench.digest import point_digest
from forwardpass.bench.driver import Admitted, BenchDriver
from forwardpass.bench.evidence import NO_DISPATCH, Basis, Dispatch
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.samples import Sample
from forwardpass.bench.sync.group import Group
from forwardpass.errors import BenchError
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["Delegate", "OutputSummary", "Run", "Session", "Step", "Ticket"]


class Delegate(Struct, frozen=True):
    """Schedule as you would without a benchmark."""


class Run(Struct, frozen=True):
    """Run this output of the driver, and nothing else."""

    output: Any


Step = Delegate | Run


class OutputSummary(Struct, frozen=True):
    """What an output with tokens computes, in numbers that ranks compare before any of them starts."""

    total_num_scheduled_tokens: int
    num_prefill_requests: int
    sum_prefill_tokens: int
    sum_prefill_kv_tokens: int
    num_decode_requests: int
    sum_decode_kv_tokens: int


class Ticket(Struct, frozen=True):
    """An output on its way."""

    started_at: float
    """Monotonic seconds at the end of its schedule."""
    current: Current | None
    """The point that it belongs to."""


class Session:
    """One run on one rank, from its first step to its last. For the engine's thread alone."""

    def __init__(
        self,
        context: RunContext,
        driver: BenchDriver,
        group: Group,
        procedure: Callable[[RunContext], Generator[ops.Op, Any, None]],
    ) -> None:
        self.active = True
        self._context = context
        self._driver = driver
        self._group = group
        self._procedure = procedure(context)
        self._answer: Any = None
        self._last_output_at = 0.0
        self._ids: set[str] = set()

    # --- what the engine calls -------------------------------------------------------------------------

    def on_schedule(self) -> Step:
        """Return what shall run now. Inactive once the run has ended, and then always a :class:`Delegate`.

        Raises what ended the run, after everything that it had begun was undone.
        """
        if not self.active:
            return Delegate()
        try:
            return self._advance()
        except BaseException as error:
            self.abort(error)
            raise

    def on_scheduled(self, summary: OutputSummary | None) -> Ticket:
        """Let all ranks start together if a point begins with this output; ``None`` stands for an empty one.

        Raises what ended the run.
        """
        context, current = self._context, self._context.current
        if self.active and summary is not None and current is not None and current.armed:
            try:
                self._start(current, summary)
            except BaseException as error:
                self.abort(error)
                raise
        return Ticket(context.clock.monotonic(), current)

    def on_output(
        self,
        ticket: Ticket,
        arrived_at: float,
        metrics: ForwardPassMetrics | None,
        dispatch: Dispatch = NO_DISPATCH,
    ) -> None:
        """Take the output that ``ticket`` was given for. ``metrics`` is ``None`` for an empty one."""
        if not self.active:
            return
        if metrics is None:
            self._last_output_at = 0.0
            return
        context = self._context
        index = context.log.next_forward
        context.log.next_forward += 1
        context.last_progress = arrived_at
        context.log.warmups.observe(msgspec.to_builtins(metrics.scheduled_requests))
        current = ticket.current
        if current is not None and current is context.current and _belongs(current.point, metrics):
            current.samples.append(self._sample(current, ticket, arrived_at, metrics, dispatch, index))
        self._last_output_at = arrived_at

    @property
    def timing(self) -> bool:
        """Whether a point has been started and its passes are still to come."""
        return self._context.started

    def stop(self) -> bool:
        """End the run before the next point, as if the time were up; all ranks agree on when that is.

        Returns whether it can end so: a run without a result yet has nothing to keep, and is aborted.
        """
        self._context.stopping = True
        return self._context.log.settled_points > 0

    def abort(self, error: BaseException) -> None:
        """End the run as failed: undo what it had begun, and keep what it had measured. Idempotent."""
        if not self.active:
            return
        self.active = False
        log = self._context.log
        log.error = f"{type(error).__name__}: {error}"
        self._procedure.close()
        log.warmups.abort(next_forward=log.next_forward)
        self._context.current = None
        self._group.abort(log.error)
        self._driver.release(tuple(sorted(self._ids)))
        self._finish_clock()

    # --- operations --------------------------------------------------------------------------------------

    def _advance(self) -> Step:
        answer, self._answer = self._answer, None
        while True:
            try:
                op = self._procedure.send(answer)
            except StopIteration:
                self.active = False
                self._context.current = None
                self._finish_clock()
                return Delegate()
            if isinstance(op, ops.Turn):
                self._answer = None
                return Delegate() if op.output is None else Run(op.output)
            answer = self._perform(op)

    def _perform(self, op: ops.Op) -> Any:
        driver, group = self._driver, self._group
        match op:
            case ops.Inject(batch):
                self._context.last_progress = self._context.clock.monotonic()
                answer = driver.inject(batch)
                if isinstance(answer, Admitted):
                    self._ids.update(answer.ids)
                return answer
            case ops.Seed(batch):
                return driver.seed_prefixes(batch)
            case ops.Steady(ids):
                return driver.steady(ids)
            case ops.Empty():
                return driver.empty()
            case ops.Alive(ids):
                return driver.alive(ids)
            case ops.Release(ids):
                driver.release(ids)
                self._ids.difference_update(ids)
                return None
            case ops.Settled():
                return driver.settled()
            case ops.ResetCache():
                return driver.reset_prefix_cache()
            case ops.Arm(point, expected):
                self._context.current = Current(point, expected)
                return None
            case ops.Exchange(point, retained):
                stop = self._wants_stop
                return group.exchange(point.benchmark_id, point_digest(point), retained, stop)
            case ops.Boundary(point):
                return group.boundary(point.benchmark_id, self._wants_stop)
            case ops.Cleanup():
                return group.cleanup()
        raise BenchError(f"a procedure asked for {op!r}")

    def _start(self, current: Current, summary: OutputSummary) -> None:
        current.armed = False
        problem = _problem(current.point, summary)
        point = current.point
        self._context.log.run_id = self._group.go(
            point.benchmark_id, point_digest(point), msgspec.structs.asdict(summary), problem
        )
        if problem is not None:
            raise BenchError(problem)
        now = self._context.clock.monotonic()
        current.deadline = now + self._context.settings.point_seconds

    def _wants_stop(self) -> bool:
        """Say whether no further point may begin: the time is up, and something is still open."""
        log = self._context.log
        grid = log.grid
        still_open = grid is not None and log.settled_points < grid.expected_points
        return self._context.timed_out and log.settled_points > 0 and still_open

    def _sample(
        self,
        current: Current,
        ticket: Ticket,
        arrived_at: float,
        metrics: ForwardPassMetrics,
        dispatch: Dispatch,
        index: int,
    ) -> Sample:
        steady = current.point.point_type is Phase.DECODE and current.samples and self._last_output_at > 0
        start = self._last_output_at if steady else ticket.started_at
        return Sample(
            forward_index=index,
            basis=Basis.INTER_OUTPUT if steady else Basis.SCHEDULE_TO_OUTPUT,
            start=start,
            end=arrived_at,
            metrics=msgspec.structs.replace(
                metrics, counter_id=current.point.benchmark_id, wall_time=arrived_at - start
            ),
            dispatch=dispatch,
        )

    def _finish_clock(self) -> None:
        context = self._context
        if context.log.elapsed_seconds is None:
            context.log.elapsed_seconds = context.clock.monotonic() - context.began
            context.log.completed_at_unix_ms = context.clock.unix_ms()


def _belongs(point: Point, metrics: ForwardPassMetrics) -> bool:
    scheduled = metrics.scheduled_requests
    if point.point_type is Phase.PREFILL:
        return scheduled.num_prefill_requests > 0
    return scheduled.num_decode_requests > 0


def _problem(point: Point, summary: OutputSummary) -> str | None:
    """Return how the first output of ``point`` differs from what it asks for, or ``None``."""
    if point.point_type is Phase.PREFILL:
        expected = {
            "num_prefill_requests": point.batch_size,
            "sum_prefill_tokens": point.total_prefill_tokens,
            "sum_prefill_kv_tokens": point.total_kv_read_tokens,
            "num_decode_requests": 0,
        }
    else:
        expected = {  # the admission is one token a request short of what the steady step measures
            "num_decode_requests": point.batch_size,
            "sum_decode_kv_tokens": point.total_kv_read_tokens - point.batch_size,
            "num_prefill_requests": 0,
        }
    for name, wanted in expected.items():
        found = getattr(summary, name)
        if found != wanted:
            return f"point {point.benchmark_id} was scheduled with {name} {found}, expected {wanted}"
    return None
