"""Knows how an engine publishes its forward passes: the calls it makes, and how the stream is set up.

What runs on the engine's thread only stores references; numbering, encoding and sending happen in the
publisher's own thread (``stream.py``, ``zmq_pub.py``), and so does the building of a message if the engine
leaves it to be built later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import PublisherSettings
from forwardpass.config.variables import STRICT
from forwardpass.counters import Counters, StageCounts
from forwardpass.errors import ForwardPassError
from forwardpass.publish.null import NullPublisher
from forwardpass.publish.port_owner import ephemeral_range
from forwardpass.publish.stream import EngineView, FrameSocket, LateMetrics, StreamTask
from forwardpass.publish.zmq_pub import PubSocket
from forwardpass.pump import Pump, StopReport
from forwardpass.wire.ports import ephemeral_warning, rank_port
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = [
    "EngineView",
    "FpmPublisher",
    "LateMetrics",
    "LatePublisher",
    "NullPublisher",
    "Publisher",
    "SocketWrapper",
    "open_publisher",
]

logger = logging.getLogger(__name__)

SocketWrapper = Callable[[FrameSocket], FrameSocket]
"""Returns what a stream sends through instead of its socket."""


class Publisher(Protocol):
    """One rank's stream, as its engine sees it.

    ``publish`` and ``note_queue`` are for the engine's thread alone; the rest may come from any thread.
    """

    @property
    def port(self) -> int | None:
        """The TCP port that is bound, or ``None``."""
        ...

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Hand over one forward pass; return whether it was accepted. Never blocks or raises.

        ``counter_id`` and ``dp_rank`` are stamped later, and ``worker_id`` if the publisher has one.
        """
        ...

    def note_queue(self, queued: QueuedRequestMetrics) -> None:
        """Note what waits after a step that is not published, for heartbeats."""
        ...

    def set_worker_id(self, worker_id: str) -> None:
        """Use ``worker_id`` from the next message on (decision D-15)."""
        ...

    def pause(self) -> None:
        """Discard what is published and send no heartbeats; the port stays bound."""
        ...

    def resume(self) -> None:
        """Undo :meth:`pause`."""
        ...

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        """Send what is queued, close, and return within ``timeout`` seconds. Idempotent."""
        ...

    def counts(self) -> StageCounts:
        """Return what became of the forward passes so far (heartbeats are not counted here)."""
        ...


class LatePublisher(Publisher, Protocol):
    """A publisher that takes from the engine's thread all that its own can do."""

    @property
    def publish_later(self) -> Callable[[LateMetrics], bool]:
        """As :meth:`publish`, of a message that the publisher's thread builds when it takes it. What it says
        of the queue is not used for heartbeats.
        """
        ...

    @property
    def hurry(self) -> Callable[[], None]:
        """Let what was published go out at once, not at the next look; for an engine that has run dry."""
        ...

    def watch(self, engine: EngineView) -> None:
        """Ask ``engine`` what waits when a heartbeat is due, and let it do its own work now and then; both on
        the publisher's thread.
        """
        ...


