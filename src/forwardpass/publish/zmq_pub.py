"""Knows how to bind a ZMQ ``PUB`` socket and send the raw stream's three frames through it.

Everything happens in the thread that opened it. The context is private, so that no other user of ZMQ in
the engine's process can keep it from closing.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import zmq

from forwardpass.clock import Clock
from forwardpass.config.variables import BIND_HOST, METRIC_PORT
from forwardpass.counters import DropReason
from forwardpass.errors import ConfigError, PortUnavailable
from forwardpass.publish.port_owner import port_owner
from forwardpass.quiet import QuietLog
from forwardpass.wire.frames import join

__all__ = ["PubSocket"]

logger = logging.getLogger(__name__)

_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_LAST = int(zmq.NOBLOCK)
_BAD_HOST = frozenset({errno.ENODEV, errno.EINVAL, errno.EADDRNOTAVAIL})
_MAX_PORT = 65_535

# What a forked child inherited. Kept from the garbage collector, which would close it: the sockets and
# their threads live on in the parent.
_inherited: list[object] = []


class PubSocket:
    """A bound publisher socket.

    A subscriber that does not keep up gets its own queue of at most ``send_hwm`` messages; what exceeds
    it is lost for that subscriber alone, and ZMQ does not say so. A queued message takes about 0.7 kB
    (measured: 66 MB for 100,000 of 443 bytes), so the default of 100,000 bounds what a stalled
    subscriber can pin to some 70 MB. Subscribers that stall together share the payloads.
    """

    def __init__(self, host: str, port: int, *, send_hwm: int, clock: Clock | None = None) -> None:
        """Name the address: ``*`` is every interface, port 0 any free one. Nothing is opened yet."""
        self._host = host
        self._port = port
        self._send_hwm = send_hwm
        self._log = QuietLog(logger, clock)
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._send_frame: Callable[[bytes, int], object] | None = None

    def open(self) -> int:
        """Bind and return the port.

        Raises :class:`PortUnavailable` when the port is taken or otherwise not to be had, and
        :class:`ConfigError` when the host is no address of this machine.
        """
        if not 0 <= self._port <= _MAX_PORT:
            raise PortUnavailable(METRIC_PORT.name, self._port, "not a TCP port", None)
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            socket = context.socket(zmq.PUB)
            socket.setsockopt(zmq.SNDHWM, self._send_hwm)
            if ":" in self._host:
                socket.setsockopt(zmq.IPV6, 1)
            socket.bind(self._endpoint())
            port = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        except zmq.ZMQError as error:
            context.destroy(linger=0)
            raise self._translate(error) from error
        self._context, self._socket = context, socket
        # What zmq.Socket.send calls in the end (pyzmq 26 and 27): its Python wrapper, which only serves
        # socket types that we do not use, takes half of a frame's time.
        self._send_frame = super(zmq.Socket, socket).send
        return port

    def _endpoint(self) -> str:
        host = f"[{self._host.strip('[]')}]" if ":" in self._host else self._host
        return f"tcp://{host}:{self._port or '*'}"

    def _translate(self, error: zmq.ZMQError) -> ConfigError:
        if error.errno in _BAD_HOST:
            return ConfigError(BIND_HOST.name, self._host, f"{BIND_HOST.accepted} of this machine")
        holder = port_owner(self._port) if error.errno == errno.EADDRINUSE else None
        return PortUnavailable(METRIC_PORT.name, self._port, str(error.strerror), holder)

    def send(self, seq: int, payload: bytes) -> DropReason | None:
        """Send one message without blocking; return ``None``, or why it was dropped."""
        send = self._send_frame
        if send is None:
            return DropReason.CLOSED
        topic, number, body = join(seq, payload)
        # Three calls cost a third of what send_multipart does (benchmarks/bench_raw_stream.py). PUB takes a
        # message whole or not at all, so these cannot fail half-way for want of room.
        try:
            send(topic, _MORE)
            send(number, _MORE)
            send(body, _LAST)
        except zmq.Again:
            return DropReason.SOCKET_FULL
        except zmq.ZMQError as error:
            self._log.error("send", f"cannot send a Forward Pass Metrics message: {error}", exc_info=True)
            return DropReason.SEND_ERROR
        return None

    def close(self, linger_seconds: float) -> None:
        """Close, giving what subscribers have not received yet at most ``linger_seconds``. Idempotent."""
        socket, context = self._socket, self._context
        self._socket = self._context = self._send_frame = None
        if socket is not None:
            socket.close(linger=max(0, int(linger_seconds * 1000)))
        if context is not None:
            context.term()

    def forget(self) -> None:
        """Drop the parent's socket in a forked child without touching it."""
        _inherited.extend((self._context, self._socket))
        self._socket = self._context = self._send_frame = None
