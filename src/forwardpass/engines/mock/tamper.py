"""Knows how to lose and corrupt messages between a publisher and its socket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from forwardpass.counters import DropReason
from forwardpass.publish.stream import FrameSocket

__all__ = ["TamperedSocket", "Tampering"]


class Tampering:
    """What will happen to the next messages of one rank, in order; it outlives the rank's restarts.

    The engine's thread adds, the publisher's thread takes.
    """

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: deque[bytes | None] = deque()

    def lose(self, count: int) -> None:
        """Let ``count`` messages vanish after they were numbered and counted as sent."""
        self._next.extend([None] * count)

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Send each of ``payloads`` in place of a message's own; its sequence frame stays."""
        self._next.extend(payloads)

    def apply(self, payload: bytes) -> bytes | None:
        """Return what is sent for ``payload``; ``None`` is nothing."""
        return self._next.popleft() if self._next else payload

    @property
    def pending(self) -> int:
        """Messages that are still to be tampered with."""
        return len(self._next)


class TamperedSocket:
    """A socket whose messages pass through a :class:`Tampering`."""

    def __init__(self, socket: FrameSocket, tampering: Tampering) -> None:
        self._socket = socket
        self._tampering = tampering

    def open(self) -> int:
        """Open the real socket and return its port."""
        return self._socket.open()

    def send(self, seq: int, payload: bytes) -> DropReason | None:
        """Send, lose or corrupt one message. The publisher cannot tell, as with a real network."""
        sent = self._tampering.apply(payload)
        return None if sent is None else self._socket.send(seq, sent)

    def close(self, linger_seconds: float) -> None:
        """Close the real socket."""
        self._socket.close(linger_seconds)

    def forget(self) -> None:
        """Let a forked child forget the real socket."""
        self._socket.forget()
