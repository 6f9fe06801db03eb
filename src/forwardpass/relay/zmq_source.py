"""Knows how to receive the raw stream: the SUB socket, and its frames as fast as Python can take them.

Frames are received one by one and without waiting, which costs less than a third of the multipart
helper; asking ``RCVMORE`` costs as much as a frame, so it is asked once per message, after the payload.
Where frames do not look like those of the raw stream the boundary is asked for at once, everything up to
it is skipped and counted, and the next message is whole again.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

import zmq
from zmq.utils.monitor import parse_monitor_message

from forwardpass.errors import ConfigError, FrameError
from forwardpass.relay.targets import ACCEPTED, check_url
from forwardpass.wire.frames import FRAME_COUNT, SEQUENCE_BYTES, Frames, split

__all__ = ["MAX_FRAME_BYTES", "RECEIVE_HWM", "Batch", "ZmqSource"]

RECEIVE_HWM = 300_000
"""Messages that wait in this process while nobody receives: at most about 190 MB, and nothing while somebody
does. 10 s of 20,000 a second must fit at whatever moment they begin, and libzmq tells the sender of new
room only once half of it has been taken.
"""
MAX_FRAME_BYTES = 1_048_576
"""A larger frame never enters memory: libzmq drops the connection, and a new socket is made.

An ordinary payload has 450 bytes.
"""

RECONNECT_MS = 100
RECONNECT_MAX_MS = 250
"""A publisher that comes up late is joined within this time, and what it sends before that is lost: a
server that takes half a minute to start must not find a relay that has become patient. (With 5 s the
whole load of a test that began once vLLM 0.32 was up went unrecorded.) A refused connection is cheap.
"""
CONNECT_TIMEOUT_MS = 5_000
KEEPALIVE_IDLE_SECONDS = 30
KEEPALIVE_INTERVAL_SECONDS = 10
KEEPALIVE_PROBES = 3

_NOBLOCK = int(zmq.NOBLOCK)
_RCVMORE = int(zmq.RCVMORE)
_WATCHED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)
_GIVEN_UP = f"connection dropped: the peer is no ZMQ publisher or sent a frame above {MAX_FRAME_BYTES} bytes"


class Batch:
    """What one call received, in order. Iterate over it for :class:`~forwardpass.wire.frames.Frames`."""

    __slots__ = ("bad", "payloads", "sequence_frames")

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.sequence_frames: list[bytes] = []
        """The second frame of each message, 8 bytes big-endian."""
        self.bad: list[FrameError] = []
        """Messages whose frames were not those of the raw stream; their content is gone."""

    def sequences(self) -> tuple[int, ...]:
        """Return the publisher's sequence of each payload."""
        return struct.unpack(f">{len(self.sequence_frames)}Q", b"".join(self.sequence_frames))

    def __iter__(self) -> Iterator[Frames]:
        """Yield the good messages; the topic is not kept (the raw stream's is empty)."""
        for seq, payload in zip(self.sequences(), self.payloads, strict=True):
            yield Frames(b"", seq, payload)

    def __len__(self) -> int:
        """Return how many messages were received, good and bad."""
        return len(self.payloads) + len(self.bad)


