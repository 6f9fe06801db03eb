"""Knows how ranks reach each other: a ROUTER socket on rank 0, a DEALER on every other, named by its rank."""

from __future__ import annotations

import errno
import ipaddress
import re
import socket as sockets

import zmq

from forwardpass.errors import ConfigError, PortUnavailable

__all__ = ["MAX_MESSAGE_BYTES", "ZmqLink", "connect_to_zero", "listen_on_zero"]

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Who sends more is disconnected. The results of 64 ranks, with evidence for each request, have about 5."""
_HOST = re.compile(r"[0-9A-Za-z._:%-]{1,253}\Z")
_NOT_OURS = frozenset({errno.EADDRNOTAVAIL, errno.ENODEV})
_UNREACHABLE = frozenset({zmq.EHOSTUNREACH, zmq.EAGAIN})
_MASTER = "data_parallel_master_ip"
_PORT = "the synchroniser's port (base port + number of ranks)"


class ZmqLink:
    """One rank's socket. Belongs to the thread that uses it; the context is its own."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes]) -> None:
        self._context = context
        self._socket = socket
        self._routes = socket.type == zmq.ROUTER

    def send(self, rank: int, payload: bytes) -> bool:
        """Send to ``rank`` without waiting; say whether it could be. A DEALER keeps what cannot leave yet."""
        if self._socket.closed:
            return False
        frames = [str(rank).encode(), payload] if self._routes else [payload]
        try:
            self._socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in _UNREACHABLE:
                return False
            raise
        return True

    def receive(self, seconds: float) -> tuple[bytes, list[bytes]] | None:
        """Wait for a message at most so long; return who sent it (``b"0"`` on a DEALER) and its frames."""
        if not self._socket.poll(max(0, -int(-seconds * 1000 // 1))):
            return None
        frames = self._socket.recv_multipart(zmq.NOBLOCK)
        return (frames[0], frames[1:]) if self._routes else (b"0", frames)

    def close(self, linger_seconds: float) -> None:
        """Close, waiting at most so long until what was sent has left. Idempotent."""
        if not self._socket.closed:
            self._socket.close(linger=int(linger_seconds * 1000))
            self._context.term()


def listen_on_zero(master: str, port: int) -> ZmqLink:
    """Bind rank 0's socket: to the address of ``master`` if it is one of this machine's, else to all.

    Raises :class:`PortUnavailable`, and :class:`ConfigError` for what is no address.
    """
    host = _address(master)
    try:
        return _bound(host, port)
    except zmq.ZMQError as error:
        if error.errno not in _NOT_OURS:
            raise PortUnavailable(_PORT, port, f"on {host}: {error.strerror}", None) from error
    try:
        return _bound("*", port, ipv6=":" in host)
    except zmq.ZMQError as error:
        raise PortUnavailable(_PORT, port, str(error.strerror), None) from error


def connect_to_zero(master: str, port: int, rank: int) -> ZmqLink:
    """Connect another rank's socket; rank 0 need not be there yet. Raises :class:`ConfigError`."""
    host = _address(master)
    context, socket = _socket(zmq.DEALER, ":" in host)
    socket.setsockopt(zmq.ROUTING_ID, str(rank).encode())
    try:
        socket.connect(_endpoint(host, port))
    except zmq.ZMQError as error:
        context.destroy(linger=0)
        raise ConfigError(_MASTER, f"{master}:{port}", "an address that can be connected to") from error
    return ZmqLink(context, socket)


def _bound(host: str, port: int, *, ipv6: bool = False) -> ZmqLink:
    context, socket = _socket(zmq.ROUTER, ipv6 or ":" in host)
    socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
    try:
        socket.bind(_endpoint(host, port))
    except zmq.ZMQError:
        context.destroy(linger=0)
        raise
    return ZmqLink(context, socket)


def _socket(kind: int, ipv6: bool) -> tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, int(ipv6))
    return context, socket


def _endpoint(host: str, port: int) -> str:
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _address(master: str) -> str:
    """Return ``master``, an address or a name, as an address. Raises :class:`ConfigError`."""
    host = master.strip("[]")
    accepted = "an address or the name of a host"
    if not _HOST.match(host):
        raise ConfigError(_MASTER, master, accepted)
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = sockets.getaddrinfo(host, None, type=sockets.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(_MASTER, master, f"{accepted} ({error})") from error
    found.sort(key=lambda one: one[0] != sockets.AF_INET)  # every rank has to choose the same
    return str(found[0][4][0])
