"""Knows how one raw stream is relayed: drain the socket, offer to the trace, hand to the event plane.

Payload bytes pass untouched; nothing is decoded, so a malformed payload is relayed as well (the trace
refuses it, and counts it). Only the trace is given the payloads of an old publisher completed. It is offered
the whole batch first; the plane has a bounded queue and a task of its own. Neither can fail the other, and
the plane delays nothing; a backlog waits in the socket for the trace's queue, for a second at most where a
plane waits (``cadence.Pace``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.counters import StageCounts
from forwardpass.errors import FrameError
from forwardpass.quiet import QuietLog
from forwardpass.relay.cadence import Backoff
from forwardpass.relay.outbox import Outbox
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.witness import Witness
from forwardpass.trace.ledger import LedgerEvent
from forwardpass.wire.complete import complete_many
from forwardpass.wire.frames import Frames
from forwardpass.wire.sequence import SequenceWatch

__all__ = ["LOOK_SECONDS", "FrameBatch", "FrameSource", "PayloadHook", "Relay", "RelayStats", "TraceOffer"]

logger = logging.getLogger(__name__)

PayloadHook = Callable[[int | None, Frames], None]
"""Called with (rank or None, message) for every message, after the trace was offered it."""

LOOK_SECONDS = 0.25
"""How often the state of the connection is looked at."""


class FrameBatch(Protocol):
    """What a source received in one call."""

    payloads: list[bytes]
    bad: list[FrameError]

    def sequences(self) -> tuple[int, ...]:
        """Return the sequence of each payload."""
        ...

    def __iter__(self) -> Iterator[Frames]:
        """Yield the good messages."""
        ...

    def __len__(self) -> int:
        """Return how many messages, good and bad."""
        ...


class FrameSource(Protocol):
    """Where messages come from; :class:`~forwardpass.relay.zmq_source.ZmqSource` is the one."""

    connects: int
    connected: bool

    @property
    def descriptor(self) -> int | None:
        """The file that becomes readable when something arrives after an empty batch, or ``None``."""
        ...

    def receive_many(self, limit: int) -> FrameBatch:
        """Return what has arrived, without waiting; raises ``OSError`` when it does not work any more."""
        ...

    def look(self) -> None:
        """Update ``connects`` and ``connected``."""
        ...

    def reopen(self) -> None:
        """Start afresh after a failure."""
        ...

    def close(self) -> None:
        """Release the socket. Idempotent."""
        ...


class TraceOffer(Protocol):
    """What a relay needs of the trace; never blocks, never raises."""

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        """Offer payloads observed at one time; returns how many were accepted."""
        ...

    def room(self) -> int:
        """Return how many payloads can be offered now without one being dropped for another."""
        ...

    def note(self, event: LedgerEvent) -> None:
        """Keep what happened to the stream for the trace's ledger."""
        ...


class RelayStats(Struct, frozen=True):
    """One stream, since the relay started."""

    url: str
    dp_rank: int | None
    received: int
    """Messages with the right frames, whatever their payload is."""
    bytes: int
    """Payload bytes of those."""
    bad_frames: int
    """Messages skipped because their frames were not those of the raw stream."""
    gaps: int
    """Times that the sequence skipped numbers."""
    lost: int
    """Messages that the skipped numbers stand for."""
    restarts: int
    """Times that the sequence went back: the publisher was started again."""
    trace_refused: int
    """Messages that the trace did not accept; 0 without a trace."""
    plane: StageCounts | None
    """What became of the messages on their way to the event plane; ``None`` without one."""
    last_received_unix_ms: int | None
    connected: bool
    """Whether a publisher was connected at the last look; false once the relay is closed."""
    reconnects: int
    """Connections after the first."""
    receive_errors: int
    """Times that the socket failed and was made anew."""


