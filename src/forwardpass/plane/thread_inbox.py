"""Knows how threads take messages from an inbox that an event loop on another thread fills.

A call on the loop for each message costs several times what the message does; taking what waits costs the
queue, and waiting for more a lock that the loop opens once for all that arrived in one turn.
"""

from __future__ import annotations

import threading

from forwardpass.clock import SystemClock
from forwardpass.plane.base import PlaneMessage
from forwardpass.plane.inbox import Inbox

__all__ = ["ThreadInbox"]


class ThreadInbox:
    """The consumer's side of ``inbox``; made on its event loop, which takes nothing from then on."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._clock = SystemClock()
        self._turn = threading.Lock()
        self._bell = threading.Lock()  # locked while there is nothing new; only the loop opens it
        self._bell.acquire()
        inbox.call_on_arrival(self._ring)

    def take(self, timeout_s: float | None = None) -> PlaneMessage | None:
        """Wait for the next message; ``None`` once the inbox is closed and empty. Threads take turns.

        Raises :class:`TimeoutError` after ``timeout_s`` seconds.
        """
        until = None if timeout_s is None else self._clock.monotonic() + timeout_s
        self._wait_for(self._turn, until)
        try:
            while (message := self._inbox.take_ready()) is None:
                if self._inbox.closed:
                    return None
                self._wait_for(self._bell, until)
            return message
        finally:
            self._turn.release()

    def _wait_for(self, lock: threading.Lock, until: float | None) -> None:
        left = -1.0 if until is None else max(0.0, until - self._clock.monotonic())
        if not lock.acquire(timeout=left):
            raise TimeoutError

    def _ring(self) -> None:
        if self._bell.locked():
            self._bell.release()
