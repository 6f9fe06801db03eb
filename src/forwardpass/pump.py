"""Knows how to carry items from a thread that must not wait to a thread that does the work.

One bounded deque, one thread, one life cycle. The producer appends and nobody is woken: the thread polls.
Handing an item to a *sleeping* thread costs the producer 4 to 9 microseconds (``queue.Queue``, ``Event``),
appending to a polled deque about one; the price is a latency of at most one tick. A look takes a core from
somebody for 50 to 300 microseconds, so there are as few as that latency allows, and fewer in a silence. A
producer about to fall silent can ask for one.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Generic, NamedTuple, Protocol, TypeVar

from forwardpass.clock import Clock, SystemClock
from forwardpass.counters import Counters, DropReason
from forwardpass.quiet import QuietLog

__all__ = ["TICK_SECONDS", "Overflow", "Pump", "PumpTask", "StopReport"]

logger = logging.getLogger(__name__)

T = TypeVar("T")

BATCH_ITEMS = 256
TICK_SECONDS = 0.02
"""After a look that found something. One that found nothing doubles it."""
QUIET_TICK_SECONDS = 0.05
"""The longest tick."""
DRAIN_SHARE = 0.9  # of a stop's time; the rest is for the task's close


class PumpTask(Protocol[T]):
    """What a pump's thread does. Every method but ``forked`` runs in that thread."""

    def open(self) -> None:
        """Acquire sockets and files. Its exception is raised by :meth:`Pump.start`."""
        ...

    def tick(self, now: float, queued: int) -> float:
        """Do what is due at monotonic ``now``, before ``queued`` waiting items are taken.

        Returns the seconds until it wants to be called again, at the latest; it is called before every
        batch as well. Not called any more once a stop has begun.
        """
        ...

    def take(self, items: list[T]) -> None:
        """Handle items in order, and count each as delivered or lost.

        What it left uncounted when it raises is counted as lost to an internal error.
        """
        ...

    def close(self, deadline: float) -> None:
        """Finish by monotonic ``deadline`` and release what ``open`` acquired."""
        ...

    def forked(self) -> None:
        """Forget the parent's resources untouched (in the child, before anything else). Must not raise."""
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
    """Accepted items that were not delivered, over the pump's whole life."""


class _State(Enum):
    NEW = "new"
    OPEN = "open"
    PAUSED = "paused"
    CLOSED = "closed"
    FORKED = "forked"
    """In a child process: the next offer starts a thread."""


