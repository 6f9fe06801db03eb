"""Knows how a consumer takes part in an event plane: message by message, or by the latest of every rank.

The two ways are those of NVIDIA Dynamo's ``FpmEventSubscriber`` and exclude each other. ``recv`` gives every
payload of the endpoint, undecoded, from all publishers. Tracking keeps the latest payload of each (worker,
rank) and, where the deployment registers its workers, shows those of registered ones. The blocking form with
the same names is ``blocking_subscriber.py``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from enum import Enum
from types import TracebackType

from forwardpass.config.settings import Sources
from forwardpass.counters import StageCounts
from forwardpass.errors import ConfigError
from forwardpass.plane.base import PlaneContext, PlaneFactory, PlaneMessage, PlaneSubscriber
from forwardpass.plane.following import close_quietly, follow
from forwardpass.plane.inbox import Inbox
from forwardpass.plane.tracker import TrackedPass, Tracker, TrackerCounts, TrackerLimits
from forwardpass.plane.urls import find_plane
from forwardpass.plane.workers import WorkerSource, WorkerWatch
from forwardpass.quiet import QuietLog
from forwardpass.wire.keys import Endpoint, StreamKey

__all__ = ["AsyncFpmSubscriber", "WorkerOpener", "free_inbox", "parse_endpoint"]

logger = logging.getLogger(__name__)

WorkerOpener = Callable[[], Awaitable[WorkerWatch]]
"""Opens a watch of the endpoint's registered workers; called on the event loop, again after a failure."""


_TURN = 256
"""Messages that are taken at once before others on the loop get a turn."""


class _Mode(Enum):
    RECEIVING = "recv()"
    TRACKING = "start_tracking()"


