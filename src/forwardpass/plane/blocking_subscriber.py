"""Knows the subscriber for programs without an event loop: the same names, each call waits for its result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import TracebackType
from typing import TypeVar

from forwardpass.counters import StageCounts
from forwardpass.plane.base import PlaneContext, PlaneFactory, PlaneMessage
from forwardpass.plane.loop_thread import LoopThread
from forwardpass.plane.subscriber import AsyncFpmSubscriber, WorkerOpener, free_inbox
from forwardpass.plane.thread_inbox import ThreadInbox
from forwardpass.plane.tracker import TrackedPass, TrackerCounts, TrackerLimits
from forwardpass.wire.keys import Endpoint, StreamKey

__all__ = ["FpmSubscriber"]

T = TypeVar("T")


class FpmSubscriber:
    """:class:`~forwardpass.plane.subscriber.AsyncFpmSubscriber` for blocking code, from any thread.

    The plane is served by a thread of its own from the first use to :meth:`shutdown` (``with`` calls it). It
    does not survive ``fork``: a child makes its own.
    """

    def __init__(
        self,
        url: str,
        endpoint: Endpoint | str | None = None,
        *,
        context: PlaneContext | None = None,
        workers: WorkerOpener | None = None,
        plane: PlaneFactory | None = None,
        limits: TrackerLimits | None = None,
    ) -> None:
        self._inner = AsyncFpmSubscriber(
            url, endpoint, context=context, workers=workers, plane=plane, limits=limits
        )
        self._thread = LoopThread("forwardpass-subscriber")
        self._ending = threading.Lock()
        self._inbox: ThreadInbox | None = None
        """Where messages are taken once the first has come, without a call on the loop for each."""
        self._waiting = 0

    @property
    def endpoint(self) -> Endpoint:
        """Whose passes are wanted."""
        return self._inner.endpoint

    @property
    def closed(self) -> bool:
        """Whether :meth:`shutdown` was called."""
        return self._inner.closed

    def recv(self, timeout_s: float | None = None) -> bytes | None:
        """Return the next payload, or ``None`` after the end; see :meth:`recv_envelope`."""
        message = self.recv_envelope(timeout_s)
        return None if message is None else message.payload

    def recv_envelope(self, timeout_s: float | None = None) -> PlaneMessage | None:
        """Wait for the next message; raises as the asynchronous form does."""
        if self._over():
            return None
        try:
            if self._inbox is None:
                message = self._thread.run(lambda: self._receive(timeout_s))
                if message is not None or self._inbox is None:
                    return message
            self._thread.check()
            message = self._inbox.take(timeout_s)
            return None if self._over() else message
        except (CancelledError, RuntimeError):
            if self._over():  # shut down by another thread meanwhile
                return None
            raise

    def start_tracking(self, *, require_known: bool = True) -> None:
        """Begin to keep the latest message of each (worker, rank); raises as the asynchronous form does."""
        self._thread.run(lambda: self._inner.start_tracking(require_known=require_known))

    def get_recent_stats(self, max_age_s: float | None = None) -> dict[tuple[str, int], bytes]:
        """Return the latest payload of each ``(worker_id, dp_rank)``; raises as the other form does."""
        return self._look(lambda: self._inner.get_recent_stats(max_age_s))

    def get_recent(self, max_age_s: float | None = None) -> dict[StreamKey, TrackedPass]:
        """Return the same with age, origin, losses and evidence of restarts."""
        return self._look(lambda: self._inner.get_recent(max_age_s))

    def get_model_cards(self) -> dict[str, str]:
        """Return the model card (JSON text) of each registered worker, by worker id."""
        return self._look(self._inner.get_model_cards)

    def counts(self) -> StageCounts:
        """Return what arrived on the current subscription, was taken, waits and was dropped."""
        return self._look(self._inner.counts)

    def tracker_counts(self) -> TrackerCounts:
        """Return what was tracked and dropped; raises :class:`RuntimeError` before :meth:`start_tracking`."""
        return self._look(self._inner.tracker_counts)

    def shutdown(self) -> None:
        """Leave the plane and end the thread; a ``recv`` that waits returns ``None``. Idempotent."""
        with self._ending:
            if not self._over():
                self._thread.run(self._inner.shutdown)
            self._thread.close()

    def __enter__(self) -> FpmSubscriber:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()

    async def _receive(self, timeout_s: float | None) -> PlaneMessage | None:
        """Receive on the loop; the last who waits there opens the inbox to threads (``None``: it is open)."""
        if self._inbox is not None:
            return None
        self._waiting += 1
        try:
            return await self._inner.recv_envelope(timeout_s)
        finally:
            self._waiting -= 1
            inbox = free_inbox(self._inner)
            if not self._waiting and inbox is not None:
                self._inbox = ThreadInbox(inbox)

    def _over(self) -> bool:
        return self._inner.closed

    def _look(self, read: Callable[[], T]) -> T:
        """Read on the loop, which owns the state; directly once it is over, when nothing changes any more."""

        async def look() -> T:
            return read()

        if not self._over():
            try:
                return self._thread.run(look)
            except (CancelledError, RuntimeError):
                if not self._over():
                    raise
        with self._ending:
            return read()
