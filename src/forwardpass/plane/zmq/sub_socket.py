"""Knows how one SUB socket follows many publishers that come and go, on an event loop.

The socket's descriptor tells only that something may have changed, so it is emptied each time and looked at
again after every call that libzmq may have used to take such a notice. libzmq connects again after every
loss of a connection but one: to a peer that broke the protocol or sent a frame beyond the limit. Its events
show that nothing followed the loss, and that peer alone is connected anew, after a growing wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import deque
from collections.abc import Callable

import zmq
from msgspec import Struct
from zmq.utils.monitor import parse_monitor_message

from forwardpass.plane.zmq.addresses import canonical
from forwardpass.plane.zmq.frames import FRAME_COUNT
from forwardpass.quiet import QuietLog

__all__ = ["MAX_PEERS", "SubSocket"]

RECEIVE_HWM = 100_000
RECONNECT_MS = (100, 250)
"""First and longest wait before a refused connection is tried again: what a publisher sends before it is
joined is lost, so a subscriber does not become patient. Dead publishers leave discovery soon.
"""
CONNECT_TIMEOUT_MS = 5_000
MAX_PEERS = 1_000
"""Each takes a descriptor of this process, and what they are comes from discovery."""
TURN_MESSAGES = 256
"""Received in one go before the event loop may do something else."""
LOOK_SECONDS = 1.0
GIVEN_UP_SECONDS = (1.0, 30.0)
"""First and longest wait before a peer that libzmq gave up is connected anew."""

_HOST_NAME = re.compile(r"tcp://[^\[]*[A-Za-z]")
_NOBLOCK = int(zmq.NOBLOCK)
_WATCHED = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED)


class _Peer(Struct):
    """One address and how its connection fares."""

    address: str
    lost_at: float | None = None
    """When the connection was lost without a new attempt by libzmq, by the loop's clock."""
    wait: float = GIVEN_UP_SECONDS[0]


