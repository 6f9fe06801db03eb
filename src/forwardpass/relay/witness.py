"""Knows how to tell the ledger what a relay sees of its stream: connections, gaps, restarts, stalls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from forwardpass.clock import Clock
from forwardpass.errors import WireError
from forwardpass.trace.ledger import MAX_RANGES, CounterRange, EventKind, LedgerEvent, ledger_name
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.sequence import Jump

__all__ = ["SILENT_SECONDS", "STALL_SECONDS", "Witness"]

STALL_SECONDS = 2.0
"""A relay that was not at work for so long stood still with its whole process, or its event loop did."""
SILENT_SECONDS = 5.0
"""A connected publisher that says nothing for so long misses five heartbeats."""
MAX_RESTARTS = 4
"""Restarts of one batch that are told; two publishers that take turns make very many."""


class Witness:
    """What one stream's relay saw."""

    def __init__(self, url: str, clock: Clock, tell: Callable[[LedgerEvent], None]) -> None:
        self._url, self._clock, self._tell = url, clock, tell
        self._connected = False
        self._made = 0
        self._connects = 0  # as of the last message
        self._turned: float | None = None
        self._heard: float | None = None
        """When something came last, or the connection was made."""

    def turned(self, now: float) -> None:
        """Take note that the relay is at work at monotonic ``now``."""
        before, self._turned = self._turned, now
        if before is not None and now - before >= STALL_SECONDS:
            self._heard = None  # who slept has heard nothing
            self._event(EventKind.STALLED, seconds=round(now - before, 3))

    def looked(self, connected: bool, connects: int) -> None:
        """Take note of the connection's state, and of how many there have been."""
        if self._connected and (not connected or connects > self._made):
            self._event(EventKind.DISCONNECTED)  # also if it is made anew since the last look
        if connected and connects > self._made:
            self._event(EventKind.CONNECTED)
            self._heard = self._turned
        self._connected, self._made = connected, connects

    def failed(self) -> None:
        """Take note that the socket failed."""
        self._event(EventKind.RECEIVE_ERROR)

    def received(self, jumps: Sequence[Jump], payloads: Sequence[bytes], connects: int) -> None:
        """Take note of a batch, and where its numbers jumped; ``connects`` is the number of connections."""
        self._break_silence(payloads[0])
        reconnected = connects > max(self._connects, 1)
        self._connects = connects
        gaps = [jump for jump in jumps if jump.number > jump.last]
        if gaps:
            worker_id, dp_rank = _whose(payloads[gaps[0].at])
            self._event(
                EventKind.WIRE_GAP,
                worker_id=worker_id,
                dp_rank=dp_rank,
                ranges=[CounterRange(jump.last + 1, jump.number - 1) for jump in gaps[:MAX_RANGES]],
                count=sum(jump.number - jump.last - 1 for jump in gaps),
                reconnected=reconnected,
            )
        for jump in [jump for jump in jumps if jump.number <= jump.last][:MAX_RESTARTS]:
            worker_id, dp_rank = _whose(payloads[jump.at])
            self._event(
                EventKind.RESTART, worker_id=worker_id, dp_rank=dp_rank, last=jump.last, first=jump.number
            )

    def _break_silence(self, payload: bytes) -> None:
        before, self._heard = self._heard, self._turned
        if before is None or self._heard is None or not self._connected:
            return
        if self._heard - before >= SILENT_SECONDS:
            worker_id, dp_rank = _whose(payload)
            seconds = round(self._heard - before, 3)
            self._event(EventKind.SILENT, worker_id=worker_id, dp_rank=dp_rank, seconds=seconds)

    def _event(self, kind: EventKind, **details: object) -> None:
        self._tell(LedgerEvent(kind, self._clock.unix_ms(), self._url, **details))  # type: ignore[arg-type]


def _whose(payload: bytes) -> tuple[str | None, int | None]:
    try:
        metrics = decode_strict(payload)
    except WireError:
        return None, None
    return ledger_name(metrics.worker_id), metrics.dp_rank
