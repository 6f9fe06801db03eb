"""Knows how a command records an engine whose statistics are asked for: trace, publisher and poller."""

from __future__ import annotations

import asyncio

from forwardpass.cli.recording import RELAY_DRAIN_SECONDS, RecordingResult, origin_of
from forwardpass.cli.summary_view import counted
from forwardpass.clock import Clock, SystemClock
from forwardpass.config import variables as v
from forwardpass.config.settings import HeartbeatMode, PublisherSettings, RelaySettings, Sources
from forwardpass.engines.trtllm.feed import StatsFeed
from forwardpass.engines.trtllm.poller import Fetch, poll
from forwardpass.engines.trtllm.source import SOURCE
from forwardpass.errors import ForwardPassError
from forwardpass.plane.base import PlaneContext
from forwardpass.relay.direct import FpmDirectPublisher
from forwardpass.relay.relay import RelayStats
from forwardpass.trace.policy import TraceDecision, announce
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.trace.sink import TraceCounts

__all__ = ["PolledRecording"]


def _publisher_settings(sources: Sources) -> PublisherSettings:
    """Return what there is to set of a publisher without a port: the port's variable is not looked at."""
    return PublisherSettings(
        heartbeat=HeartbeatMode(sources.value(v.HEARTBEAT)),
        heartbeat_interval_seconds=sources.value(v.HEARTBEAT_INTERVAL_MS) / 1000,
        queue_capacity=sources.value(v.PUBLISH_QUEUE),
    )


class PolledRecording:
    """One worker's statistics, from ``start`` to ``finish``; ``url`` is where they are, in words."""

    def __init__(
        self,
        fetch: Fetch,
        url: str,
        *,
        ranks: int,
        trace: TraceDecision,
        relay: RelaySettings,
        worker_id: str,
        sources: Sources,
        interval_seconds: float,
        clock: Clock | None = None,
    ) -> None:
        self.producer_id = relay.producer_id or worker_id
        self._clock: Clock = clock or SystemClock()
        self._fetch = fetch
        self._url = url
        self._ranks = ranks
        self._decision = trace
        self._relay = relay
        self._worker_id = worker_id
        self._sources = sources
        self._interval_seconds = interval_seconds
        self._handle: TraceHandle | None = None
        self._publisher: FpmDirectPublisher | None = None
        self._feed: StatsFeed | None = None
        self._began = self._clock.monotonic()

    async def start(self) -> None:
        """Open the trace and begin to publish; nobody is asked yet. Raises as the publisher's ``start``."""
        settings = _publisher_settings(self._sources)
        announce(self._decision)
        if self._decision.settings is not None:
            registry = TraceRegistry(self._decision.settings, clock=self._clock, origin=origin_of(SOURCE))
            self._handle = await asyncio.to_thread(registry.acquire, self.producer_id, self._relay.endpoint)
        publisher = FpmDirectPublisher(
            self._relay.endpoint,
            self._worker_id,
            self._ranks,
            trace=self._handle,
            plane_url=self._relay.plane_url,
            plane_context=PlaneContext(self._sources, self._clock),
            settings=settings,
            clock=self._clock,
        )
        publisher.set_alive(False)  # nobody has answered yet
        try:
            await publisher.start()
        except ForwardPassError:
            if self._handle is not None:
                self._handle.release(0.0)
            raise
        self._publisher = publisher
        self._feed = StatsFeed(publisher.publish, clock=self._clock)
        self._began = self._clock.monotonic()

    @property
    def tracing(self) -> bool:
        """Whether a trace is being written."""
        return self._handle is not None

    @property
    def has_plane(self) -> bool:
        """Whether an event plane was named."""
        return self._relay.plane_url is not None

    async def follow(self, stop: asyncio.Event, seconds: float | None = None) -> None:
        """Poll until ``stop`` is set, ``seconds`` have passed or the build turns out to be of no use."""
        assert self._feed is not None
        assert self._publisher is not None
        loop = asyncio.get_running_loop()
        timer = loop.call_later(seconds, stop.set) if seconds is not None else None
        try:
            await poll(
                self._fetch,
                self._feed,
                stop,
                interval_seconds=self._interval_seconds,
                answered=self._publisher.set_alive,
                clock=self._clock,
            )
        finally:
            if timer is not None:
                timer.cancel()

    async def finish(self) -> RecordingResult:
        """Carry on what was published, close the trace, and return what was recorded."""
        settings = self._decision.settings
        drain_seconds = settings.drain_seconds if settings is not None else RELAY_DRAIN_SECONDS
        seconds = self._clock.monotonic() - self._began
        if self._publisher is not None:
            await self._publisher.stop(drain_seconds)
        counts: TraceCounts | None = None
        files: tuple[str, ...] = ()
        if self._handle is not None:
            await asyncio.to_thread(self._handle.release, drain_seconds)
            counts, files = self._handle.counts(), self._handle.files()
        return RecordingResult(
            producer_id=self.producer_id,
            endpoint=self._relay.endpoint,
            seconds=seconds,
            relays=(self._stats(),),
            capture_mode=settings.mode if settings is not None and self._handle is not None else None,
            files=files,
            trace=counts,
        )

    def losses(self) -> list[str]:
        """Return one line for each kind of row that became no pass."""
        if self._feed is None:
            return []
        counts = self._feed.counts()
        lines = []
        if counts.bad:
            lines.append(f"{counted(counts.bad, 'row')} of statistics left out: not as documented")
        if counts.refused:
            lines.append(f"{counted(counts.refused, 'pass', 'passes')} not published: the queue was full")
        return lines

    def _stats(self) -> RelayStats:
        """Return what was published, in the words of a stream."""
        publisher, feed = self._publisher, self._feed
        published = feed.counts().published if feed is not None else 0
        return RelayStats(
            url=self._url,
            dp_rank=None,
            received=published,
            bytes=0,
            bad_frames=0,
            gaps=0,
            lost=0,
            restarts=0,
            trace_refused=0,
            plane=publisher.plane_counts() if publisher is not None else None,
            last_received_unix_ms=None,
            connected=False,
            reconnects=0,
            receive_errors=0,
        )