class SubSocket:
    """A SUB socket with the one filter ``prefix``; for the event loop it was made on.

    ``on_message`` gets the frames of each message, at most one frame more than a message of the plane has:
    a longer one is cut. What it raises is logged.
    """

    def __init__(
        self,
        prefix: bytes,
        max_frame_bytes: int,
        on_message: Callable[[list[bytes]], None],
        warnings: QuietLog,
    ) -> None:
        self._on_message = on_message
        self._warnings = warnings
        self._peers: dict[str, _Peer] = {}
        self._left: deque[str] = deque(maxlen=MAX_PEERS)
        self._loop = asyncio.get_running_loop()
        self._again: asyncio.Handle | None = None
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.SUB)
        self._configure(prefix, max_frame_bytes)
        self._monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(_WATCHED)
        self._loop.add_reader(int(self._socket.get(zmq.FD)), self._readable)
        self._loop.add_reader(int(self._monitor.get(zmq.FD)), self._note_events)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)

    def _configure(self, prefix: bytes, max_frame_bytes: int) -> None:
        first, longest = RECONNECT_MS
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.RCVHWM, RECEIVE_HWM),
            (zmq.MAXMSGSIZE, max_frame_bytes),
            (zmq.RECONNECT_IVL, first),
            (zmq.RECONNECT_IVL_MAX, longest),
            (zmq.CONNECT_TIMEOUT, CONNECT_TIMEOUT_MS),
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 30),
            (zmq.TCP_KEEPALIVE_INTVL, 10),
            (zmq.TCP_KEEPALIVE_CNT, 3),
        ):
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.SUBSCRIBE, prefix)

    def connect(self, address: str) -> None:
        """Receive from ``address`` (one that ``is_address`` accepts) too; a second time does nothing."""
        name = canonical(address)
        if name in self._peers:
            return
        if len(self._peers) >= MAX_PEERS:
            self._warnings.warning("peers", f"more than {MAX_PEERS} publishers; the others are not read")
            return
        self._peers[name] = _Peer(name)
        self._connect(name)

    def disconnect(self, address: str) -> None:
        """Receive nothing more from ``address``, except what has arrived already."""
        name = canonical(address)
        if self._peers.pop(name, None) is not None:
            self._left.append(name)
            self._drain(RECEIVE_HWM)
            with contextlib.suppress(zmq.ZMQError):  # libzmq gave it up already
                self._socket.disconnect(name)
            self._soon()

    def close(self) -> None:
        """Take what has arrived and close. Idempotent."""
        if self._socket.closed:
            return
        self._timer.cancel()
        if self._again is not None:
            self._again.cancel()
        self._drain(RECEIVE_HWM)
        self._loop.remove_reader(int(self._socket.get(zmq.FD)))
        self._loop.remove_reader(int(self._monitor.get(zmq.FD)))
        self._socket.disable_monitor()
        self._monitor.close(0)
        self._socket.close(0)

    def _connect(self, name: str) -> None:
        # Only for literal addresses: otherwise "localhost" may become ::1 alone.
        self._socket.setsockopt(zmq.IPV6, int("[" in name))
        try:
            self._socket.connect(name)
        except zmq.ZMQError as error:
            self._peers.pop(name, None)
            self._warnings.warning("connect", f"the publisher at {name} cannot be read: {error}")
        self._soon()

    def _soon(self) -> None:
        if self._again is None and not self._socket.closed:
            self._again = self._loop.call_soon(self._readable)

    def _readable(self) -> None:
        self._again = None
        if not self._socket.closed and self._drain(TURN_MESSAGES):
            self._soon()

    def _drain(self, limit: int) -> bool:
        """Receive up to ``limit`` messages; True when there may be more."""
        socket, recv = self._socket, self._socket.recv
        try:
            for _ in range(limit):
                # Frame objects know whether more follow. Asking the socket instead costs half as much
                # again, the multipart helper 2.5 times (3, 4.6, 7.5 us; pyzmq 27.3, Python 3.11, 2026-12).
                frame = recv(_NOBLOCK, False)
                parts = [frame.bytes]
                while frame.more:
                    frame = recv(_NOBLOCK, False)
                    if len(parts) <= FRAME_COUNT:
                        parts.append(frame.bytes)
                self._hand_over(parts)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._warnings.warning("receive", f"event plane: {error}")
            return not socket.closed
        return True

    def _hand_over(self, parts: list[bytes]) -> None:
        try:
            self._on_message(parts)
        except Exception as error:  # noqa: BLE001  boundary: a bug costs one message, not all that follow
            self._warnings.error("bug", f"a message on the event plane was lost: {error!r}", exc_info=True)

    def _note_events(self) -> None:
        with contextlib.suppress(zmq.Again):
            while not self._monitor.closed:
                event = parse_monitor_message(self._monitor.recv_multipart(_NOBLOCK))
                for peer in self._named(event["endpoint"].decode(errors="replace")):
                    lost = event["event"] == zmq.EVENT_DISCONNECTED
                    peer.lost_at = self._loop.time() if lost else None

    def _named(self, name: str) -> list[_Peer]:
        """Return the peer that an event is about.

        libzmq may name one that was given by host name by its number: then it can be any of those.
        """
        peer = self._peers.get(name)
        if peer is not None or name in self._left:
            return [peer] if peer is not None else []
        return [peer for address, peer in self._peers.items() if _HOST_NAME.match(address)]

    def _look(self) -> None:
        self._note_events()
        now = self._loop.time()
        for peer in list(self._peers.values()):
            if peer.lost_at is not None and now - peer.lost_at >= peer.wait:
                self._warnings.warning(
                    ("given up", peer.address),
                    f"the publisher at {peer.address} broke the protocol or sent a frame that is too large; "
                    f"it is connected anew",
                )
                peer.lost_at = None
                peer.wait = min(GIVEN_UP_SECONDS[1], peer.wait * 2)
                with contextlib.suppress(zmq.ZMQError):
                    self._socket.disconnect(peer.address)
                self._connect(peer.address)
        self._timer = self._loop.call_later(LOOK_SECONDS, self._look)
