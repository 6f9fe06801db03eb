"""Knows how a publisher sends on the ZMQ plane: the PUB socket, the frames, and leaving."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import zmq

from forwardpass.errors import PayloadTooLarge, PlaneClosed, PlaneUnavailable
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import draw_publisher_id
from forwardpass.plane.zmq.frames import join

__all__ = ["MAX_PAYLOAD_BYTES", "SEND_HWM", "ZmqPublisher", "bound_socket", "connected_socket"]

MAX_PAYLOAD_BYTES = 1_048_576
"""As the default of a NATS server, so that what passes here passes there. An ordinary payload has 450."""
SEND_HWM = 100_000
"""Messages that wait for each slow subscriber, about 60 MB; what is beyond is lost to that one."""
LINGER_MS = 500
"""What a closed socket has still to send is given so long, in libzmq's own thread."""
LEAVE_SECONDS = 0.05
"""Between the last message and the record's end: subscribers disconnect as soon as a record goes, and what is
still on its way then is lost to them.
"""

_NOBLOCK = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)


class ZmqPublisher:
    """A publisher: one socket, one id, one sequence.

    ``name`` is the first frame of its messages; ``leave`` is awaited once, at ``close``.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        name: bytes,
        context: PlaneContext,
        *,
        publisher_id: int | None = None,
        leave: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.publisher_id = draw_publisher_id() if publisher_id is None else publisher_id
        self._socket = socket
        self._name = name
        self._clock = context.clock
        self._leave = leave
        self._sequence = 0

    async def publish(self, payload: bytes) -> None:
        """Hand ``payload`` to libzmq; never waits. Raises as the protocol says."""
        if self._socket.closed:
            raise PlaneClosed("this publisher on the ZMQ plane is closed")
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(len(payload), MAX_PAYLOAD_BYTES)
        sequence = self._sequence
        self._sequence += 1  # also for a message that is lost: a gap shows it
        envelope = encode_envelope(self.publisher_id, sequence, self._clock.unix_ms(), payload)
        name, publisher_id, number, wrapped = join(self._name, self.publisher_id, sequence, envelope)
        send = self._socket.send
        try:
            # Four sends cost less than half of the multipart helper (3 and 7 us; pyzmq 27.3, Python 3.11,
            # 2026-12); a PUB socket never blocks, so none of them stops in the middle.
            send(name, _MORE)
            send(publisher_id, _MORE)
            send(number, _MORE)
            send(wrapped, _NOBLOCK)
        except zmq.ZMQError as error:
            raise PlaneUnavailable(f"ZMQ plane: {error}") from error

    async def close(self) -> None:
        """Leave the plane. Idempotent."""
        if self._socket.closed:
            return
        self._socket.close(LINGER_MS)
        leave, self._leave = self._leave, None
        if leave is None:
            return
        try:
            if self._sequence:
                await asyncio.sleep(LEAVE_SECONDS)
        finally:  # also when it is cancelled: nobody else takes the record away
            await leave()


def bound_socket(address: str) -> tuple[zmq.Socket[bytes], str]:
    """Return a PUB socket and where it is bound: with ``*`` for a port, one that the system chose.

    The socket itself is bound once and asked, because a port that was looked up beforehand may be taken by
    then. Raises :class:`PlaneUnavailable`.
    """
    socket = _socket("[" in address)
    try:
        socket.bind(address)
        return socket, socket.get_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as error:
        socket.close(0)
        raise PlaneUnavailable(f"ZMQ plane: {address} cannot be bound: {error}") from error


def connected_socket(addresses: tuple[str, ...]) -> zmq.Socket[bytes]:
    """Return a PUB socket that sends through the brokers at ``addresses``; they need not be up."""
    socket = _socket(any("[" in address for address in addresses))
    try:
        for address in addresses:
            socket.connect(address)
    except zmq.ZMQError as error:
        socket.close(0)
        raise PlaneUnavailable(f"ZMQ plane: {address} cannot be connected to: {error}") from error
    return socket


def _socket(ipv6: bool) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUB)
    socket.setsockopt(zmq.SNDHWM, SEND_HWM)
    socket.setsockopt(zmq.SNDTIMEO, 0)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    return socket