class ZmqSource:
    """One SUB socket, subscribed to everything at ``url`` (``tcp://HOST:PORT`` or ``ipc://PATH``).

    The publisher may come later, go and come back: libzmq connects again every 100 to 250 ms. Nothing
    here blocks. For one thread; raises :class:`ConfigError` for a URL that cannot be connected to.
    """

    reconnect_ms = (RECONNECT_MS, RECONNECT_MAX_MS)
    """First and longest wait before a refused connection is tried again."""

    def __init__(self, url: str, *, receive_hwm: int = RECEIVE_HWM) -> None:
        self.url = check_url(url)
        self.connects = 0
        """Connections made so far, over all sockets (see :meth:`look`)."""
        self.connected = False
        """Whether a publisher was at the other end when :meth:`look` was last called."""
        self._receive_hwm = receive_hwm
        self._open()

    def _open(self) -> None:
        self._lost = False
        self._broken: OSError | None = None
        socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        try:
            self._configure(socket)
            self._monitor = socket.get_monitor_socket(_WATCHED)
            socket.connect(self.url)
        except zmq.ZMQError as error:
            socket.close(0)
            raise ConfigError("stream", self.url, f"{ACCEPTED} ({error})") from error
        self._socket = socket
        self._descriptor = int(socket.get(zmq.FD))

    def _configure(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RCVHWM, self._receive_hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        first, longest = self.reconnect_ms
        socket.setsockopt(zmq.RECONNECT_IVL, first)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, longest)
        socket.setsockopt(zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS)
        socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, KEEPALIVE_IDLE_SECONDS)
        socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, KEEPALIVE_INTERVAL_SECONDS)
        socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, KEEPALIVE_PROBES)
        if "[" in self.url:  # only for literal addresses: otherwise "localhost" may become ::1 alone
            socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.SUBSCRIBE, b"")

    @property
    def descriptor(self) -> int | None:
        """The socket's own file (``ZMQ_FD``): readable once something arrives after an empty batch."""
        return None if self._socket.closed or self._broken is not None else self._descriptor

    def receive_many(self, limit: int) -> Batch:
        """Return what has arrived, at most ``limit`` messages; an empty batch when nothing has.

        Raises ``OSError`` when the socket does not work any more (:meth:`reopen` makes a new one), but
        never instead of messages that it has already taken off the socket.
        """
        batch = Batch()
        payloads, sequences, recv = batch.payloads, batch.sequence_frames, self._socket.recv
        got = 0  # frames of the message that is being received
        try:
            for _ in range(limit):
                got = 0
                topic = recv(_NOBLOCK)
                got = 1
                if topic and self._ends_here(1, batch):
                    continue
                seq = recv(_NOBLOCK)
                got = 2
                if len(seq) != SEQUENCE_BYTES and self._ends_here(2, batch):
                    continue
                frame = recv(_NOBLOCK, False)
                if frame.more or len(seq) != SEQUENCE_BYTES:
                    self._resynchronise([topic, seq, frame.bytes], bool(frame.more), batch)
                    continue
                payloads.append(frame.bytes)
                sequences.append(seq)
        except zmq.Again:
            if got:  # messages come whole, so this one ended before its next frame
                batch.bad.append(_wrong(got))
        except zmq.ZMQError as error:
            self._broken = OSError(error.errno, f"{self.url}: {error}")
        if self._broken is not None and limit and not len(batch):
            raise self._broken
        return batch

    def _ends_here(self, count: int, batch: Batch) -> bool:
        """Say whether the message had ``count`` frames only; then it is counted as bad."""
        if self._socket.get(_RCVMORE):
            return False
        batch.bad.append(_wrong(count))
        return True

    def _resynchronise(self, frames: list[bytes], more: bool, batch: Batch) -> None:
        """Read to the end of the message that ``frames`` begins, and keep a whole one at its end.

        An empty frame, or two that look like the first two of a message, may have come as a message of
        their own, right before a good one. What is good then are the last three frames.
        """
        while more:
            frames.append(self._socket.recv(_NOBLOCK))
            more = bool(self._socket.get(_RCVMORE))
        wrong, tail = frames[:-FRAME_COUNT], frames[-FRAME_COUNT:]
        if wrong and tail[0] == b"" and len(tail[1]) == SEQUENCE_BYTES:
            batch.bad.append(_wrong(len(wrong)))
            batch.sequence_frames.append(tail[1])
            batch.payloads.append(tail[2])
            return
        try:
            split(frames)
        except FrameError as error:
            batch.bad.append(error)

    def look(self) -> None:
        """Update ``connects`` and ``connected`` from what happened to the connection.

        libzmq tries again after every loss of a connection but one: when the peer broke the protocol, or
        sent a frame beyond the limit, it drops the connection for good. No retry has followed the loss by
        the next look then, and the socket counts as broken.
        """
        if self._socket.closed:
            return
        lost_before = self._lost
        try:
            while True:
                event = parse_monitor_message(self._monitor.recv_multipart(_NOBLOCK))["event"]
                self._lost = event == zmq.EVENT_DISCONNECTED
                self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
                self.connects += self.connected
        except zmq.Again:  # nothing more happened
            if lost_before and self._lost:
                self._broken = OSError(errno.EPROTO, f"{self.url}: {_GIVEN_UP}")
        except zmq.ZMQError as error:
            self._broken = OSError(error.errno, f"{self.url}: {error}")

    def reopen(self) -> None:
        """Throw the socket away and connect with a new one; what it held is lost. Raises as creation."""
        self.close()
        self._open()

    def close(self) -> None:
        """Close the socket at once. Idempotent."""
        self.connected = False
        if not self._socket.closed:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(0)


def _wrong(count: int) -> FrameError:
    return FrameError(f"expected {FRAME_COUNT} frames, got {count}", count)