class AsyncFpmSubscriber:
    """A consumer of one endpoint's forward passes. Nothing is opened before the first use.

    ``url`` names the plane (``plane`` may give it instead) and ``endpoint`` whose passes are wanted, as an
    :class:`Endpoint` or ``namespace.component.endpoint``. ``workers`` opens a watch of registered workers,
    where it is not the plane's own; ``context`` is built from the environment by default. What is no endpoint
    or setting is refused here (:class:`ConfigError`), what is no plane when it is opened.
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
        self._endpoint = parse_endpoint(endpoint)
        self._url = url
        self._context = context or PlaneContext.load(Sources())
        self._open_workers = workers
        self._plane = plane
        self._limits = limits
        self._said = QuietLog(logger, self._context.clock)
        self._mode: _Mode | None = None
        self._subscriber: PlaneSubscriber | None = None
        self._messages: AsyncIterator[PlaneMessage] | None = None
        self._inbox: Inbox | None = None
        """The same, where it is one that gives what waits without a task for each message."""
        self._taken_at_once = 0
        self._next: asyncio.Future[PlaneMessage | None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._ending: asyncio.Future[None] | None = None
        """Done when the subscriber is shut down; made by the first who waits."""
        self._tracker: Tracker | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def endpoint(self) -> Endpoint:
        """Whose passes are wanted."""
        return self._endpoint

    @property
    def closed(self) -> bool:
        """Whether :meth:`shutdown` was called."""
        return self._closed

    async def recv(self, timeout_s: float | None = None) -> bytes | None:
        """Return the next payload as it was published, or ``None`` after the end; see below."""
        message = await self.recv_envelope(timeout_s)
        return None if message is None else message.payload

    async def recv_envelope(self, timeout_s: float | None = None) -> PlaneMessage | None:
        """Return the next message, or ``None`` once :meth:`shutdown` was called or the plane ended.

        Waits for at most ``timeout_s`` seconds and raises :class:`TimeoutError` then; neither that nor a
        cancellation loses a message. Several callers take turns. Raises :class:`RuntimeError` while tracking,
        and what the plane raises: :class:`PlaneUnavailable` and :class:`ConfigError` while it is being opened
        (a later call tries again).
        """
        if self._mode is _Mode.TRACKING:
            raise RuntimeError(
                f"the subscriber is tracking since {_Mode.TRACKING.value}; it cannot recv() too"
            )
        if (ready := self._ready()) is not None:
            return ready
        async with asyncio.timeout(timeout_s), self._turn:
            if self._closed:
                return None
            if (inbox := free_inbox(self)) is not None:
                return await self._arrived(inbox)
            self._mode = _Mode.RECEIVING
            self._ending = self._ending or asyncio.get_running_loop().create_future()
            self._next = self._next or asyncio.ensure_future(self._take_next())
            await asyncio.wait((self._next, self._ending), return_when=asyncio.FIRST_COMPLETED)
            return self._taken()

    async def start_tracking(self, *, require_known: bool = True) -> None:
        """Begin to keep the latest message of each (worker, rank).

        With ``require_known`` only workers that are registered now are shown, which takes a watch: that of
        ``workers``, or the plane's own. Without it everybody who publishes is shown. Raises
        :class:`RuntimeError` if tracking began before, ``recv`` was used or the subscriber was shut down,
        :class:`ConfigError` for ``require_known`` without a watch, and what plane and watch raise when they
        cannot be opened (it can be tried again).
        """
        if self._closed:
            raise RuntimeError("the subscriber was shut down")
        if self._mode is not None:
            raise RuntimeError(f"{_Mode.TRACKING.value} comes once and first; {self._mode.value} came before")
        open_workers = self._open_workers or (self._watch_of_plane() if require_known else None)
        if require_known and open_workers is None:
            accepted = "a watch of registered workers (workers=…), or require_known=False"
            raise ConfigError("require_known", require_known, accepted)
        self._mode = _Mode.TRACKING
        tracker = Tracker(require_known=require_known, clock=self._context.clock, limits=self._limits)
        try:
            watch = await open_workers() if open_workers is not None else None
            try:
                subscriber = await self._open()
            except BaseException:
                if watch is not None:
                    await close_quietly(watch, self._said, self._watch_name)
                raise
        except BaseException:
            self._mode = None
            raise
        self._tracker = tracker
        self._begin(tracker, subscriber)
        if watch is not None and open_workers is not None:
            self._begin_watch(tracker, watch, open_workers)
        if self.closed:  # shut down while it was opened
            await self._finish()

    def get_recent_stats(self, max_age_s: float | None = None) -> dict[tuple[str, int], bytes]:
        """Return the latest payload of each ``(worker_id, dp_rank)``, by arrival.

        A worker that hangs stays with its last payload for ever; ``max_age_s`` leaves out what is older than
        so many seconds. Raises :class:`RuntimeError` before :meth:`start_tracking`, :class:`ConfigError` for
        an age below 0. After :meth:`shutdown` it is what was known then.
        """
        return self._tracking().recent_stats(max_age_s)

    def get_recent(self, max_age_s: float | None = None) -> dict[StreamKey, TrackedPass]:
        """Return the same with age, origin, losses and evidence of restarts; raises the same."""
        return self._tracking().recent(max_age_s)

    def get_model_cards(self) -> dict[str, str]:
        """Return the model card (JSON text) of each registered worker, by worker id.

        Raises :class:`RuntimeError` before :meth:`start_tracking`; empty without a ``workers`` watch.
        """
        return self._tracking().cards()

    def counts(self) -> StageCounts:
        """Return what arrived on the current subscription, was taken, waits and was dropped."""
        if self._subscriber is None:
            return StageCounts(0, 0, 0, 0, {})
        return self._subscriber.counts()

    def tracker_counts(self) -> TrackerCounts:
        """Return what was tracked and dropped; raises :class:`RuntimeError` before :meth:`start_tracking`."""
        return self._tracking().counts()

    async def shutdown(self) -> None:
        """Leave the plane; whoever waits in ``recv`` gets ``None``. Idempotent, and done within seconds."""
        if not self._closed:
            self._closed = True
            if self._ending is not None:
                self._ending.set_result(None)
            if self._inbox is not None:
                self._inbox.close()
            await self._finish()

    async def __aenter__(self) -> AsyncFpmSubscriber:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.shutdown()

    @property
    def _plane_name(self) -> str:
        return f"the subscription to {str(self.endpoint)!r}"

    @property
    def _watch_name(self) -> str:
        return f"the watch of workers of {str(self.endpoint)!r}"

    def _tracking(self) -> Tracker:
        if self._tracker is None:
            raise RuntimeError(f"nothing is tracked before {_Mode.TRACKING.value}")
        return self._tracker

    def _ready(self) -> PlaneMessage | None:
        """Return a message that waits already, if nobody waits for his turn."""
        inbox = free_inbox(self)
        if inbox is None or self._closed or self._turn.locked() or self._taken_at_once >= _TURN:
            return None
        self._taken_at_once += 1
        return inbox.take_ready()

    async def _arrived(self, inbox: Inbox) -> PlaneMessage | None:
        """Wait for the next message; a caller who gives up has taken nothing."""
        if self._taken_at_once >= _TURN:
            await asyncio.sleep(0)
        self._taken_at_once = 0
        while not self._closed:
            if (message := inbox.take_ready()) is not None:
                return message
            if inbox.closed:
                break
            await inbox.arrival()
        return None

    def _taken(self) -> PlaneMessage | None:
        """Return what was waited for, or ``None`` at the end; raises what the plane raised."""
        if self._closed or self._next is None:
            return None
        taken, self._next = self._next, None
        return taken.result()

    async def _open(self) -> PlaneSubscriber:
        plane = self._plane or find_plane(self._url)
        self._subscriber = await plane.open_subscriber(self._url, self.endpoint, self._context)
        return self._subscriber

    def _watch_of_plane(self) -> WorkerOpener | None:
        plane = self._plane or find_plane(self._url)
        if not isinstance(plane, WorkerSource):
            return None
        return lambda: plane.watch_workers(self._url, self.endpoint, self._context)

    async def _take_next(self) -> PlaneMessage | None:
        """Wait for the next message, in a task of its own: one who gives up waiting must not end the plane's
        iterator, which may be a generator.
        """
        if self._messages is None:
            subscriber = await self._open()
            self._messages = aiter(subscriber)
            self._inbox = self._messages if isinstance(self._messages, Inbox) else None
        return await anext(self._messages, None)

    def _begin(self, tracker: Tracker, subscriber: PlaneSubscriber) -> None:
        self._tasks.append(
            asyncio.create_task(follow(subscriber, self._open, tracker.note, self._said, self._plane_name))
        )

    def _begin_watch(self, tracker: Tracker, watch: WorkerWatch, open_workers: WorkerOpener) -> None:
        async def reopen() -> WorkerWatch:
            opened = await open_workers()
            tracker.forget_workers()  # it names all that are registered, and only those
            return opened

        self._tasks.append(
            asyncio.create_task(follow(watch, reopen, tracker.note_worker, self._said, self._watch_name))
        )

    async def _finish(self) -> None:
        waiting = [*self._tasks, *((self._next,) if self._next is not None else ())]
        self._tasks, self._next = [], None
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        if self._mode is _Mode.RECEIVING and self._subscriber is not None:
            await close_quietly(self._subscriber, self._said, self._plane_name)


def free_inbox(subscriber: AsyncFpmSubscriber) -> Inbox | None:
    """Return where the messages of ``subscriber`` wait, unless nobody may take them there: before the first
    one was received, while it is waited for, and for a plane that has another queue.
    """
    return subscriber._inbox if subscriber._next is None else None


def parse_endpoint(endpoint: Endpoint | str | None) -> Endpoint:
    """Return the endpoint that is meant, Dynamo's usual one for ``None``. Raises :class:`ConfigError`."""
    if isinstance(endpoint, str):
        try:
            return Endpoint.parse(endpoint)
        except ValueError as error:
            raise ConfigError("endpoint", endpoint, "namespace.component.endpoint") from error
    return endpoint or Endpoint()
