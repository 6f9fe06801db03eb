"""Knows what becomes of a message on its way out: its number, its identity, its fate.

One sequence per publisher, from 0. Every message that is taken from the queue, and every heartbeat, uses
up the next number, whether or not it can be sent. So a message lost at the socket leaves a gap that
subscribers see; one that did not get into the queue leaves none and is only counted.
"""

from __future__ import annotations

import logging
from typing import Protocol

import msgspec

from forwardpass.clock import Clock
from forwardpass.config.settings import HeartbeatMode, PublisherSettings
from forwardpass.config.variables import PUBLISH_QUEUE, SEND_HWM, WORKER_ID
from forwardpass.counters import Counters, DropReason
from forwardpass.publish.heartbeat import Heartbeat, heartbeat_message
from forwardpass.quiet import QuietLog
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics

__all__ = ["EngineView", "FrameSocket", "LateMetrics", "StreamTask"]

logger = logging.getLogger(__name__)

_ENCODE_ERRORS = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, AttributeError)
_LINGER_SHARE = 0.9

ASK_AGAIN_SECONDS = 0.005
"""For an engine that could not tell what waits."""


class FrameSocket(Protocol):
    """Where messages go."""

    def open(self) -> int:
        """Bind and return the port."""
        ...

    def send(self, seq: int, payload: bytes) -> DropReason | None:
        """Send without blocking; return why the message was dropped, or ``None``."""
        ...

    def close(self, linger_seconds: float) -> None:
        """Close within ``linger_seconds``."""
        ...

    def forget(self) -> None:
        """Drop what belongs to the parent of this forked process."""
        ...


class LateMetrics(Protocol):
    """A message that is not built yet."""

    def build(self) -> ForwardPassMetrics:
        """Return the message. May raise: it is dropped then, for an internal error, and leaves a gap."""
        ...


class EngineView(Protocol):
    """An engine as its publisher's thread may see it."""

    def waiting_now(self) -> QueuedRequestMetrics | None:
        """Return what waits, or ``None`` if that cannot be told at this moment."""
        ...

    def catch_up(self) -> None:
        """Do work that the engine left to this thread and no message will ask for."""
        ...


