"""Knows which traces are open in this process, who still needs them, and when the last one lets go.

All endpoints of one producer share one sink: one queue, one writer, one retention budget. Handles are
leases. When the last is released the sink drains and closes; a later handle for the same producer waits
until the old writer has finished and then gets a new sink, which goes on at the next index.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from collections.abc import Sequence

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.config.variables import OUTPUT_PATH
from forwardpass.errors import TraceError, TracePathError
from forwardpass.trace.ledger import LedgerEvent, Origin
from forwardpass.trace.record import TraceSource
from forwardpass.trace.sink import TraceCounts, TraceSink
from forwardpass.wire.keys import Endpoint

__all__ = ["TraceHandle", "TraceRegistry"]

logger = logging.getLogger(__name__)


class _Slot:
    """The state of one producer: being opened, a sink with its leases, or a failure, which is final."""

    __slots__ = ("closed", "closing", "leases", "opened", "sink", "sources")

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.sink: TraceSink | None = None
        """Once opened; ``None`` then for a failure."""
        self.leases = 0
        self.closing = False
        self.closed = threading.Event()
        self.sources: dict[TraceSource, TraceSource] = {}


_registries: weakref.WeakSet[TraceRegistry] = weakref.WeakSet()
_open_sinks: set[TraceSink] = set()
"""Sinks whose thread may still run, held here so that their last rows are written at exit whoever forgot
them.
"""


def _close_at_exit() -> None:
    clock = SystemClock()
    begun = clock.monotonic()
    for sink in list(_open_sinks):
        sink.close(max(0.0, sink.drain_seconds - (clock.monotonic() - begun)))


def _after_fork_in_child() -> None:
    for registry in list(_registries):
        registry._become_child()


atexit.register(_close_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class TraceRegistry:
    """The traces of one process, by producer. Safe to use from several threads.

    ``origin`` is what is known of the engine; it stands in the ledger beside each segment.
    """

    def __init__(
        self,
        settings: TraceSettings,
        *,
        clock: Clock | None = None,
        origin: Origin = Origin(),  # noqa: B008  an immutable value
    ) -> None:
        self._settings = settings
        self._origin = origin
        self._clock: Clock = clock or SystemClock()
        self._slots: dict[str, _Slot] = {}
        # Reentrant: a signal handler may release a handle while its thread is in here.
        self._lock = threading.RLock()
        _registries.add(self)

    def acquire(self, producer_id: str, endpoint: Endpoint) -> TraceHandle | None:
        """Return a lease on the producer's trace, or ``None`` if it cannot be written.

        Blocks while the folder is proven writable, and while an earlier sink of this producer closes, so
        call it off an event loop. A failure is logged once and is final for this producer here.
        """
        while True:
            with self._lock:
                slot = self._slots.get(producer_id)
                is_new = slot is None
                if slot is None:
                    slot = self._slots[producer_id] = _Slot()
                elif slot.opened.is_set():
                    if slot.sink is None:
                        return None
                    if not slot.closing:
                        return self._lease(slot, slot.sink, endpoint)
            if is_new:
                self._fill(slot, producer_id, endpoint)
            elif not slot.opened.is_set():
                slot.opened.wait()
            else:
                slot.closed.wait()  # bounded by the time that its close may take

    def close(self, timeout: float | None = None) -> None:
        """Drain and close every trace, whoever still holds a handle. Idempotent.

        ``timeout`` is for all of them together (default: the settings' drain time).
        """
        seconds = self._settings.drain_seconds if timeout is None else timeout
        deadline = self._clock.monotonic() + seconds
        with self._lock:
            slots = [slot for slot in self._slots.values() if slot.sink or not slot.opened.is_set()]
            for slot in slots:
                slot.closing = True
        for slot in slots:
            slot.opened.wait(max(0.0, deadline - self._clock.monotonic()))
            if slot.sink is not None:
                self._close_slot(slot, max(0.0, deadline - self._clock.monotonic()))

    def _fill(self, slot: _Slot, producer_id: str, endpoint: Endpoint) -> None:
        """Open the sink, without the lock: a folder that hangs must not hold up other traces."""
        try:
            slot.sink = self._open(producer_id, endpoint)
        except BaseException:  # Ctrl-C: nothing is decided, and whoever waits may try
            self._forget(slot)
            slot.closed.set()
            raise
        finally:
            slot.opened.set()

    def _forget(self, slot: _Slot) -> None:
        with self._lock:
            self._slots = {name: other for name, other in self._slots.items() if other is not slot}

    def _open(self, producer_id: str, endpoint: Endpoint) -> TraceSink | None:
        settings = self._settings
        sink = TraceSink(settings, producer_id, clock=self._clock, origin=self._origin)
        try:
            sink.start()
        except (TraceError, OSError, RuntimeError) as error:
            logger.warning(
                "%s; the trace of producer %s is off; serving goes on", _reason(error), producer_id
            )
            return None
        _open_sinks.add(sink)
        sampled = settings.mode is CaptureMode.SAMPLED
        logger.info(
            "recording forward passes of %s.%s, producer %s, to %s.*: %s, %d segments of %d bytes",
            endpoint.namespace,
            endpoint.component,
            producer_id,
            settings.output_prefix,
            f"the newest every {settings.sample_interval_seconds:g} s" if sampled else "every one",
            settings.max_segments,
            settings.roll_bytes,
        )
        return sink

    def _lease(self, slot: _Slot, sink: TraceSink, endpoint: Endpoint) -> TraceHandle:
        source = TraceSource(endpoint.namespace, endpoint.component, sink.producer_id)
        source = slot.sources.setdefault(source, source)  # one object each: recorders compare by identity
        slot.leases += 1
        return TraceHandle(self, slot, sink, source)

    def _release(self, handle: TraceHandle, timeout: float | None) -> None:
        slot = handle._slot
        with self._lock:
            if handle._released:
                return
            handle._released = True
            slot.leases -= 1
            slot.closing = last = slot.closing or slot.leases == 0
        if last:
            self._close_slot(slot, timeout)

    def _close_slot(self, slot: _Slot, timeout: float | None) -> None:
        try:
            if slot.sink is not None and slot.sink.close(timeout).finished:
                _open_sinks.discard(slot.sink)
        finally:  # also if the sink's thread hangs: whoever waits for it must not
            self._forget(slot)
            slot.closed.set()

    def _become_child(self) -> None:
        """In a forked child the locks are new, and nobody finishes what was opening or closing."""
        self._lock = threading.RLock()
        self._slots = {
            name: slot for name, slot in self._slots.items() if slot.opened.is_set() and not slot.closing
        }


class TraceHandle:
    """A lease on a producer's trace. Rows that come through it carry its endpoint."""

    __slots__ = ("_registry", "_released", "_sink", "_slot", "_source")

    def __init__(self, registry: TraceRegistry, slot: _Slot, sink: TraceSink, source: TraceSource) -> None:
        self._registry = registry
        self._slot = slot
        self._sink = sink
        self._source = source
        self._released = False

    def offer(self, payload: bytes, observed_unix_ms: int | None = None) -> bool:
        """Queue a payload for the trace; return whether it was accepted.

        Never raises and never waits for the disk; takes a lock for less than a microsecond.
        ``observed_unix_ms`` is when the payload was seen (default: now).
        """
        if self._released:
            return self._sink.refuse(1)
        return self._sink.offer(self._source, payload, observed_unix_ms)

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        """As :meth:`offer`, for payloads that were observed together; return how many were accepted."""
        if self._released:
            self._sink.refuse(len(payloads))
            return 0
        return self._sink.offer_many(self._source, payloads, observed_unix_ms)

    def room(self) -> int:
        """Return how many payloads can be offered now without an older one being dropped for them."""
        return self._sink.room()

    def note(self, event: LedgerEvent) -> None:
        """Keep what a relay saw for the trace's ledger. Never raises and never waits."""
        self._sink.note(event)

    def counts(self) -> TraceCounts:
        """Return the counts of the producer's trace, all its endpoints together."""
        return self._sink.counts()

    def files(self) -> tuple[str, ...]:
        """Return the segments that this trace wrote and retention left, oldest first."""
        return self._sink.files()

    def release(self, timeout: float | None = None) -> None:
        """Give the lease back. The last one drains and closes the trace, within ``timeout`` seconds.

        Idempotent. ``timeout`` is the settings' drain time by default.
        """
        self._registry._release(self, timeout)


def _reason(error: Exception) -> str:
    """Say what is wrong; for a path also which setting names it, and what that accepts."""
    if not isinstance(error, TracePathError):
        return str(error)
    return f"{error}; {OUTPUT_PATH.name} or its option wants a prefix in a folder that this user may write"
