"""Knows how blocking code uses an event loop: one thread that runs it, from the first use to ``close``.

Planes are asynchronous; programs that poll a subscriber often are not. This is no pump: nothing is queued
here, each call waits for its own result.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread"]

T = TypeVar("T")

JOIN_SECONDS = 10.0
"""Longest time that the loop's work may take to end; the thread is a daemon and is left then."""


class LoopThread:
    """An event loop in a daemon thread. Safe to use from several threads; not from the loop's own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False
        self._pid = os.getpid()

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``work()`` on the loop and return its result, or raise what it raises.

        Raises :class:`RuntimeError` after :meth:`close` and in a child process made by ``fork``, where the
        thread does not exist, and ``concurrent.futures.CancelledError`` if ``close`` comes before the end. An
        interrupt (Ctrl-C) cancels the work.
        """
        with self._lock:  # so that it comes to the loop before a stop, which cancels it, or not at all
            loop = self._running()
            future = asyncio.run_coroutine_threadsafe(work(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def check(self) -> None:
        """Raise :class:`RuntimeError` in a child process made by ``fork``, as :meth:`run` does."""
        if os.getpid() != self._pid:
            raise RuntimeError(
                "made before a fork, and its thread is not in this process; make another one here"
            )

    def close(self) -> None:
        """Cancel what still runs, end the thread and wait for it. Idempotent; called as the process ends."""
        with self._lock:
            self._closed = True
            thread, loop, stop = self._thread, self._loop, self._stop
            self._thread = None
        if thread is None or loop is None or stop is None or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        loop.call_soon_threadsafe(stop.set)
        thread.join(JOIN_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        self.check()
        if self._closed:
            raise RuntimeError("closed")
        if self._loop is None:
            ready = threading.Event()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(self._live(ready)), name=self._name, daemon=True
            )
            self._thread.start()
            atexit.register(self.close)
            ready.wait()
        assert self._loop is not None
        return self._loop

    async def _live(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await self._stop.wait()
