"""Knows how the passes of a worker are published from inside a program, without a raw stream in between.

For engines whose numbers are asked for (TensorRT-LLM) or made here. One publisher serves all ranks of a
worker: each has its own counter, from 1, and its own heartbeats. What is published waits in one bounded
queue; a thread numbers and encodes it, offers it to the trace and then to the event plane.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import PublisherSettings
from forwardpass.config.variables import PUBLISH_QUEUE
from forwardpass.counters import Counters, StageCounts
from forwardpass.plane.base import PlaneContext, PlanePublisher
from forwardpass.plane.urls import find_plane
from forwardpass.publish.heartbeat import Heartbeat, heartbeat_message
from forwardpass.pump import Pump
from forwardpass.quiet import QuietLog
from forwardpass.relay.outbox import Outbox
from forwardpass.relay.relay import TraceOffer
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["FpmDirectPublisher"]

logger = logging.getLogger(__name__)

_Item = tuple[int, ForwardPassMetrics]


class _Rank:
    """One rank's number, rhythm and last queue."""

    __slots__ = ("counter", "heartbeat", "queued")

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.counter = 0
        """The last one that was given out."""
        self.heartbeat = heartbeat
        self.queued = QueuedRequestMetrics()


class _DirectTask:
    """The work of the publisher's thread."""

    def __init__(
        self,
        worker_id: str,
        dp_size: int,
        settings: PublisherSettings,
        counters: Counters,
        clock: Clock,
        carry: Callable[[Sequence[bytes]], None],
    ) -> None:
        self.worker_id = worker_id
        self.alive = True
        """Whether the engine is known to be there, so that heartbeats may say so."""
        self.heartbeats = 0
        self._dp_size = dp_size
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._carry = carry
        self._log = QuietLog(logger, clock)
        self._refused_seen = 0
        self.open()

    def open(self) -> None:
        """Begin: the first heartbeat of each rank is due one interval from now."""
        interval, now = self._settings.heartbeat_interval_seconds, self._clock.monotonic()
        self._ranks = [_Rank(Heartbeat(interval, now)) for _ in range(self._dp_size)]

    def tick(self, now: float, queued: int) -> float:
        """Send the heartbeats that are due, if nothing else waits; return when to look again."""
        self._report_full_queue()
        if not queued and self.alive:
            due = [rank for rank, state in enumerate(self._ranks) if state.heartbeat.due(now)]
            if due:
                mode = self._settings.heartbeat
                self._send([(rank, heartbeat_message(mode, self._ranks[rank].queued)) for rank in due])
                self.heartbeats += len(due)
        if not self.alive:
            return self._settings.heartbeat_interval_seconds
        return min(state.heartbeat.seconds_left(now) for state in self._ranks)

    def take(self, items: list[_Item]) -> None:
        """Number, encode and carry what was published, in order."""
        self._send(items)
        self._counters.delivered += len(items)

    def close(self, deadline: float) -> None:
        """Nothing is held here."""

    def forked(self) -> None:
        """Nothing is the parent's alone."""

    def _send(self, items: list[_Item]) -> None:
        now = self._clock.monotonic()
        payloads = []
        for dp_rank, metrics in items:
            rank = self._ranks[dp_rank]
            rank.counter += 1
            rank.queued = metrics.queued_requests
            rank.heartbeat.sent(now)
            payloads.append(encode(stamp(metrics, rank.counter, self.worker_id, dp_rank)))
        if not self.worker_id:
            self._log.warning("id", "forward passes are published without a worker id; trackers ignore them")
        self._carry(payloads)

    def _report_full_queue(self) -> None:
        refused = sum(self._counters.refused.values())
        if refused > self._refused_seen:
            lost, self._refused_seen = refused - self._refused_seen, refused
            self._log.warning(
                "full", f"{lost} forward passes were not accepted, {refused} since the start; {_MORE}"
            )


_MORE = f"a larger {PUBLISH_QUEUE.name} holds more"


