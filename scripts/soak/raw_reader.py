"""Knows how to read the raw stream with nothing of the product: pyzmq, a file, and an index into it.

It is never restarted and its socket has no limit, so what it misses was never sent.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import zmq

__all__ = ["Message", "RawLog", "RawReader"]

_HEAD = struct.Struct("<QdI")


class Message(NamedTuple):
    """One message as it came."""

    sequence: int
    at: float
    """Monotonic seconds when it was read."""
    payload: bytes

    def packed(self) -> bytes:
        """Return the message as it stands in a reader's file."""
        return _HEAD.pack(self.sequence, self.at, len(self.payload)) + self.payload


class RawReader:
    """Reads one stream into a file until it is closed. ``last`` is the newest message."""

    def __init__(self, url: str, path: Path) -> None:
        self.path = path
        self.last: Message | None = None
        self.faults: list[str] = []
        """Messages that were not three frames, and how the thread ended if not as asked."""
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, name="raw-reader", daemon=True)

    def __enter__(self) -> RawReader:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(10.0)

    def _read(self) -> None:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVTIMEO, 200)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(self._url)
        try:
            with self.path.open("wb") as file:
                while not self._ended.is_set():
                    try:
                        frames = socket.recv_multipart()
                    except zmq.Again:
                        file.flush()
                        continue
                    if len(frames) != 3 or frames[0] or len(frames[1]) != 8:
                        self.faults.append(f"frames of {[len(frame) for frame in frames]} bytes")
                        continue
                    message = Message(int.from_bytes(frames[1], "big"), time.monotonic(), frames[2])
                    file.write(message.packed())
                    self.last = message
        except (OSError, zmq.ZMQError) as error:
            self.faults.append(repr(error))
        finally:
            socket.close()
            context.term()


class RawLog:
    """The messages of one finished reader. Raises ``ValueError`` if there are none."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._offsets = array("Q")
        self.times = array("d")
        self.gaps: list[tuple[int, int]] = []
        """Pairs of neighbours whose sequences do not follow each other."""
        self._index()

    def _index(self) -> None:
        offset, before, size = 0, None, len(self._bytes)
        while offset < size:
            sequence, at, length = _HEAD.unpack_from(self._bytes, offset)
            if before is None:
                self.first = sequence
            elif sequence != before + 1:
                self.gaps.append((before, sequence))
            before = sequence
            self._offsets.append(offset)
            self.times.append(at)
            offset += _HEAD.size + length
        self.last = before

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[Message]:
        return (self._at(position) for position in range(len(self)))

    def get(self, sequence: int) -> Message | None:
        """Return the message with this sequence, or ``None``; for a log without gaps."""
        position = sequence - self.first
        return self._at(position) if 0 <= position < len(self) else None

    def last_before(self, at: float) -> int | None:
        """Return the sequence of the last message that was read by monotonic ``at``."""
        position = bisect_right(self.times, at) - 1
        return self.first + position if position >= 0 else None

    def _at(self, position: int) -> Message:
        offset = self._offsets[position]
        sequence, at, length = _HEAD.unpack_from(self._bytes, offset)
        start = offset + _HEAD.size
        return Message(sequence, at, self._bytes[start : start + length])
