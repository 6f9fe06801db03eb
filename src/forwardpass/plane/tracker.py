"""Knows the latest message of every rank of every worker, how old it is and what was lost before it.

Pure: messages and what the deployment says of its workers go in, nothing is awaited, and the clock is given.
The latest is the one that arrived last, whatever its counter. Everything is bounded, because payloads come
from a network: what was silent the longest goes first, and before it streams of workers nobody registered.
"""

from __future__ import annotations

import logging
import math

import msgspec
from msgspec import Struct

from forwardpass.clock import Clock, SystemClock
from forwardpass.errors import ConfigError, MalformedPayload
from forwardpass.plane.base import PlaneMessage
from forwardpass.plane.losses import CounterLosses, StreamLosses
from forwardpass.plane.workers import WorkerEvent
from forwardpass.quiet import QuietLog
from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.key_scan import scan_key
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.sequence import SequenceWatch

__all__ = ["PublisherLosses", "TrackedPass", "Tracker", "TrackerCounts", "TrackerLimits"]

logger = logging.getLogger(__name__)


class TrackerLimits(Struct, frozen=True):
    """How much a tracker holds at most."""

    streams: int = 8192
    """(worker, rank) pairs."""
    payload_bytes: int = 67_108_864
    """Payloads of all streams together; a single one that is larger is held alone."""
    publishers: int = 8192
    workers: int = 8192
    """Registered workers; further ones stay unknown."""


class PublisherLosses(Struct, frozen=True):
    """The plane's ``sequence`` of one publisher, from the first message that was seen. What the full queue of
    this process dropped is missing here as well.
    """

    missing: int
    gaps: int
    decreases: int
    """Times that the number did not grow, which a publisher's never does otherwise."""


class TrackedPass(Struct, frozen=True):
    """The latest message of one (worker, rank)."""

    payload: bytes
    """As published, bit for bit; not decoded and possibly no valid message."""
    age_seconds: float
    """Since it was taken, by this process's monotonic clock. An idle engine speaks every second."""
    received_at_ms: int
    """Unix milliseconds of this process's clock."""
    published_at_ms: int
    """Unix milliseconds of the publisher's clock."""
    publisher_id: int
    sequence: int
    """The publisher's message count on the plane, unrelated to ``counter_id``."""
    counter_id: int | None
    """The payload's own number; ``None`` where it cannot be read."""
    messages: int
    """Messages of this stream so far."""
    epoch: int
    """How often another publisher appeared for this stream: each is evidence of a restart."""
    counters: CounterLosses
    """What the payloads' own numbers say."""
    plane: PublisherLosses
    """What the plane's numbers say of the whole publisher, which may carry several ranks."""


class TrackerCounts(Struct, frozen=True):
    """What a tracker took and holds."""

    messages: int
    unkeyable: int
    """Messages without a readable worker and rank; not held."""
    streams: int
    publishers: int
    workers: int
    dropped_streams: int
    """Streams that went to make room."""
    dropped_publishers: int
    """Publishers whose losses were forgotten to make room."""
    refused_workers: int
    """Registrations beyond the limit."""


class _CounterOnly(Struct):
    counter_id: int | None = None


_counter_decoder = msgspec.msgpack.Decoder(_CounterOnly)


class _Stream:
    __slots__ = ("counter_id", "latest", "losses", "messages", "taken_at")

    def __init__(self) -> None:
        self.losses = StreamLosses()
        self.messages = 0
        self.counter_id: int | None = None
        self.latest: PlaneMessage | None = None
        self.taken_at = 0.0

    @property
    def size(self) -> int:
        return 0 if self.latest is None else len(self.latest.payload)


