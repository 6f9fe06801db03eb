"""Knows how a process that has built an engine gets a recorder beside it: a child of its own, one per server.

The child (``cli/companion.py``) reads the engine's streams and writes the trace. It is in a session of its
own, so that Ctrl-C at a terminal reaches the engine alone. It ends when it is told to, through its standard
input, or when this process is gone.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import subprocess
import sys
import weakref
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.config.handover import RECORDER, RecorderMark, process_start
from forwardpass.config.settings import leave_to_children
from forwardpass.counters import Counters
from forwardpass.pump import Pump

__all__ = ["MODULE", "READY", "Companion", "RecorderOrder", "is_own", "keep_recorder"]

logger = logging.getLogger(__name__)

MODULE = "forwardpass.cli.companion"
READY = b"ready\n"
"""What the child writes to its standard output once it listens."""
READY_SECONDS = 10.0
"""Longest wait for that. It takes 0.3 s on an idle machine; an engine takes seconds to start. Not to wait
would lose the first passes of an engine in this process, which may run at once.
"""
WATCH_SECONDS = 1.0
"""How often the child is looked after. Each look is one system call, in a thread of its own."""
STOP_SECONDS = 12.0
"""Longest wait at exit for the child to write what it has: its own bound, and some room."""


class RecorderOrder(Struct, frozen=True):
    """What the child is to do, as JSON on its command line. The trace settings are in its environment."""

    base_port: int
    first_rank: int
    ranks: int
    streams: tuple[tuple[int, str], ...]
    """(global rank, URL) of each."""
    worker_id: str
    """Of the engine; what others publish at these ports is left out."""
    role: str
    parent_pid: int = 0


class Companion:
    """One recorder child. Everything here is for the process that started it."""

    def __init__(self, order: RecorderOrder) -> None:
        """Start it and wait until it listens. Raises ``OSError`` if it cannot be started."""
        self._owner = os.getpid()
        self.order = order
        text = msgspec.json.encode(msgspec.structs.replace(order, parent_pid=self._owner)).decode()
        self._process = subprocess.Popen(
            # -P: a file in the working directory must not be taken for one of our modules
            [sys.executable, "-P", "-m", MODULE, text],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.listens = self._wait_until_ready()
        self._ended = False
        self._told = False
        self._watch = Pump[None](
            _Watch(self),
            name="forwardpass-recorder-watch",
            capacity=1,
            counters=Counters(),
            tick_seconds=WATCH_SECONDS,
            restart_after_fork=False,  # a forked child has no recorder
        )
        if self.listens:
            with contextlib.suppress(RuntimeError, TimeoutError):  # then its death is told at the end
                self._watch.start()

    def _wait_until_ready(self) -> bool:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            poll = select.poll()
            poll.register(stdout, select.POLLIN)
            if not poll.poll(READY_SECONDS * 1000):
                logger.warning(
                    "Forward Pass Metrics: the recorder (pid %d) is not up after %g s; the first passes may "
                    "be missing from the trace",
                    self._process.pid,
                    READY_SECONDS,
                )
                return True
            return os.read(stdout.fileno(), len(READY)) == READY

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it is ours and runs: after ``fork`` it is the parent's."""
        return self._owner == os.getpid() and self._process.poll() is None

    def mark(self) -> RecorderMark | None:
        """Return what tells other processes of it; ``None`` once it has ended."""
        order, started = self.order, process_start(self.pid)
        if started is None:
            return None
        return RecorderMark(
            self.pid, started, order.base_port, order.first_rank, order.ranks, order.worker_id
        )

    def look(self) -> bool:
        """Return whether it still runs; say so once where it has ended by itself."""
        status = self._process.poll()
        if status is not None:
            self._tell("before the engine", status)
        return status is None

    def _tell(self, when: str, status: int) -> None:
        if self._told or not self.listens:
            return
        self._told = True
        # An error, because by now something in a server's process has set the root logger to that level.
        logger.error(
            "Forward Pass Metrics: the recorder (pid %d) ended %s with status %d; later forward passes "
            "are not recorded; serving goes on",
            self.pid,
            when,
            status,
        )

    def stop(self) -> None:
        """Have it write what it has and end, and wait for that. Idempotent; nothing after ``fork``."""
        if self._owner != os.getpid() or self._ended:
            return
        self._ended = True
        self._watch.stop(WATCH_SECONDS)
        assert self._process.stdin is not None
        early = self._process.poll()
        try:
            with self._process.stdin as stdin:
                stdin.write(b"\n")
        except OSError:  # it has ended
            pass
        try:
            status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("Forward Pass Metrics: the recorder (pid %d) is still writing", self.pid)
            return
        if early is not None or status:
            self._tell("before the engine" if early is not None else "without finishing", status)


class _Watch:
    """Looks after a recorder from a thread of its own, so that its death is told while the engine runs."""

    def __init__(self, companion: Companion) -> None:
        self._companion = companion

    def open(self) -> None:
        """Nothing is needed."""

    def tick(self, now: float, queued: int) -> float:
        """Look; once it has ended there is nothing left to watch."""
        return WATCH_SECONDS if self._companion.look() else math.inf

    def take(self, items: list[None]) -> None:
        """Nobody offers anything."""

    def close(self, deadline: float) -> None:
        """Nothing is held."""

    def forked(self) -> None:
        """The recorder is the parent's."""


_kept: dict[int, tuple[Companion, Any]] = {}
"""Base port -> the recorder there and the settings it was started under."""


def is_own(mark: RecorderMark | None) -> bool:
    """Say whether ``mark`` is of a recorder that this process started."""
    return mark is not None and any(
        companion.alive and companion.pid == mark.pid for companion, _ in _kept.values()
    )


def keep_recorder(order: RecorderOrder, settings: object) -> None:
    """See that a recorder of this process runs as ordered, under ``settings``.

    One that does already goes on, with the next engine at its ports; one with other settings is ended
    first. What cannot be started costs a warning.
    """
    companion, known = _kept.get(order.base_port, (None, None))
    if companion is not None:
        if companion.alive and (companion.order, known) == (order, settings):
            _announce(companion)
            return
        companion.stop()
        del _kept[order.base_port]
    try:
        companion = Companion(order)
    except OSError as error:
        logger.warning("Forward Pass Metrics: the recorder cannot be started: %s; serving goes on", error)
        return
    # Finalizers run in the opposite order of their making, so at exit this one comes after those of the
    # engines that are built next: what they still send is recorded. The class stands for "never before".
    weakref.finalize(Companion, companion.stop)
    _kept[order.base_port] = companion, settings
    _announce(companion)


def _announce(companion: Companion) -> None:
    """Tell the processes that are started next that the engine built last has its recorder."""
    mark = companion.mark()
    if companion.listens and mark is not None:
        leave_to_children(RECORDER, mark.text)
