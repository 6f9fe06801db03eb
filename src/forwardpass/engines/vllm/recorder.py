"""Knows when a pass began and ended and hands it to the publisher; the engine never notices.

The scheduler subclass calls its methods. Whatever goes wrong in them stays in here: counted, said once
and then once a minute, and serving goes on.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol

from forwardpass.clock import Clock, SystemClock
from forwardpass.engines.vllm.extract import Lengths, known_lengths
from forwardpass.engines.vllm.passes import Pass, PassCounter
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE, Snapshot, snapshot_metrics
from forwardpass.quiet import QuietLog
from forwardpass.wire.schema import QueuedRequestMetrics

if TYPE_CHECKING:  # the publisher's module loads zmq
    from forwardpass.publish.publisher import LatePublisher

__all__ = ["MAX_IN_FLIGHT", "NullRecorder", "PassRecorder", "Queues", "Recorder"]

logger = logging.getLogger(__name__)

MAX_IN_FLIGHT = 256
"""Passes remembered between schedule and output. Batches in flight are as many as pipeline stages, two
at least under async scheduling; an engine that never returns an output must not grow us."""


_SOME = (None,)
"""Stands for requests that are never all finished."""


class Queues(Protocol):
    """What waits."""

    def read(self, now: float) -> Snapshot:
        """Return what waits at this moment, which is monotonic time ``now`` (the engine's thread)."""
        ...

    def waiting_now(self) -> QueuedRequestMetrics:
        """Return the same (any thread); right only if the engine touched no queue meanwhile."""
        ...


class Recorder(Protocol):
    """What the scheduler delegates to."""

    now: Callable[[], float]
    """Returns monotonic seconds."""
    step: int
    """Odd while vLLM schedules or takes an output in; the scheduler adds one before and after."""

    def scheduled(self, output: Any) -> None:
        """Take a scheduler output that is about to run."""
        ...

    def finished(self, output: Any, arrived_at: float) -> None:
        """Take the scheduler output whose results the scheduler has just taken in; the model's output
        came at ``arrived_at``.
        """
        ...

    def set_worker_id(self, worker_id: str) -> None:
        """Write ``worker_id`` into every later message, heartbeats included (decision D-15)."""
        ...

    def waiting(self) -> QueuedRequestMetrics:
        """Return what waits in the queues at this moment."""
        ...

    def pause(self) -> None:
        """Publish nothing, heartbeats included, until :meth:`resume`: a benchmark measures the engine."""
        ...

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        ...

    def close(self) -> None:
        """Stop the publisher."""
        ...


def _no_time() -> float:
    return 0.0


class NullRecorder:
    """Records nothing: Forward Pass Metrics are off for this engine."""

    __slots__ = ("step",)

    now = staticmethod(_no_time)

    def __init__(self) -> None:
        self.step = 0

    def scheduled(self, output: Any) -> None:
        """Do nothing."""

    def finished(self, output: Any, arrived_at: float) -> None:
        """Do nothing."""

    def set_worker_id(self, worker_id: str) -> None:
        """Do nothing."""

    def waiting(self) -> QueuedRequestMetrics:
        """Return an empty queue: none is read."""
        return EMPTY_QUEUE

    def pause(self) -> None:
        """Do nothing."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class PassRecorder:
    """Notes a scheduler's outputs, to be counted by the publisher's thread. Every method is for the engine's
    thread alone.

    ``queues`` knows the waiting requests as they are at that moment. ``wall_time`` is the period
    between consecutive outputs; for the first pass after an empty step, when there is no output to
    count from, it is the time from that pass's schedule to its output. So idle time is never counted,
    and with several batches in flight it is a period, not one batch's latency.

    ``unfinished`` holds the engine's requests. A pass that leaves none goes out at once: a server that is
    stopped after its last answer kills its engine cores (vLLM's default), and the engine has the time now.
    """

    __slots__ = (
        "__weakref__",
        "_counter",
        "_errors",
        "_in_flight",
        "_last_output_at",
        "_publisher",
        "_quiet",
        "_unfinished",
        "now",
        "queues",
        "step",
    )

    def __init__(
        self,
        publisher: LatePublisher,
        queues: Queues,
        *,
        unfinished: Sized = _SOME,
        clock: Clock | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.now: Callable[[], float] = clock.monotonic
        self.step = 0
        self.queues = queues
        self._publisher = publisher
        self._unfinished = unfinished
        self._counter = PassCounter(clock)
        self._errors = 0
        self._quiet = QuietLog(logger, clock)
        self._in_flight: deque[Pass] = deque()  # oldest first
        self._last_output_at = 0.0
        publisher.watch(_EngineView(self))

    @property
    def failures(self) -> int:
        """Calls and counts that failed, by a bug of ours or a vLLM that is not what ``compat.py`` says."""
        return self._errors + self._counter.failures

    # What follows costs the engine what it costs with cold caches, some 1 to 2 us for each function that is
    # called. So it notes, in as few of them as can be, and counts nothing.

    def scheduled(self, output: Any) -> None:
        """Note an output that is about to run."""
        # HOT PATH: 3 us (benchmarks/bench_vllm_scheduler.py).
        try:
            new, in_flight = output.scheduled_new_reqs, self._in_flight
            lengths: Sequence[Lengths] = ()
            if new:
                try:
                    lengths = known_lengths(new)
                except Exception as error:  # noqa: BLE001  boundary: the pass is noted, and cannot be counted
                    self._failed("lengths", error)
            in_flight.append(Pass(self._counter, output, lengths, self.now()))
            if len(in_flight) > MAX_IN_FLIGHT:
                self._counter.ran(in_flight.popleft())
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._failed("scheduled", error)

    def finished(self, output: Any, arrived_at: float) -> None:
        """Publish the pass, or note what waits after an empty step, which ends the series of outputs."""
        # HOT PATH: 5 us, whatever ran and whatever waits.
        try:
            in_flight = self._in_flight
            first = bool(in_flight) and in_flight[0].output is output
            if output.total_num_scheduled_tokens > 0:
                done = in_flight.popleft() if first else self._take(output)
                self._counter.ran(done)
                since = self._last_output_at or done.scheduled_at
                self._last_output_at = arrived_at
                done.wall_time = arrived_at - since if since else 0.0
                try:
                    done.queue = self.queues.read(arrived_at)
                finally:  # without a queue it cannot be built, which leaves a gap
                    self._publisher.publish_later(done)
                    if not self._unfinished:
                        self._publisher.hurry()
            else:
                self._last_output_at = 0.0
                if first:  # else it waits for its turn: what finished before it must be remembered till then
                    self._counter.ran(in_flight.popleft())
                # For heartbeats, should the next step be so long that nobody can be asked (decision D-3).
                self._publisher.note_queue(snapshot_metrics(self.queues.read(arrived_at)))
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._failed("finished", error)

    def _take(self, output: Any) -> Pass:
        """Return the pass of ``output``, which is not the oldest in flight.

        Outputs come back in the order of their schedules. One that was never seen leaves the others
        alone; one that overtook others drops them, for they will not come. They are counted all the
        same, not published.
        """
        in_flight = self._in_flight
        if not any(noted.output is output for noted in in_flight):
            return Pass(self._counter, output, known_lengths(output.scheduled_new_reqs), 0.0)
        while in_flight[0].output is not output:
            self._counter.ran(in_flight.popleft())
        return in_flight.popleft()

    def set_worker_id(self, worker_id: str) -> None:
        """Write ``worker_id`` into every later message, heartbeats included (decision D-15)."""
        self._publisher.set_worker_id(worker_id)

    def waiting(self) -> QueuedRequestMetrics:
        """Return what waits in the queues at this moment."""
        return snapshot_metrics(self.queues.read(self.now()))

    def pause(self) -> None:
        """Publish nothing, heartbeats included, until :meth:`resume`: a benchmark measures the engine."""
        self._publisher.pause()

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        self._publisher.resume()

    def close(self) -> None:
        """Send what is queued and stop the publisher. May be called again."""
        try:
            self._publisher.shutdown()
        except Exception as error:  # noqa: BLE001  boundary: the engine's shutdown goes on
            self._failed("close", error)

    def _failed(self, where: str, error: Exception) -> None:
        self._errors += 1
        kind = (where, type(error).__name__)
        self._quiet.error(
            kind,
            f"Forward Pass Metrics: internal error in {where} ({error!r}); serving goes on",
            exc_info=True,
        )


class _EngineView:
    """A recorder as the publisher's thread sees it. It does not keep the engine alive."""

    def __init__(self, recorder: PassRecorder) -> None:
        self._recorder = weakref.ref(recorder)

    def waiting_now(self) -> QueuedRequestMetrics | None:
        """Return what waits, or ``None`` while the engine has its hands in the queues.

        While it schedules, requests that cannot run yet are in no queue: what waits can only be told if no
        such moment began before the last request was looked at.
        """
        recorder = self._recorder()
        if recorder is None:
            return EMPTY_QUEUE
        step = recorder.step
        if step % 2:
            return None
        try:
            waiting = recorder.queues.waiting_now()
        except RuntimeError:  # a queue that changed while it was gone through
            return None
        return waiting if recorder.step == step else None

    def catch_up(self) -> None:
        """Count passes that nobody will ask for."""
        recorder = self._recorder()
        if recorder is not None:
            recorder._counter.catch_up()
