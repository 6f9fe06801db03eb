"""Knows how to carry items from a thread that must not wait to a thread that does the work.

One bounded deque, one thread, one life cycle. The producer appends and nobody is woken: the thread
polls. Handing an item to a *sleeping* thread costs the producer 4 to 9 microseconds (``queue.Queue``,
``Event``), appending to a polled deque about one; the price is a latency of at most one tick.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from forwardpass.clock import Clock, SystemClock
from forwardpass.counters import Counters, DropReason

__all__ = ["Overflow", "Pump", "PumpTask", "StopReport"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_ITEMS = 256
TICK_SECONDS = 0.005
QUIET_TICK_SECONDS = 0.05
QUIET_AFTER_SECONDS = 1.0


class PumpTask(Protocol[T]):
    """What a pump's thread does. Every method but ``forked`` runs in that thread."""

    def open(self) -> None:
        """Acquire sockets and files. Its exception is raised by :meth:`Pump.start`."""
        ...

    def tick(self, now: float, queued: int) -> float:
        """Do what is due at monotonic ``now``, before ``queued`` waiting items are taken.

        Returns the seconds until it wants to be called again (at the latest).
        """
        ...

    def take(self, items: list[T]) -> None:
        """Handle items in order, and count each as delivered or lost."""
        ...

    def close(self, deadline: float) -> None:
        """Finish by monotonic ``deadline`` and release what ``open`` acquired."""
        ...

    def forked(self) -> None:
        """Forget the parent's resources without touching them (in the child, before anything else)."""
        ...


class Overflow(Enum):
    """Which item goes when the queue is full."""

    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"


class StopReport(NamedTuple):
    """What :meth:`Pump.stop` left behind."""

    finished: bool
    """The thread ended in time."""
    undelivered: int
    """Accepted items that were not delivered."""


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"
    FORKED = "forked"