class Relay:
    """One stream's way from the socket to the trace and the plane.

    ``turn`` does one drain and never raises; the supervisor calls it on its tick.
    """

    def __init__(
        self,
        target: RelayTarget,
        source: FrameSource,
        *,
        clock: Clock,
        trace: TraceOffer | None = None,
        outbox: Outbox | None = None,
        on_payload: PayloadHook | None = None,
        warnings: QuietLog | None = None,
    ) -> None:
        self.target = target
        self._source = source
        self._clock = clock
        self._trace = trace
        self._outbox = outbox
        self._on_payload = on_payload
        self._warnings = warnings or QuietLog(logger, clock)
        self._watch = SequenceWatch()
        self._witness = Witness(target.url, clock, trace.note) if trace is not None else None
        self._backoff = Backoff()
        self._retry_at: float | None = None
        self._next_look = 0.0
        self._last_received: int | None = None
        self._received = self._bytes = self._bad_frames = self._trace_refused = self._receive_errors = 0

    def turn(self, now: float, limit: int) -> int:
        """Relay what has arrived by monotonic ``now``, at most ``limit`` messages; return how many."""
        try:
            if self._witness is not None:
                self._witness.turned(now)
            if self._retry_at is not None and not self._reopened(now):
                return 0
            if now >= self._next_look:
                self._next_look = now + LOOK_SECONDS
                self._look()
            batch = self._source.receive_many(limit)
            if not len(batch):
                return 0
            self._backoff.reset()
            self._pass_on(batch)
            return len(batch)
        except OSError as error:
            self._failed(now, str(error))
        except Exception as error:  # boundary: one stream's failure must not reach the others
            logger.exception("%s: internal error in the relay", self.target.url)
            self._failed(now, repr(error))
        return 0

    @property
    def descriptor(self) -> int | None:
        """The file that becomes readable when there is something to relay; ``None``: look again soon."""
        return self._source.descriptor if self._retry_at is None else None

    def stats(self) -> RelayStats:
        """Return the counts so far."""
        return RelayStats(
            url=self.target.url,
            dp_rank=self.target.dp_rank,
            received=self._received,
            bytes=self._bytes,
            bad_frames=self._bad_frames,
            gaps=self._watch.gaps,
            lost=self._watch.lost,
            restarts=self._watch.restarts,
            trace_refused=self._trace_refused,
            plane=self._outbox.counts() if self._outbox is not None else None,
            last_received_unix_ms=self._last_received,
            connected=self._source.connected,
            reconnects=max(0, self._source.connects - 1),
            receive_errors=self._receive_errors,
        )

    def close(self) -> None:
        """Release the socket. Idempotent."""
        self._source.look()
        self._source.close()

    def _pass_on(self, batch: FrameBatch) -> None:
        for error in batch.bad:
            self._bad_frames += 1
            self._warnings.warning(
                (self.target.url, "frames"), f"{self.target.url}: skipped a message: {error}"
            )
        payloads = batch.payloads
        if not payloads:
            return
        self._last_received = self._clock.unix_ms()
        self._received += len(payloads)
        self._bytes += sum(map(len, payloads))
        sequences = batch.sequences()
        try:
            if self._trace is not None:
                whole = complete_many(payloads, sequences)
                accepted = self._trace.offer_many(whole, self._last_received)
                self._trace_refused += len(payloads) - accepted
        finally:  # whatever the trace does, the plane gets its payloads
            if self._outbox is not None:
                self._outbox.put_many(payloads)
        jumps = self._watch.note_many(sequences)
        if self._witness is not None:
            if jumps:
                self._look()  # was it the connection?
            self._witness.received(jumps, payloads, self._source.connects)
        if self._on_payload is not None:
            self._show(batch, self._on_payload)

    def _look(self) -> None:
        self._source.look()
        if self._witness is not None:
            self._witness.looked(self._source.connected, self._source.connects)

    def _show(self, batch: FrameBatch, on_payload: PayloadHook) -> None:
        try:
            for frames in batch:
                on_payload(self.target.dp_rank, frames)
        except Exception:  # noqa: BLE001  boundary: a view must not cost the recording anything
            self._warnings.error((self.target.url, "hook"), "internal error in a live view", exc_info=True)

    def _reopened(self, now: float) -> bool:
        if self._retry_at is not None and now < self._retry_at:
            return False
        self._source.reopen()
        self._retry_at = None
        return True

    def _failed(self, now: float, reason: str) -> None:
        self._receive_errors += 1
        if self._witness is not None:
            self._witness.failed()
        wait = self._backoff.next()
        self._retry_at = now + wait
        text = f"{self.target.url}: receiving failed ({reason}); trying again in {wait:g} s"
        self._warnings.warning((self.target.url, "receive"), text)
