"""Knows how a pass that the engine's thread only noted becomes a message, on the publisher's thread.

Counting a pass takes the processor longer than handing it over, and on the engine's thread it would find
neither code nor data in the caches, for vLLM's own step has just gone through them. A scheduler output does
not change once the scheduler has taken in its results, so it can be counted a few milliseconds later, while
the engine waits for its device.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import Any

from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.engines.vllm.extract import Lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.engines.vllm.waiting import Snapshot, snapshot_metrics
from forwardpass.errors import EngineError
from forwardpass.quiet import QuietLog
from forwardpass.wire.schema import FPM_VERSION, ForwardPassMetrics, ScheduledRequestMetrics

__all__ = ["MAX_UNCOUNTED", "Pass", "PassCounter"]

logger = logging.getLogger(__name__)

MAX_UNCOUNTED = 256
"""Passes that may wait to be counted before the engine's thread does it itself, two for each that comes: the
publisher's thread is not at work (it looks every 20 ms), and outputs of large batches take memory."""


class Pass(Struct, eq=False):
    """One scheduler output on its way to a message."""

    counter: PassCounter
    output: Any
    """``None`` once counted."""
    lengths: Sequence[Lengths]
    scheduled_at: float
    """Monotonic seconds; 0.0 if that was not seen."""
    wall_time: float = 0.0
    """Seconds, as in :class:`~forwardpass.wire.schema.ForwardPassMetrics`."""
    queue: Snapshot | None = None
    scheduled: ScheduledRequestMetrics | None = None
    """What it ran, once counted."""

    def build(self) -> ForwardPassMetrics:
        """Return the message; identity and number are the publisher's to stamp.

        Raises :class:`~forwardpass.errors.EngineError` if the pass or what waited could not be counted.
        """
        scheduled = self.scheduled or self.counter.count(self)
        if self.queue is None:
            raise EngineError("what waited when a forward pass ended is not known")
        return ForwardPassMetrics(
            FPM_VERSION, "", 0, 0, self.wall_time, scheduled, snapshot_metrics(self.queue)
        )


class PassCounter:
    """Counts passes in the order in which they ran, whichever thread asks first.

    The order matters because a pass says only what is new: how long a prompt is, for example, is known
    from the pass that began it. So passes that will not be published are counted as well.
    """

    def __init__(self, clock: Clock) -> None:
        self.failures = 0
        """Passes that could not be counted."""
        self.memory = RequestMemory()
        # Twice what may wait, should the other thread hold the lock for ever (a fork in the middle).
        self._uncounted: deque[Pass] = deque(maxlen=2 * MAX_UNCOUNTED)
        self._lock = Lock()
        self._quiet = QuietLog(logger, clock)

    def ran(self, done: Pass) -> None:
        """Take the next pass (the engine's thread)."""
        # HOT PATH: one append.
        self._uncounted.append(done)
        if len(self._uncounted) > MAX_UNCOUNTED:
            self.catch_up(2)

    def catch_up(self, limit: int = MAX_UNCOUNTED) -> None:
        """Count up to ``limit`` passes that wait, unless another thread is at it. Never blocks."""
        errors: list[Exception] = []
        if self._lock.acquire(blocking=False):
            try:
                while self._uncounted and limit > 0:
                    self._count_next(errors)
                    limit -= 1
            finally:
                self._lock.release()
        self._tell(errors)

    def count(self, wanted: Pass) -> ScheduledRequestMetrics:
        """Return what ``wanted`` ran, those before it counted first (the publisher's thread).

        Raises :class:`~forwardpass.errors.EngineError` if that could not be counted.
        """
        errors: list[Exception] = []
        with self._lock:
            while wanted.scheduled is None and self._uncounted:
                self._count_next(errors)
        self._tell(errors)
        if wanted.scheduled is None:
            raise EngineError("a forward pass could not be counted")
        return wanted.scheduled

    def _count_next(self, errors: list[Exception]) -> None:
        """Count the oldest one. Only who holds the lock takes from that end."""
        done = self._uncounted.popleft()
        try:
            done.scheduled = scheduled_metrics(done.output, done.lengths, self.memory)
        except Exception as error:  # noqa: BLE001  boundary: a bug must cost one pass, not those after it
            self.failures += 1
            errors.append(error)
        done.output = None  # nothing holds the engine's lists any longer than needed
        done.lengths = ()

    def _tell(self, errors: list[Exception]) -> None:
        """Say what failed, without the lock: whoever reads the log may be slow."""
        for error in errors:
            self._quiet.error(
                type(error).__name__,
                f"Forward Pass Metrics: internal error while counting a pass ({error!r}); serving goes on",
                exc_info=error,
            )