_live: weakref.WeakSet[Pump[object]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pump in list(_live):
        pump._become_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Pump(Generic[T]):
    """A bounded queue with a thread of its own.

    ``offer`` is for one producer thread; callers with several hold a lock around it. ``start`` waits
    until the task has opened; ``stop`` is idempotent and bounded.
    """

    def __init__(
        self,
        task: PumpTask[T],
        *,
        name: str,
        capacity: int,
        counters: Counters,
        overflow: Overflow = Overflow.DROP_NEWEST,
        clock: Clock | None = None,
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        self.counters = counters
        self._task = task
        self._name = name
        self._capacity = capacity
        self._evict = overflow is Overflow.DROP_OLDEST
        self._clock: Clock = clock or SystemClock()
        self._tick_seconds = tick_seconds
        self._state = _State.NEW
        self._queue: deque[T] = deque()
        self._fresh_thread_parts()
        _live.add(self)  # type: ignore[arg-type]

    def _fresh_thread_parts(self) -> None:
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ready = threading.Event()
        self._stop_lock = threading.Lock()
        self._open_error: BaseException | None = None
        self._deadline: float | None = None
        self._last_busy = self._clock.monotonic()

    # --- the producer's side -------------------------------------------------------------------

    def offer(self, item: T) -> bool:
        """Queue ``item`` and return True, or count it as refused and return False.

        Never blocks, locks, logs or raises.
        """
        # HOT PATH: one append, budget 1 us (benchmarks/handover.py).
        self.counters.offered += 1
        if self._state is not _State.OPEN and not self._reopen():
            return False
        queue = self._queue
        if len(queue) >= self._capacity and not self._make_room():
            return False
        queue.append(item)
        return True

    def _reopen(self) -> bool:
        if self._state is _State.FORKED:
            self._launch()
            return True
        paused = self._state is _State.PAUSED
        self.counters.refuse(DropReason.PAUSED if paused else DropReason.CLOSED)
        return False

    def _make_room(self) -> bool:
        if not self._evict:
            self.counters.refuse(DropReason.QUEUE_FULL)
            return False
        try:
            self._queue.popleft()
        except IndexError:  # the consumer was faster: there is room now
            return True
        self.counters.evicted += 1
        return True

    def pause(self) -> None:
        """Refuse offers (reason ``paused``) until :meth:`resume`; what is queued still goes out."""
        if self._state is _State.OPEN:
            self._state = _State.PAUSED

    def resume(self) -> None:
        """Accept offers again after :meth:`pause`."""
        if self._state is _State.PAUSED:
            self._state = _State.OPEN

    @property
    def paused(self) -> bool:
        """Whether offers are refused because of :meth:`pause`."""
        return self._state is _State.PAUSED

    @property
    def queued(self) -> int:
        """Items that wait to be taken."""
        return len(self._queue)

    # --- life cycle ------------------------------------------------------------------------------

    def start(self, timeout: float = 10.0) -> None:
        """Start the thread and wait until its task is open. Raises what ``open`` raised."""
        if self._state is not _State.NEW:
            raise RuntimeError(f"pump {self._name} was already started")
        self._launch()
        if not self._ready.wait(timeout):
            self._state = _State.CLOSED
            raise TimeoutError(f"{self._name} did not open within {timeout} s")
        if self._open_error is not None:
            self._state = _State.CLOSED
            raise self._open_error

    def stop(self, timeout: float) -> StopReport:
        """Stop accepting, drain for at most ``timeout`` seconds, close the task. Idempotent."""
        with self._stop_lock:
            self._state = _State.CLOSED
            thread = self._thread
            if thread is not None and self._deadline is None:
                self._deadline = self._clock.monotonic() + timeout
                self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout + 1.0)
            if not thread.is_alive():
                self._lose_queue()  # an offer may have raced with the thread's last look
        counts = self.counters.snapshot()
        undelivered = counts.accepted - counts.delivered
        return StopReport(thread is None or not thread.is_alive(), undelivered)

    def _launch(self) -> None:
        self._state = _State.OPEN
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def _become_child(self) -> None:
        was_running = self._state in (_State.OPEN, _State.PAUSED)
        self._queue = deque()
        self.counters.__init__()  # type: ignore[misc]
        self._fresh_thread_parts()
        self._state = _State.FORKED if was_running else _State.CLOSED
        self._task.forked()

    # --- the thread's side -----------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Do one round of work and return how long to sleep. The thread calls it; tests may too."""
        wanted = self._task.tick(now, len(self._queue))
        batch = self._next_batch()
        if batch:
            self._last_busy = now
            self._take(batch)
        if self._queue:
            return 0.0
        quiet = now - self._last_busy >= QUIET_AFTER_SECONDS
        tick = max(self._tick_seconds, QUIET_TICK_SECONDS) if quiet else self._tick_seconds
        return max(0.0, min(tick, wanted))

    def _next_batch(self) -> list[T]:
        queue, batch = self._queue, []
        try:
            for _ in range(min(len(queue), BATCH_ITEMS)):
                batch.append(queue.popleft())
        except IndexError:  # the producer evicted it meanwhile
            pass
        return batch

    def _take(self, batch: list[T]) -> None:
        before = self.counters.settled
        try:
            self._task.take(batch)
        except Exception:  # boundary: a bug must cost these items, not the thread
            missing = len(batch) - (self.counters.settled - before)
            self.counters.lose(DropReason.INTERNAL_ERROR, max(0, missing))
            logger.exception("%s: lost %d items to an internal error", self._name, missing)

    def _run(self) -> None:
        try:
            self._task.open()
        except BaseException as error:  # noqa: BLE001  boundary: start() raises it
            self._open_error = error
            self._state = _State.CLOSED
            self._lose_queue()
            self._ready.set()
            return
        self._ready.set()
        while self._deadline is None:
            delay = self._guarded_turn()
            if delay > 0:
                self._wake.wait(delay)
        self._drain(self._deadline)

    def _guarded_turn(self) -> float:
        try:
            return self.turn(self._clock.monotonic())
        except Exception:  # boundary: a failing tick must not end the thread
            logger.exception("%s: internal error", self._name)
            return QUIET_TICK_SECONDS

    def _drain(self, deadline: float) -> None:
        while self._queue and self._clock.monotonic() < deadline:
            self._take(self._next_batch())
        self._lose_queue()
        try:
            self._task.close(deadline)
        except Exception:  # boundary: closing is best effort
            logger.exception("%s: internal error while closing", self._name)

    def _lose_queue(self) -> None:
        lost = len(self._queue)
        self._queue.clear()
        if lost:
            self.counters.lose(DropReason.DEADLINE, lost)
