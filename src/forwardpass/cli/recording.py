"""Knows how a command records: trace, relays and identity set up, run, drained and summed up.

``record``, ``demo`` and ``vllm serve`` share it. The trace is acquired before the relays start and released
after they have drained, so that nothing that was received is lost by stopping.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from msgspec import Struct

from forwardpass.cli.terminal import printable
from forwardpass.clock import Clock, SystemClock
from forwardpass.config.handover import draw_id
from forwardpass.config.settings import CaptureMode, RelaySettings, Sources
from forwardpass.engines.base import FpmSource
from forwardpass.errors import ForwardPassError
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.shown import shown_url
from forwardpass.plane.urls import find_plane
from forwardpass.relay.own_source import OwnSource
from forwardpass.relay.relay import FrameSource, PayloadHook, RelayStats
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.zmq_source import ZmqSource
from forwardpass.trace.ledger import Origin
from forwardpass.trace.policy import TraceDecision, announce
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.trace.sink import TraceCounts
from forwardpass.wire.keys import Endpoint

__all__ = [
    "RELAY_DRAIN_SECONDS",
    "Recording",
    "RecordingResult",
    "draw_id",
    "origin_of",
    "plane_words",
    "stop_on_signals",
]

logger = logging.getLogger(__name__)

RELAY_DRAIN_SECONDS = 10.0
"""Longest time a stop without a trace waits for what is under way to the event plane."""


class RecordingResult(Struct, frozen=True):
    """What a recording did, from start to stop."""

    producer_id: str
    endpoint: Endpoint
    seconds: float
    relays: tuple[RelayStats, ...]
    capture_mode: CaptureMode | None
    """``None`` without a trace."""
    files: tuple[str, ...] = ()
    """Trace files written, in order."""
    trace: TraceCounts | None = None

    @property
    def received(self) -> int:
        """Messages received on all streams."""
        return sum(relay.received for relay in self.relays)


class Recording:
    """One producer's streams, from ``start`` to ``finish``.

    ``settings.producer_id`` wins over ``drawn_id`` (which the engine may have got as its worker id). A
    trace that cannot be opened is warned about, and the streams are relayed without it. With a
    ``worker_id``, messages of other workers at the same ports are left out. ``engine`` is said in the ledger.
    """

    def __init__(
        self,
        targets: Sequence[RelayTarget],
        *,
        trace: TraceDecision,
        relay: RelaySettings,
        drawn_id: str,
        sources: Sources | None = None,
        on_payload: PayloadHook | None = None,
        clock: Clock | None = None,
        worker_id: str | None = None,
        engine: FpmSource | None = None,
    ) -> None:
        self.producer_id = relay.producer_id or drawn_id
        self._clock: Clock = clock or SystemClock()
        self._targets = tuple(targets)
        self._decision = trace
        self._origin = origin_of(engine)
        self._relay = relay
        self._sources = sources
        self._on_payload = on_payload
        self._open_source: Callable[[str], FrameSource] = (
            ZmqSource if worker_id is None else partial(OwnSource, worker_id=worker_id)
        )
        self._handle: TraceHandle | None = None
        self._group: RelayGroup | None = None
        self._began = self._clock.monotonic()

    async def start(self) -> None:
        """Open the trace and begin to relay.

        Raises :class:`ConfigError` and :class:`PlaneUnavailable` as
        :meth:`~forwardpass.relay.supervisor.RelayGroup.start` does; the trace is released then.
        """
        if self._relay.plane_url is not None:
            find_plane(self._relay.plane_url)  # before the trace says that it records
        announce(self._decision)
        if self._decision.settings is not None:
            registry = TraceRegistry(self._decision.settings, clock=self._clock, origin=self._origin)
            self._handle = await asyncio.to_thread(registry.acquire, self.producer_id, self._relay.endpoint)
        sources = self._sources or Sources()
        group = RelayGroup(
            self._targets,
            trace=self._handle,
            plane_url=self._relay.plane_url,
            endpoint=self._relay.endpoint,
            clock=self._clock,
            on_payload=self._on_payload,
            plane_context=PlaneContext(sources, self._clock),
            open_source=self._open_source,
        )
        try:
            await group.start()
        except ForwardPassError:
            if self._handle is not None:
                self._handle.release(0.0)
            raise
        self._group = group
        self._began = self._clock.monotonic()

    @property
    def tracing(self) -> bool:
        """Whether a trace is being written."""
        return self._handle is not None

    @property
    def has_plane(self) -> bool:
        """Whether an event plane was named."""
        return self._relay.plane_url is not None

    @property
    def elapsed_seconds(self) -> float:
        """Return how long the recording has run."""
        return self._clock.monotonic() - self._began

    def stats(self) -> tuple[RelayStats, ...]:
        """Return the counts of every stream."""
        return self._group.stats() if self._group is not None else ()

    def trace_counts(self) -> TraceCounts | None:
        """Return the counts of the trace, or ``None`` without one."""
        return self._handle.counts() if self._handle is not None else None

    async def finish(self) -> RecordingResult:
        """Drain the streams, close the trace, and return what was recorded.

        Bounded by twice the trace's ``drain_seconds``, once for the streams and once for the writer, and the
        two seconds that leaving a plane may take.
        """
        settings = self._decision.settings
        drain_seconds = settings.drain_seconds if settings is not None else RELAY_DRAIN_SECONDS
        seconds = self.elapsed_seconds
        if self._group is not None:
            await self._group.stop(drain_seconds)
        counts: TraceCounts | None = None
        files: tuple[str, ...] = ()
        if self._handle is not None:
            await asyncio.to_thread(self._handle.release, drain_seconds)
            counts, files = self._handle.counts(), self._handle.files()
        return RecordingResult(
            producer_id=self.producer_id,
            endpoint=self._relay.endpoint,
            seconds=seconds,
            relays=self.stats(),
            capture_mode=settings.mode if settings is not None and self._handle is not None else None,
            files=files,
            trace=counts,
        )


def origin_of(engine: FpmSource | None) -> Origin:
    """Return what a ledger says of an engine, nothing of one that is not known."""
    return Origin() if engine is None else Origin(engine.engine, engine.wall_time.value)


def plane_words(settings: RelaySettings) -> str:
    """Return the one line that says where the streams go besides the trace (decision D-31)."""
    if settings.plane_url:
        by = f" (by {settings.plane_variable})" if settings.plane_variable else ""
        shown = printable(shown_url(settings.plane_url))
        return f"event plane {shown}{by}, endpoint {printable(str(settings.endpoint))}"
    return "no event plane (--plane or FORWARDPASS_PLANE would name one)"


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """Set ``stop`` on the first SIGINT or SIGTERM; a second one ends the process at once.

    Ending at once is the system's own default action, so it works whatever this process is busy with;
    what had been flushed to the trace stays readable.
    """
    loop = asyncio.get_running_loop()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def asked() -> None:
        stop.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, asked)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, before[number])