class Tracker:
    """The latest message of each (worker, rank), of registered workers alone if ``require_known``."""

    def __init__(
        self, *, require_known: bool, clock: Clock | None = None, limits: TrackerLimits | None = None
    ) -> None:
        self._require_known = require_known
        self._clock: Clock = clock or SystemClock()
        self._limits = limits or TrackerLimits()
        self._said = QuietLog(logger, self._clock)
        self._streams: dict[StreamKey, _Stream] = {}  # the one heard last is at the end
        self._publishers: dict[int, SequenceWatch] = {}  # likewise
        self._cards: dict[str, str] = {}
        self._payload_bytes = 0
        self._messages = self._unkeyable = 0
        self._dropped_streams = self._dropped_publishers = self._refused_workers = 0

    def note(self, message: PlaneMessage) -> None:
        """Take the next message. Never raises for what it holds."""
        self._messages += 1
        self._note_publisher(message)
        try:
            key = scan_key(message.payload)
        except MalformedPayload as error:
            self._unkeyable += 1
            size = len(message.payload)
            self._said.warning("unkeyable", f"ignoring a message of {size} bytes: {error}")
            return
        stream = self._streams.pop(key, None) or _Stream()
        self._streams[key] = stream
        self._payload_bytes += len(message.payload) - stream.size
        stream.counter_id = _counter_of(message.payload)
        stream.losses.note(message.publisher_id, stream.counter_id, message.received_at_ms)
        stream.messages += 1
        stream.latest = message
        stream.taken_at = self._clock.monotonic()
        self._make_room(key)

    def note_worker(self, event: WorkerEvent) -> None:
        """Take note that a worker was registered, or is gone: then its streams are forgotten."""
        worker = event.worker_id
        if event.card is None:
            self._cards.pop(worker, None)
            for key in [key for key in self._streams if key.worker_id == worker]:
                self._forget(key)
        elif worker in self._cards or len(self._cards) < self._limits.workers:
            self._cards[worker] = event.card
        else:
            self._refused_workers += 1
            self._said.warning(
                "workers",
                f"more than {self._limits.workers} workers are registered; further ones stay hidden",
            )

    def forget_workers(self) -> None:
        """Hold nobody as registered, and keep the streams: they show again when their workers do."""
        self._cards.clear()

    def recent(self, max_age_s: float | None = None) -> dict[StreamKey, TrackedPass]:
        """Return the latest message of each stream that may be shown, at most ``max_age_s`` seconds old.

        Raises :class:`ConfigError` for an age that is no number of at least 0.
        """
        now = self._clock.monotonic()
        return {
            key: self._shown(stream, latest, now) for key, stream, latest in self._visible(now, max_age_s)
        }

    def recent_stats(self, max_age_s: float | None = None) -> dict[tuple[str, int], bytes]:
        """Return the payloads of :meth:`recent`."""
        now = self._clock.monotonic()
        return {key: latest.payload for key, _, latest in self._visible(now, max_age_s)}

    def cards(self) -> dict[str, str]:
        """Return the model card of each registered worker, JSON text by worker id."""
        return dict(self._cards)

    def counts(self) -> TrackerCounts:
        """Return what was taken and what is held."""
        return TrackerCounts(
            messages=self._messages,
            unkeyable=self._unkeyable,
            streams=len(self._streams),
            publishers=len(self._publishers),
            workers=len(self._cards),
            dropped_streams=self._dropped_streams,
            dropped_publishers=self._dropped_publishers,
            refused_workers=self._refused_workers,
        )

    def _visible(self, now: float, max_age_s: float | None) -> list[tuple[StreamKey, _Stream, PlaneMessage]]:
        oldest = math.inf if max_age_s is None else max_age_s
        if not oldest >= 0:
            raise ConfigError("max_age_s", max_age_s, "a number of seconds of at least 0, or None")
        return [
            (key, stream, stream.latest)
            for key, stream in self._streams.items()
            if stream.latest is not None
            and now - stream.taken_at <= oldest
            and (not self._require_known or key.worker_id in self._cards)
        ]

    def _shown(self, stream: _Stream, latest: PlaneMessage, now: float) -> TrackedPass:
        watch = self._publishers.get(latest.publisher_id) or SequenceWatch()
        return TrackedPass(
            payload=latest.payload,
            age_seconds=now - stream.taken_at,
            received_at_ms=latest.received_at_ms,
            published_at_ms=latest.published_at_ms,
            publisher_id=latest.publisher_id,
            sequence=latest.sequence,
            counter_id=stream.counter_id,
            messages=stream.messages,
            epoch=stream.losses.epoch,
            counters=stream.losses.result(),
            plane=PublisherLosses(watch.lost, watch.gaps, watch.restarts),
        )

    def _note_publisher(self, message: PlaneMessage) -> None:
        watch = self._publishers.pop(message.publisher_id, None) or SequenceWatch()
        self._publishers[message.publisher_id] = watch
        watch.note(message.sequence)
        if len(self._publishers) > self._limits.publishers:
            del self._publishers[next(iter(self._publishers))]
            self._dropped_publishers += 1

    def _make_room(self, newest: StreamKey) -> None:
        limits = self._limits
        while len(self._streams) > 1 and (
            len(self._streams) > limits.streams or self._payload_bytes > limits.payload_bytes
        ):
            self._forget(self._least_needed(newest))
            self._dropped_streams += 1
            self._said.warning(
                "streams",
                f"more is tracked than {limits.streams} streams or {limits.payload_bytes} bytes; "
                "what was silent the longest goes",
            )

    def _least_needed(self, newest: StreamKey) -> StreamKey:
        """Return the stream to forget: of an unknown worker if there is one, the one silent the longest."""
        if self._require_known:
            for key in self._streams:
                if key.worker_id not in self._cards:
                    return key
        return next(key for key in self._streams if key != newest)

    def _forget(self, key: StreamKey) -> None:
        self._payload_bytes -= self._streams.pop(key).size


def _counter_of(payload: bytes) -> int | None:
    try:
        return _counter_decoder.decode(payload).counter_id
    except BYTES_ERRORS:
        return None
