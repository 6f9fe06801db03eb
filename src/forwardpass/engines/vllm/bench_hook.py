"""Knows what vLLM's scheduler does while a benchmark is active: each step is the session's or its own.

``schedule`` and ``update`` stand in for the scheduler's two methods. They raise what ends the benchmark: the
engine must not serve after one that went wrong.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from forwardpass.bench.session import Delegate, Run, Session, Step, Ticket
from forwardpass.clock import Clock
from forwardpass.engines.vllm.bench_line import LauncherLine
from forwardpass.engines.vllm.bench_measure import StepCounter, dispatch_of, summary_of
from forwardpass.engines.vllm.bench_steps import carry_out
from forwardpass.errors import BenchError
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["BenchHook"]

logger = logging.getLogger(__name__)


class _Flight(Struct):
    """An output on its way."""

    output: Any
    ticket: Ticket
    scheduled: ScheduledRequestMetrics | None


class BenchHook:
    """A session between a scheduler and its engine. For the engine's thread alone.

    ``waiting`` says what waits in the scheduler's queues. ``on_end`` is called once, when the session has
    ended, well or not. With a ``line`` to a launcher the benchmark begins when somebody waits for it, and one
    that failed by its own rules does not end the engine: the launcher ends it.
    """

    def __init__(
        self,
        scheduler: Any,
        session: Session,
        clock: Clock,
        *,
        worker_id: str,
        dp_rank: int,
        waiting: Callable[[], QueuedRequestMetrics],
        on_end: Callable[[], None],
        line: LauncherLine | None = None,
    ) -> None:
        self.session = session
        self._scheduler = scheduler
        self._clock = clock
        self._worker_id, self._dp_rank = worker_id, dp_rank
        self._waiting = waiting
        self._on_end: Callable[[], None] | None = on_end
        self._line = line
        self._counter = StepCounter()
        self._flights: deque[_Flight] = deque()

    @property
    def active(self) -> bool:
        """Whether the scheduler's next step is the benchmark's."""
        return self.session.active

    def schedule(self, own: Callable[[], Any]) -> Any:
        """Return the next output; ``own`` schedules as vLLM would."""
        if self._line is not None and not self._line.awaited():
            return own()
        self._heed_launcher()
        step = self._step()
        if not self.active:
            return own()
        if isinstance(step, Run):
            output = carry_out(self._scheduler, step.output)
            scheduled = self._counter.of_hand_made(step.output)
        else:
            output = own()
            scheduled = self._counter.of_scheduler(output)
        self._flights.append(_Flight(output, self._ticket(scheduled), scheduled))
        return output

    def _step(self) -> Step:
        """Return what the session wants to run now."""
        try:
            return self.session.on_schedule()
        except BenchError as error:
            self._leave_to_launcher(error)
            return Delegate()
        finally:
            self._notice_end()

    def _ticket(self, scheduled: ScheduledRequestMetrics | None) -> Ticket:
        """Return the session's ticket for an output that runs ``scheduled``."""
        try:
            return self.session.on_scheduled(None if scheduled is None else summary_of(scheduled))
        except BenchError as error:
            self._leave_to_launcher(error)
            return Ticket(self._clock.monotonic(), None)  # it is on its way, and nobody's
        finally:
            self._notice_end()

    def scheduled(self, output: Any) -> bool:
        """Say whether ``output`` was scheduled while the benchmark was active."""
        return any(flight.output is output for flight in self._flights)

    def update(self, output: Any, model_output: Any, own: Callable[[], Any]) -> Any:
        """Take in what the model made of ``output``; ``own`` does what vLLM would."""
        arrived_at = self._clock.monotonic()  # before the scheduler's own bookkeeping
        result = own()
        while (flight := self._flights.popleft()).output is not output:
            pass  # outputs come in order: what was before it will not come
        metrics = None
        if flight.scheduled is not None:
            metrics = ForwardPassMetrics(
                worker_id=self._worker_id,
                dp_rank=self._dp_rank,
                scheduled_requests=flight.scheduled,
                queued_requests=self._waiting(),
            )
        self.session.on_output(flight.ticket, arrived_at, metrics, dispatch_of(model_output))
        return result

    def abort(self, error: BaseException) -> None:
        """End the benchmark, if it is active, because of ``error``."""
        self.session.abort(error)
        self._notice_end()

    def _heed_launcher(self) -> None:
        """End the benchmark if the launcher says so; not between two passes that are timed together."""
        if self._line is None or self.session.timing or not self._line.exchange():
            return
        if not self.session.stop():
            self.abort(InterruptedError("the server was told to end before the first point was measured"))

    def _leave_to_launcher(self, error: BenchError) -> None:
        """Say what ended the benchmark, if a launcher will end the server; else raise it: the engine ends."""
        if self._line is None:
            raise error
        logger.error("the self-benchmark of this rank failed: %s", error)

    def _notice_end(self) -> None:
        if self.session.active or self._on_end is None:
            return
        on_end, self._on_end = self._on_end, None
        on_end()
        if self._line is not None:
            self._line.report()