class StreamTask:
    """The work of a publisher's thread: number, stamp, encode and send, and speak when it is quiet.

    ``worker_id``, ``queued`` and ``paused`` are written by the engine's thread; each is one reference.
    """

    def __init__(
        self,
        socket: FrameSocket,
        settings: PublisherSettings,
        *,
        dp_rank: int,
        counters: Counters,
        clock: Clock,
    ) -> None:
        self.worker_id = settings.worker_id
        self.queued = QueuedRequestMetrics()
        """The engine's last queue snapshot."""
        self.engine: EngineView | None = None
        """Asked for what waits instead, if there is one."""
        self.paused = False
        self.port: int | None = None
        """The bound port, once open."""
        self.heartbeats = 0
        """Heartbeats sent."""
        self._socket = socket
        self._settings = settings
        self._dp_rank = dp_rank
        self._counters = counters
        self._clock = clock
        self._log = QuietLog(logger, clock)
        self._seq = 0
        self._nameless = False  # the last message carried no worker id
        self._warned_of_empty_id = False
        self._queue_full_seen = 0
        self._heartbeat = Heartbeat(settings.heartbeat_interval_seconds, clock.monotonic())

    # --- the pump's thread -----------------------------------------------------------------------

    def open(self) -> None:
        """Bind the socket; the first heartbeat is due one interval from now."""
        self.port = self._socket.open()
        self._heartbeat = Heartbeat(self._settings.heartbeat_interval_seconds, self._clock.monotonic())

    def tick(self, now: float, queued: int) -> float:
        """Send a heartbeat if one is due and nothing else waits; return when to look again."""
        self._report_full_queue()
        if self.engine is not None:
            self.engine.catch_up()
        if self.paused or queued:
            return self._settings.heartbeat_interval_seconds
        if self._heartbeat.due(now) and self._knows_what_waits(now):
            self._heartbeat.tried(now)
            reason = self._send(heartbeat_message(self._settings.heartbeat, self.queued))
            if reason is None:
                self._heartbeat.sent(now)
                self.heartbeats += 1
        return self._heartbeat.seconds_left(now) or ASK_AGAIN_SECONDS

    def take(self, items: list[ForwardPassMetrics | LateMetrics]) -> None:
        """Send ``items`` in order and count each."""
        counters, delivered_before = self._counters, self._counters.delivered
        for item in items:
            reason = self._send(item)
            if reason is None:
                counters.delivered += 1
            else:
                counters.lose(reason)
        if counters.delivered > delivered_before:
            self._heartbeat.sent(self._clock.monotonic())
        if self._nameless and not self._warned_of_empty_id:
            self._warn_of_empty_id()

    def close(self, deadline: float) -> None:
        """Let subscribers have what is sent already, if they take it in time, and close the socket."""
        left = deadline - self._clock.monotonic()
        self._socket.close(max(0.0, left) * _LINGER_SHARE)

    def forked(self) -> None:
        """Leave the socket to the parent."""
        self._socket.forget()

    def _knows_what_waits(self, now: float) -> bool:
        """Ask what waits; say whether the heartbeat can go out, with that or with what was known last.

        An engine in the middle of a step cannot tell. It is asked again at once, for as long as a heartbeat
        may be late.
        """
        if self.engine is None or self._settings.heartbeat is HeartbeatMode.ALWAYS_ZERO:
            return True
        try:
            waiting = self.engine.waiting_now()
        except Exception as error:  # noqa: BLE001  boundary: a rank that is alive must say so
            self._log.error("waiting", f"cannot tell what waits: {error!r}", exc_info=True)
            return True
        if waiting is None:
            return self._heartbeat.overdue(now)
        self.queued = waiting
        return True

    def _send(self, item: ForwardPassMetrics | LateMetrics) -> DropReason | None:
        seq = self._seq
        self._seq = seq + 1  # also if it cannot be sent: readers see that a pass is missing
        try:
            if isinstance(item, ForwardPassMetrics):
                metrics = item
            else:
                metrics = item.build()
                self.queued = metrics.queued_requests
            worker_id = self.worker_id or metrics.worker_id
            self._nameless = not worker_id
            payload = encode(stamp(metrics, seq, worker_id, self._dp_rank))
        except _ENCODE_ERRORS as error:
            self._log.warning("encode", f"dropping a forward pass that cannot be encoded: {error!r}")
            return DropReason.ENCODE_ERROR
        except Exception as error:  # noqa: BLE001  boundary: what cannot be built must not cost its batch
            self._log.error("build", f"dropping a forward pass that cannot be built: {error!r}")
            return DropReason.INTERNAL_ERROR
        reason = self._socket.send(seq, payload)
        if reason is DropReason.SOCKET_FULL:
            self._log.warning(
                "full", f"rank {self._dp_rank}: the raw stream's socket is full ({SEND_HWM.name})"
            )
        return reason

    def _report_full_queue(self) -> None:
        # The engine's thread counts and says nothing; it is said here.
        lost = self._counters.refused.get(DropReason.QUEUE_FULL, 0)
        if lost > self._queue_full_seen:
            self._queue_full_seen = lost
            self._log.warning(
                "queue",
                f"rank {self._dp_rank}: {lost} forward passes were lost to a full queue of "
                f"{self._settings.queue_capacity} ({PUBLISH_QUEUE.name})",
            )

    def _warn_of_empty_id(self) -> None:
        self._warned_of_empty_id = True
        logger.warning(
            "rank %d publishes forward passes without a worker id (%s is not set); readers that tell workers "
            "apart by it will not see them",
            self._dp_rank,
            WORKER_ID.name,
        )