class FpmPublisher:
    """A rank's raw stream: a bounded queue, a thread and a bound ZMQ ``PUB`` socket.

    A process that ends without :meth:`shutdown` ends at once; what was queued is lost. In a child made
    by ``fork`` the stream stays with the parent: the child's messages are refused as ``closed``.
    """

    def __init__(
        self,
        settings: PublisherSettings,
        *,
        dp_rank: int,
        clock: Clock | None = None,
        wrap: SocketWrapper | None = None,
    ) -> None:
        """Bind ``base_port + dp_rank`` (any free port if the base is 0) and start the thread.

        ``wrap`` may put something between the stream and its socket, such as faults for a test.
        Raises :class:`~forwardpass.errors.PortUnavailable` or, for the bind host,
        :class:`~forwardpass.errors.ConfigError`; ``RuntimeError`` or ``TimeoutError`` if the thread
        does not start.
        """
        used_clock = clock or SystemClock()
        counters = Counters()
        port = rank_port(settings.base_port, dp_rank) if settings.base_port else 0
        socket: FrameSocket = PubSocket(
            settings.bind_host, port, send_hwm=settings.send_hwm, clock=used_clock
        )
        if wrap is not None:
            socket = wrap(socket)
        self._task = StreamTask(socket, settings, dp_rank=dp_rank, counters=counters, clock=used_clock)
        self._pump: Pump[ForwardPassMetrics | LateMetrics] = Pump(
            self._task,
            name=f"forwardpass-publisher-{dp_rank}",
            capacity=settings.queue_capacity,
            counters=counters,
            clock=used_clock,
            restart_after_fork=False,
        )
        self.publish_later: Callable[[LateMetrics], bool] = self._pump.offer
        """No method of its own: one call less on the engine's thread."""
        self.hurry: Callable[[], None] = self._pump.hurry
        """Let what was published go out at once; costs the caller what a wake-up costs."""
        self._pump.start()

    @property
    def port(self) -> int | None:
        """The TCP port that is bound."""
        return self._task.port

    @property
    def heartbeats(self) -> int:
        """Heartbeats sent so far."""
        return self._task.heartbeats

    def publish(self, metrics: ForwardPassMetrics) -> bool:
        """Hand over one forward pass; return whether it was accepted."""
        # HOT PATH: one reference and one append, budget 1 us.
        self._task.queued = metrics.queued_requests
        return self._pump.offer(metrics)

    def note_queue(self, queued: QueuedRequestMetrics) -> None:
        """Note what waits after a step that is not published, for heartbeats."""
        # HOT PATH: one reference.
        self._task.queued = queued

    def watch(self, engine: EngineView) -> None:
        """Ask ``engine`` for each heartbeat what waits; it is called on the publisher's thread."""
        self._task.engine = engine

    def set_worker_id(self, worker_id: str) -> None:
        """Use ``worker_id`` from the next message on; empty: each message's own (decision D-15)."""
        self._task.worker_id = worker_id

    def pause(self) -> None:
        """Refuse what is published (reason ``paused``) and send no heartbeats; the port stays bound.

        What was accepted before still goes out.
        """
        self._pump.pause()
        self._task.paused = True

    def resume(self) -> None:
        """Undo :meth:`pause`. Queue snapshots that were taken meanwhile are forgotten."""
        if not self._task.paused:
            return
        self._task.queued = QueuedRequestMetrics()  # a benchmark's queue must never reach the stream
        self._task.paused = False
        self._pump.resume()

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        """Send what is queued, close, and return within ``timeout`` seconds. Idempotent."""
        return self._pump.stop(timeout)

    def counts(self) -> StageCounts:
        """Return what became of the forward passes so far."""
        return self._pump.counters.snapshot()


def open_publisher(
    settings: PublisherSettings,
    *,
    dp_rank: int,
    dp_size: int = 1,
    clock: Clock | None = None,
    wrap: SocketWrapper | None = None,
) -> FpmPublisher | NullPublisher:
    """Return the publisher of global rank ``dp_rank``, or one that does nothing if it cannot be set up.

    In that case one error line says why and the engine goes on serving (decision D-13); with
    ``settings.strict`` the error is raised instead (see :class:`FpmPublisher`). ``dp_size`` is only used
    to warn, once per process, of ports that the kernel may hand to an outgoing connection first.
    """
    _ephemeral_check.run(settings.base_port, dp_size)
    try:
        return FpmPublisher(settings, dp_rank=dp_rank, clock=clock, wrap=wrap)
    except (ForwardPassError, RuntimeError, OSError) as error:
        if settings.strict:
            raise
        logger.error(
            "Forward Pass Metrics are off for rank %d: %s. Serving goes on without them; %s=1 stops instead.",
            dp_rank,
            error,
            STRICT.name,
        )
        return NullPublisher()


class _OncePerProcess:
    """The ephemeral-range check. A race may at worst warn twice."""

    def __init__(self) -> None:
        self._done = False

    def run(self, base_port: int, dp_size: int) -> None:
        """Check, unless it was done before."""
        if self._done:
            return
        self._done = True
        warning = ephemeral_warning(base_port, dp_size, ephemeral_range())
        if warning is not None:
            logger.warning("%s", warning)


_ephemeral_check = _OncePerProcess()
