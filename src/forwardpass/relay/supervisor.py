"""Knows how the relays of one worker live together: started, drained on one tick, stopped with a deadline.

One timer serves all streams: they are drained together, at most 50 times a second (20 where only a trace
waits for them) however many ranks there are unless much waits, and in a silence they are not looked at until
something arrives. A stream that fails is opened again after a growing wait and does not concern the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from forwardpass.clock import Clock, SystemClock
from forwardpass.errors import ForwardPassError
from forwardpass.plane.base import PlaneContext, PlanePublisher
from forwardpass.plane.urls import find_plane
from forwardpass.quiet import QuietLog
from forwardpass.relay.cadence import (
    IDLE_TICK_SECONDS,
    MAX_TICK_SECONDS,
    MIN_TICK_SECONDS,
    RECEIVE_LIMIT,
    Pace,
    is_drained,
    next_tick,
)
from forwardpass.relay.doorbell import Doorbell
from forwardpass.relay.outbox import OUTBOX_CAPACITY, Outbox
from forwardpass.relay.relay import LOOK_SECONDS, FrameSource, PayloadHook, Relay, RelayStats, TraceOffer
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.zmq_source import ZmqSource
from forwardpass.wire.keys import Endpoint

__all__ = ["RelayGroup", "RelayTarget"]

logger = logging.getLogger(__name__)


class RelayGroup:
    """One relay per target, for one producer.

    ``trace`` is offered every payload (``None``: nothing is recorded); the caller keeps its lease and
    releases it after ``stop``. ``plane_url`` names the event plane (``None``: none, decision D-31).
    """

    def __init__(
        self,
        targets: Sequence[RelayTarget],
        *,
        trace: TraceOffer | None,
        plane_url: str | None = None,
        endpoint: Endpoint = Endpoint(),  # noqa: B008  an immutable value
        clock: Clock | None = None,
        on_payload: PayloadHook | None = None,
        plane_context: PlaneContext | None = None,
        open_source: Callable[[str], FrameSource] = ZmqSource,
        outbox_capacity: int = OUTBOX_CAPACITY,
    ) -> None:
        self._targets = tuple(targets)
        self._trace = trace
        self._plane_url = plane_url
        self._endpoint = endpoint
        self._clock: Clock = clock or SystemClock()
        self._on_payload = on_payload
        self._plane_context = plane_context or PlaneContext(clock=self._clock)
        self._open_source = open_source
        self._outbox_capacity = outbox_capacity
        self._warnings = QuietLog(logger, self._clock)
        self._awaited = plane_url is not None or on_payload is not None
        self._pace = Pace(has_plane=plane_url is not None)
        self._relays: list[Relay] = []
        self._outboxes: list[Outbox] = []
        self._loop_task: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._stop_asked: float | None = None
        self._doorbell = Doorbell()
        self._deadline = 0.0

    async def start(self) -> None:
        """Connect every stream and begin to relay; waits for no publisher and no plane.

        Raises :class:`ConfigError` for a stream or plane URL that can never work, and
        :class:`PlaneUnavailable` for a plane whose code is missing; nothing is left open then.
        """
        if self._loop_task is not None:
            raise RuntimeError("this relay group was already started")
        join = self._plane_opener()
        try:
            for target in self._targets:
                self._add(target, join)
        except ForwardPassError:
            self._close_sources()
            raise
        for outbox in self._outboxes:
            outbox.start()
        self._loop_task = asyncio.get_running_loop().create_task(self._run(), name="forwardpass relays")

    async def stop(self, drain_seconds: float) -> None:
        """Receive what was sent before now, publish it, and close; all within ``drain_seconds``.

        A plane that hangs while it is left may take two seconds more, however many streams there are.

        Streams are drained until they are quiet (a publisher that goes on is left after half a second,
        as soon as nothing waits). Idempotent: a second call waits for the first.
        """
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(drain_seconds))
        await asyncio.shield(self._stopping)

    def stats(self) -> tuple[RelayStats, ...]:
        """Return the counts of every stream, in the order of the targets; also after ``stop``."""
        return tuple(relay.stats() for relay in self._relays)

    def _plane_opener(self) -> Callable[[], Awaitable[PlanePublisher]] | None:
        if self._plane_url is None:
            return None
        factory = find_plane(self._plane_url)
        return partial(factory.open_publisher, self._plane_url, self._endpoint, self._plane_context)

    def _add(self, target: RelayTarget, join: Callable[[], Awaitable[PlanePublisher]] | None) -> None:
        outbox = None
        if join is not None:
            outbox = Outbox(join, label=target.url, capacity=self._outbox_capacity, warnings=self._warnings)
            self._outboxes.append(outbox)
        relay = Relay(
            target,
            self._open_source(target.url),
            clock=self._clock,
            trace=self._trace,
            outbox=outbox,
            on_payload=self._on_payload,
            warnings=self._warnings,
        )
        self._relays.append(relay)

    async def _run(self) -> None:
        tick, called = MAX_TICK_SECONDS, False
        try:
            while self._stop_asked is None:
                now = self._clock.monotonic()
                limit = self._limit(now, len(self._relays))
                most = max((relay.turn(now, limit) for relay in self._relays), default=0)
                tick = next_tick(tick, most, awaited=self._awaited)
                if most or called or not limit:
                    called = False  # a descriptor that calls for nothing must not make this a busy loop
                    await self._nap(most, limit, tick)
                else:
                    called = await self._silence()
            await self._drain(self._stop_asked)
        finally:
            self._close_sources()

    async def _nap(self, most: int, limit: int, tick: float) -> None:
        if most < limit:  # nothing waits any more
            self._pace.emptied()
            await asyncio.sleep(tick)
        else:
            await asyncio.sleep(0 if limit >= RECEIVE_LIMIT else MIN_TICK_SECONDS)

    async def _silence(self) -> bool:
        """Wait until something arrives, a stop is asked for or a look is due; say if anything called."""
        self._pace.emptied()
        descriptors = [relay.descriptor for relay in self._relays]
        known = [each for each in descriptors if each is not None]
        try:
            if len(known) == len(descriptors):
                return await self._doorbell.wait(known, LOOK_SECONDS)
        except NotImplementedError:  # an event loop without descriptors: look on a tick
            pass
        await asyncio.sleep(IDLE_TICK_SECONDS)
        return False

    def _limit(self, now: float, streams: int) -> int:
        room = self._trace.room() if self._trace is not None else None
        return self._pace.limit(now, room, streams)

    async def _drain(self, asked: float) -> None:
        last_message = dict.fromkeys(self._relays, asked)
        while last_message:
            now = self._clock.monotonic()
            if now >= self._deadline:
                if self._deadline > asked:
                    logger.warning("stopped before %d streams were drained", len(last_message))
                return
            limit, most = self._limit(now, len(last_message)), 0
            for relay in tuple(last_message):
                received = relay.turn(now, limit)
                most = max(most, received)
                if received:
                    last_message[relay] = now
                if received < limit and is_drained(now, asked, last_message[relay]):
                    del last_message[relay]
            await self._nap(most, limit, MIN_TICK_SECONDS)

    async def _stop(self, drain_seconds: float) -> None:
        self._stop_asked = self._clock.monotonic()
        self._doorbell.ring()
        self._deadline = self._stop_asked + drain_seconds
        if self._loop_task is not None:
            await asyncio.wait([self._loop_task])
        left = self._deadline - self._clock.monotonic()
        await asyncio.gather(*(outbox.close(left) for outbox in self._outboxes))

    def _close_sources(self) -> None:
        for relay in self._relays:
            relay.close()
