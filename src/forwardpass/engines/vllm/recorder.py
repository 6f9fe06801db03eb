"""Knows when a pass began and ended and hands what it did to the publisher; the engine never notices.

The scheduler subclass calls its methods. Whatever goes wrong in them stays in here: counted, said once
and then once a minute, and serving goes on.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from forwardpass.clock import Clock, SystemClock
from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.engines.vllm.steady import RunningContexts
from forwardpass.quiet import QuietLog
from forwardpass.wire.schema import (
    FPM_VERSION,
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledRequestMetrics,
)

if TYPE_CHECKING:  # the publisher's module loads zmq
    from forwardpass.publish.publisher import Publisher

__all__ = ["NullRecorder", "PassRecorder", "Recorder"]

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 256
"""Passes remembered between schedule and output. Batches in flight are as many as pipeline stages, two
at least under async scheduling; an engine that never returns an output must not grow us."""


class Recorder(Protocol):
    """What the scheduler delegates to."""

    def scheduled(self, output: Any) -> None:
        """Take a scheduler output that is about to run."""
        ...

    def arrived(self) -> None:
        """Note that a model output has arrived: the pass is over."""
        ...

    def finished(self, output: Any) -> None:
        """Take the scheduler output whose results the scheduler has just taken in."""
        ...

    def queue_changed(self) -> None:
        """Note what waits: requests came or went between two steps, and a paused engine makes no step."""
        ...

    def set_worker_id(self, worker_id: str) -> None:
        """Write ``worker_id`` into every later message, heartbeats included (decision D-15)."""
        ...

    def close(self) -> None:
        """Stop the publisher."""
        ...


class NullRecorder:
    """Records nothing: Forward Pass Metrics are off for this engine."""

    __slots__ = ()

    def scheduled(self, output: Any) -> None:
        """Do nothing."""

    def arrived(self) -> None:
        """Do nothing."""

    def finished(self, output: Any) -> None:
        """Do nothing."""

    def queue_changed(self) -> None:
        """Do nothing."""

    def set_worker_id(self, worker_id: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_Pass = tuple[Any, float, ScheduledRequestMetrics | None]
"""A scheduler output, when it was scheduled, and what it runs (``None``: could not be counted)."""


class PassRecorder:
    """Turns a scheduler's outputs into messages. Every method is for the engine's thread alone.

    ``read_queue`` returns the waiting requests as they are at that moment. ``wall_time`` is the period
    between consecutive outputs; for the first pass after an empty step, when there is no output to
    count from, it is the time from that pass's schedule to its output. So idle time is never counted,
    and with several batches in flight it is a period, not one batch's latency.
    """

    __slots__ = (
        "__weakref__",
        "_arrived_at",
        "_clock",
        "_in_flight",
        "_last_output_at",
        "_memory",
        "_publisher",
        "_quiet",
        "_running",
        "failures",
        "read_queue",
    )

    def __init__(
        self,
        publisher: Publisher,
        read_queue: Callable[[], QueuedRequestMetrics],
        *,
        clock: Clock | None = None,
    ) -> None:
        self.failures = 0
        """Calls that failed, by a bug of ours or a vLLM that is not what ``compat.py`` says."""
        self._publisher = publisher
        self.read_queue = read_queue
        self._clock: Clock = clock or SystemClock()
        self._quiet = QuietLog(logger, self._clock)
        self._memory = RequestMemory()
        self._running = RunningContexts()
        # (output, scheduled at, what it runs), oldest first
        self._in_flight: deque[_Pass] = deque(maxlen=MAX_IN_FLIGHT)
        self._arrived_at = 0.0
        self._last_output_at = 0.0

    def scheduled(self, output: Any) -> None:
        """Stamp and count a pass that is about to run. Empty outputs are not passes.

        It is counted here and not when its output comes: vLLM has just built the lists, so they are
        still in the processor's caches, and with a batch in flight nobody waits for this moment.
        """
        # HOT PATH: 256 decoding requests, 7 us.
        try:
            if output.total_num_scheduled_tokens > 0:
                now, scheduled = self._clock.monotonic(), None
                try:
                    scheduled = self._count(output)
                finally:
                    self._in_flight.append((output, now, scheduled))
            else:
                self._memory.forget(output.finished_req_ids)
            # Should the step take long, this is what heartbeats say waits (decision D-3).
            self._publisher.note_queue(self.read_queue())
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._failed("scheduled", error)

    def arrived(self) -> None:
        """Note when the model's output came, before the scheduler spends time on it."""
        self._arrived_at = self._clock.monotonic()

    def finished(self, output: Any) -> None:
        """Publish the pass, or note the queue after an empty step."""
        # HOT PATH: 3 us, whatever ran and whatever waits.
        try:
            if output.total_num_scheduled_tokens > 0:
                in_flight = self._in_flight
                if in_flight and in_flight[0][0] is output:
                    _, scheduled_at, scheduled = in_flight.popleft()
                else:
                    scheduled_at, scheduled = self._take(output)
                since = self._last_output_at or scheduled_at
                self._last_output_at = now = self._arrived_at
                if scheduled is not None:  # else it has been said that counting it failed
                    # Identity and number are the publisher's to stamp.
                    self._publisher.publish(
                        ForwardPassMetrics(
                            FPM_VERSION, "", 0, 0, now - since if since else 0.0, scheduled, self.read_queue()
                        )
                    )
            else:
                self._last_output_at = 0.0
                self._publisher.note_queue(self.read_queue())
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._failed("finished", error)

    def _count(self, output: Any) -> ScheduledRequestMetrics:
        new = output.scheduled_new_reqs
        return scheduled_metrics(output, known_lengths(new) if new else (), self._memory, self._running)

    def _take(self, output: Any) -> tuple[float, ScheduledRequestMetrics | None]:
        """Return when ``output``, which is not the oldest in flight, was scheduled and what it ran.

        Outputs come back in the order of their schedules. One that was never seen leaves the others
        alone; one that overtook others drops them, for they will not come.
        """
        in_flight = self._in_flight
        if not any(entry[0] is output for entry in in_flight):
            return 0.0, self._count(output)
        while in_flight[0][0] is not output:
            in_flight.popleft()
        _, scheduled_at, scheduled = in_flight.popleft()
        return scheduled_at, scheduled

    def queue_changed(self) -> None:
        """Note what waits: requests came or went between two steps, and a paused engine makes no step."""
        # HOT PATH: 1 us for each request that comes, once, and for each call that aborts some.
        try:
            self._publisher.note_queue(self.read_queue())
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._failed("queue_changed", error)

    def set_worker_id(self, worker_id: str) -> None:
        """Write ``worker_id`` into every later message, heartbeats included (decision D-15)."""
        self._publisher.set_worker_id(worker_id)

    def close(self) -> None:
        """Send what is queued and stop the publisher. May be called again."""
        try:
            self._publisher.shutdown()
        except Exception as error:  # noqa: BLE001  boundary: the engine's shutdown goes on
            self._failed("close", error)

    def _failed(self, where: str, error: Exception) -> None:
        self.failures += 1
        kind = (where, type(error).__name__)
        self._quiet.error(
            kind,
            f"Forward Pass Metrics: internal error in {where} ({error!r}); serving goes on",
            exc_info=True,
        )