_live: weakref.WeakSet[Pump[object]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for pump in list(_live):
        pump._become_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Pump(Generic[T]):
    """A bounded queue with a thread of its own.

    ``offer`` is for one producer thread; several hold a lock around it. ``start`` waits until the task has
    opened; ``stop`` is idempotent, bounded, and may come from any thread or from a signal handler. A process
    that never calls ``stop`` ends without waiting for the thread (a daemon).

    In a child made by ``fork`` the queue and the counts begin empty. The first offer there opens the task
    anew, or is refused as ``closed`` if ``restart_after_fork`` is false. The offer that makes ``wake_items``
    wait wakes the thread.
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
        restart_after_fork: bool = True,
        wake_items: int | None = None,
    ) -> None:
        self.counters = counters
        self._task = task
        self._name = name
        self._capacity = capacity
        self._evict = overflow is Overflow.DROP_OLDEST
        self._clock: Clock = clock or SystemClock()
        self._wake_items = wake_items or capacity + 1  # a queue never holds so many
        self._log = QuietLog(logger, self._clock)
        self._tick_seconds, self._restart_after_fork = tick_seconds, restart_after_fork
        self._state, self._before_pause = _State.NEW, _State.OPEN
        self._fresh_parts()
        _live.add(self)  # type: ignore[arg-type]

    def _fresh_parts(self) -> None:
        self._queue: deque[T] = deque()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._ready = threading.Event()
        # Reentrant: a signal handler may stop the pump while the same thread is stopping it.
        # The pump's own thread never takes the first: whoever holds it may wait for the thread.
        self._lock = threading.RLock()
        self._settle_lock = threading.RLock()
        # Not Thread.join: a signal handler's exception makes Python 3.11 take the thread for ended,
        # and what it is still draining would be counted as lost.
        self._ended = False
        self._running = threading.Lock()  # held while there is a thread
        self._open_error: BaseException | None = None
        self._reopening = False
        self._deadline: float | None = None
        self._drain_until = 0.0
        self._tick_now = self._tick_seconds

    # --- the producer's side -------------------------------------------------------------------

    def offer(self, item: T) -> bool:
        """Queue ``item`` and return True, or count it as refused and return False.

        Never blocks, locks, logs or raises.
        """
        # HOT PATH: one append, budget 1 us (benchmarks/bench_handover.py).
        self.counters.offered += 1
        if self._state is not _State.OPEN and not self._reopen():
            return False
        queue = self._queue
        if len(queue) >= self._capacity and not self._make_room():
            return False
        queue.append(item)
        if len(queue) == self._wake_items:
            self._wake.set()
        return True

    def offer_many(self, items: Sequence[T]) -> int:
        """Queue ``items`` in order, as :meth:`offer` does; return how many were accepted."""
        before = len(queue := self._queue)
        if self._state is not _State.OPEN or before + len(items) > self._capacity:
            return sum(map(self.offer, items))
        self.counters.offered += len(items)
        queue.extend(items)
        if before < self._wake_items <= before + len(items):
            self._wake.set()
        return len(items)

    def hurry(self) -> None:
        """Let the thread look at once. Costs what offering spares; any thread."""
        self._wake.set()

    def _reopen(self) -> bool:
        state = self._state
        if state is _State.FORKED:
            self._reopening = True
            if self._launch():
                return True
        self.counters.refuse(DropReason.PAUSED if state is _State.PAUSED else DropReason.CLOSED)
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
        with self._lock:
            if self._state in (_State.OPEN, _State.FORKED):
                self._before_pause, self._state = self._state, _State.PAUSED

    def resume(self) -> None:
        """Accept offers again after :meth:`pause`."""
        with self._lock:
            if self._state is _State.PAUSED:
                self._state = self._before_pause

    @property
    def paused(self) -> bool:
        """Whether offers are refused."""
        return self._state is _State.PAUSED

    @property
    def queued(self) -> int:
        """Items that wait to be taken."""
        return len(self._queue)

    # --- life cycle ------------------------------------------------------------------------------

    def start(self, timeout: float = 10.0) -> None:
        """Start the thread and wait until its task is open.

        Raises what ``open`` raised, ``TimeoutError`` if it took too long, and ``RuntimeError`` if no
        thread can be started or the pump was started or stopped before. The pump is then closed.
        """
        if self._state is not _State.NEW:
            raise RuntimeError(f"{self._name} was already started or stopped")
        try:
            if not self._launch():
                raise RuntimeError(f"{self._name}: no thread can be started")
            if not self._ready.wait(timeout):
                raise TimeoutError(f"{self._name} did not open within {timeout} s")
        except BaseException:
            self.stop(0.0)  # a late or interrupted start must not leave a thread behind
            raise
        if self._open_error is not None:
            raise self._open_error

    def stop(self, timeout: float) -> StopReport:
        """Stop accepting, drain, close the task; return within ``timeout`` seconds. Idempotent.

        An offer that another thread makes at this very moment may stay pending until the next stop.
        """
        with self._lock:
            self._state = _State.CLOSED
            thread = self._thread
            if self._deadline is None:
                now = self._clock.monotonic()
                self._drain_until = now + timeout * DRAIN_SHARE
                self._deadline = now + timeout
                self._wake.set()
        waits = thread is not None and thread is not threading.current_thread() and not self._ended
        if waits and self._running.acquire(timeout=min(max(0.0, timeout), threading.TIMEOUT_MAX)):
            self._running.release()
        finished = thread is None or self._ended
        if finished:
            self._lose_queue(DropReason.DEADLINE)  # an offer may have raced with the thread's last look
        counts = self.counters.snapshot()
        return StopReport(finished, counts.accepted - counts.delivered)

    def _launch(self) -> bool:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        with self._lock:
            if self._thread is not None:  # launched already, against the rule of one producer
                return True
            self._state, self._thread = _State.OPEN, thread
            self._running.acquire()
            try:
                thread.start()
            except RuntimeError:  # out of threads, or the interpreter is shutting down
                self._running.release()
                self._state, self._thread = _State.CLOSED, None
                return False
        return True

    def _become_child(self) -> None:
        after = _State.FORKED if self._restart_after_fork else _State.CLOSED
        if self._state is _State.OPEN:
            self._state = after
        elif self._state is _State.PAUSED:
            self._before_pause = after
        self._fresh_parts()
        self.counters.reset()
        self._task.forked()

    # --- the thread's side -----------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Do one round of work and return how long to sleep. The thread calls it; tests may too."""
        wanted = self._tick(now)
        batch = self._next_batch()
        if batch:
            self._take(batch)
        if self._queue:
            return 0.0
        least = self._tick_seconds
        self._tick_now = least if batch else max(least, min(QUIET_TICK_SECONDS, self._tick_now * 2))
        return max(0.0, min(self._tick_now, wanted))

    def _tick(self, now: float) -> float:
        try:
            return self._task.tick(now, len(self._queue))
        except Exception as error:  # noqa: BLE001  boundary: it must not end the thread or starve the queue
            self._fault("tick", f"internal error in a tick: {error!r}")
            return QUIET_TICK_SECONDS

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
        except Exception as error:  # noqa: BLE001  boundary: a bug must cost these items, not the thread
            missing = max(0, len(batch) - (self.counters.settled - before))
            self.counters.lose(DropReason.INTERNAL_ERROR, missing)
            self._fault("take", f"lost {missing} items to an internal error: {error!r}")

    def _fault(self, kind: str, message: str) -> None:
        self.counters.faults += 1
        self._log.error(kind, f"{self._name}: {message}", exc_info=True)

    def _run(self) -> None:
        try:
            self._open_and_work()
        finally:
            self._ended = True
            self._running.release()

    def _open_and_work(self) -> None:
        try:
            self._task.open()
        except BaseException as error:  # noqa: BLE001  boundary: start() raises it
            self._fail_open(error)
            return
        self._ready.set()
        try:
            while self._deadline is None:
                delay = self.turn(self._clock.monotonic())
                if delay > 0 and self._wake.wait(delay):
                    self._wake.clear()  # a stop has set its deadline before it wakes
            self._drain(self._drain_until)
        finally:  # also if the thread is ended from outside: nothing may be accepted for nobody
            self._state = _State.CLOSED
            self._lose_queue(DropReason.DEADLINE)
            self._close(self._deadline or self._clock.monotonic())

    def _fail_open(self, error: BaseException) -> None:
        self._open_error = error
        self._state = _State.CLOSED
        self._lose_queue(DropReason.CLOSED)
        if self._reopening:  # nobody waits for this error
            self._fault("open", f"cannot open after a fork: {error!r}")
        self._ready.set()

    def _drain(self, until: float) -> None:
        while self._queue and self._clock.monotonic() < until:
            self._take(self._next_batch())

    def _close(self, deadline: float) -> None:
        try:
            self._task.close(deadline)
        except Exception as error:  # noqa: BLE001  boundary: closing is best effort
            self._fault("close", f"internal error while closing: {error!r}")

    def _lose_queue(self, reason: DropReason) -> None:
        # of several threads that stop the pump, one counts each item
        with self._settle_lock, suppress(IndexError):
            while True:
                self._queue.popleft()
                self.counters.lose(reason)