class FpmDirectPublisher:
    """The passes of ``dp_size`` ranks of worker ``worker_id``, from this process to a trace and a plane.

    ``trace`` is offered every payload first (``None``: nothing is recorded); the caller keeps its lease.
    ``plane_url`` names the event plane (``None``: none, decision D-31). ``publish`` may be called from any
    thread between ``start`` and ``stop``, which belong to one event loop.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        worker_id: str,
        dp_size: int = 1,
        *,
        trace: TraceOffer | None = None,
        plane_url: str | None = None,
        plane_context: PlaneContext | None = None,
        settings: PublisherSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        if dp_size < 1:
            raise ValueError(f"dp_size={dp_size}: expected at least 1")
        self.endpoint = endpoint
        self.dp_size = dp_size
        self._clock: Clock = clock or SystemClock()
        self._trace = trace
        self._plane_url = plane_url
        self._plane_context = plane_context or PlaneContext(clock=self._clock)
        self._settings = settings or PublisherSettings()
        self._counters = Counters()
        self._task = _DirectTask(worker_id, dp_size, self._settings, self._counters, self._clock, self._carry)
        self._pump: Pump[_Item] = Pump(
            self._task,
            name="fpm-direct",
            capacity=self._settings.queue_capacity,
            counters=self._counters,
            clock=self._clock,
            restart_after_fork=False,  # the event loop is the parent's
        )
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outbox: Outbox | None = None

    async def start(self) -> None:
        """Begin to publish; waits for no plane.

        Raises :class:`ConfigError` for a plane URL that can never work, :class:`PlaneUnavailable` for a plane
        whose code is missing, and ``RuntimeError`` if it was started before.
        """
        opener = self._opener(self._plane_url) if self._plane_url is not None else None
        await asyncio.to_thread(self._pump.start)
        if opener is not None:
            outbox = Outbox(opener, label=f"worker {self._task.worker_id}")
            outbox.start()
            self._loop, self._outbox = asyncio.get_running_loop(), outbox

    def _opener(self, url: str) -> Callable[[], Awaitable[PlanePublisher]]:
        return partial(find_plane(url).open_publisher, url, self.endpoint, self._plane_context)

    def set_worker_id(self, worker_id: str) -> None:
        """Let every message from now on carry ``worker_id`` (decision D-15)."""
        self._task.worker_id = worker_id

    def set_alive(self, alive: bool) -> None:
        """Say whether the engine is there: one that does not answer is not called idle by heartbeats."""
        self._task.alive = alive

    def publish(
        self,
        *,
        dp_rank: int,
        scheduled_num_prefill_requests: int,
        scheduled_sum_prefill_tokens: int,
        scheduled_sum_prefill_kv_tokens: int,
        scheduled_num_decode_requests: int,
        scheduled_sum_decode_kv_tokens: int,
        queued_num_prefill_requests: int,
        queued_sum_prefill_tokens: int,
        queued_num_decode_requests: int,
        queued_sum_decode_kv_tokens: int,
        wall_time_secs: float,
        scheduled_var_prefill_length: float = 0.0,
        scheduled_var_decode_kv_tokens: float = 0.0,
        queued_var_prefill_length: float = 0.0,
        queued_var_decode_kv_tokens: float = 0.0,
    ) -> bool:
        """Queue one pass of ``dp_rank``; return False, counted, where there is no room or it has stopped.

        Counts and sums are integers of at least 0; ``wall_time_secs`` is seconds and the variances are
        tokens squared, finite and at least 0. Raises ``ValueError`` for any other number, and
        ``RuntimeError`` for a rank that is none of this publisher's. Never waits.
        """
        if type(dp_rank) is not int or not 0 <= dp_rank < self.dp_size:
            raise RuntimeError(f"dp_rank={dp_rank!r}: expected 0 to {self.dp_size - 1}")
        scheduled = ScheduledRequestMetrics(
            scheduled_num_prefill_requests,
            scheduled_sum_prefill_tokens,
            scheduled_var_prefill_length,
            scheduled_sum_prefill_kv_tokens,
            scheduled_num_decode_requests,
            scheduled_sum_decode_kv_tokens,
            scheduled_var_decode_kv_tokens,
        )
        queued = QueuedRequestMetrics(
            queued_num_prefill_requests,
            queued_sum_prefill_tokens,
            queued_var_prefill_length,
            queued_num_decode_requests,
            queued_sum_decode_kv_tokens,
            queued_var_decode_kv_tokens,
        )
        _check("scheduled", scheduled)
        _check("queued", queued)
        _check_finite("wall_time_secs", wall_time_secs)
        metrics = ForwardPassMetrics(
            wall_time=wall_time_secs, scheduled_requests=scheduled, queued_requests=queued
        )
        with self._lock:
            return self._pump.offer((dp_rank, metrics))

    def counts(self) -> StageCounts:
        """Return how many passes were published, carried on, wait and were dropped; no heartbeats."""
        return self._counters.snapshot()

    def plane_counts(self) -> StageCounts | None:
        """Return what became of the messages on their way to the event plane; ``None`` without one."""
        return self._outbox.counts() if self._outbox is not None else None

    @property
    def heartbeats(self) -> int:
        """Heartbeats sent, of all ranks."""
        return self._task.heartbeats

    async def stop(self, drain_seconds: float) -> None:
        """Carry on what was published, within ``drain_seconds`` (and two more for leaving a plane).

        Idempotent.
        """
        deadline = self._clock.monotonic() + drain_seconds
        await asyncio.to_thread(self._pump.stop, drain_seconds)
        if self._outbox is not None:
            await self._outbox.close(deadline - self._clock.monotonic())

    def _carry(self, payloads: Sequence[bytes]) -> None:
        """Offer to the trace, then to the plane; neither can fail the other."""
        try:
            if self._trace is not None:
                self._trace.offer_many(payloads)
        finally:
            if self._loop is not None and self._outbox is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._outbox.put_many, payloads)


def _check(name: str, part: ScheduledRequestMetrics | QueuedRequestMetrics) -> None:
    for field in part.__struct_fields__:
        value = getattr(part, field)
        if field.startswith("var_"):
            _check_finite(f"{name}_{field}", value)
        elif type(value) is not int or value < 0:
            raise ValueError(f"{name}_{field}={value!r}: expected an integer of at least 0")


def _check_finite(name: str, value: object) -> None:
    if type(value) not in (int, float) or not math.isfinite(value) or value < 0:  # type: ignore[arg-type,operator]
        raise ValueError(f"{name}={value!r}: expected a finite number of at least 0")
