"""Knows a recorder in a process of its own that is fed through a socket, and notes when it had offered what.

The process is forked, so that a thousand of them cost no thousand imports. What it notes lies in memory that
is shared with its parent and outlives it: for each batch the moment at which it had been offered. Monotonic
times are the machine's on Linux, so both sides may compare them.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.wire.keys import Endpoint
from torture.rows import PRODUCER, settings

__all__ = ["Recorder", "in_process"]

MOST_BATCHES = 4096
_LARGEST = 1 << 18
_SLOT = struct.Struct("<d")
_FAILED = 70
_PR_SET_PDEATHSIG = 1
LIMIT_SECONDS = 60.0


def in_process(work: Callable[[], None]) -> int:
    """Run ``work`` in a forked process; return its process id. Whatever it raises is exit status 70."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = _FAILED
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives the one who started it
        work()
        status = 0
    except BaseException:  # noqa: BLE001  boundary: a child must not return into its parent's code
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


class Recorder:
    """A recorder process. Feed it, end it, and ask what it had been offered."""

    def __init__(self, folder: Path, *, producer: str = PRODUCER, **changes: Any) -> None:
        self.folder = folder
        self.batches: list[tuple[int, int]] = []
        """What was fed: (rank, counter after the last one), in order."""
        self.next: dict[int, int] = {}
        """Rank -> the counter that comes next."""
        self.status: int | None = None
        self._shared = mmap.mmap(-1, _SLOT.size * (MOST_BATCHES + 1))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * _LARGEST)
        ours.setblocking(False)
        self._socket = ours
        self.pid = in_process(lambda: self._record(theirs, producer, changes))
        theirs.close()

    # --- the parent's side -----------------------------------------------------------------------

    def feed(self, rank: int, payloads: list[bytes]) -> bool:
        """Send the next payloads of a stream; return False, with nothing sent, where it takes none now."""
        if len(self.batches) >= MOST_BATCHES:
            return False
        try:
            self._socket.send(msgspec.msgpack.encode(payloads))
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        self.next[rank] = self.next.get(rank, 0) + len(payloads)
        self.batches.append((rank, self.next[rank]))
        return True

    def wait_for_offers(self, batches: int) -> None:
        """Wait until so many batches have been offered. Raises ``TimeoutError``."""
        end = time.monotonic() + LIMIT_SECONDS
        while batches and not self._read(batches):
            if time.monotonic() > end:
                raise TimeoutError(f"{self.folder}: batch {batches} was not offered")
            time.sleep(0.002)

    def offered_by(self, moment: float) -> dict[int, int]:
        """Return, for each rank, how many payloads had been offered at monotonic ``moment``."""
        offered: dict[int, int] = {}
        for number, (rank, upto) in enumerate(self.batches, start=1):
            at = self._read(number)
            if not at or at > moment:
                break
            offered[rank] = upto
        return offered

    def offered_at(self, rank: int, counter: int) -> float | None:
        """Return when the payload was offered, or ``None`` if that was not noted."""
        for number, (other, upto) in enumerate(self.batches, start=1):
            if other == rank and counter < upto:
                return self._read(number) or None
        return None

    def waited_for_a_core(self) -> float:
        """Return the seconds that the sink's thread has waited for a core so far; 0.0 where nobody knows."""
        thread = int(self._read(0))
        with suppress(OSError, IndexError):
            text = Path(f"/proc/{self.pid}/task/{thread}/schedstat").read_text(encoding="ascii")
            return int(text.split()[1]) / 1e9
        return 0.0

    def end(self, number: int) -> float:
        """Send a signal, wait for the end, and return the monotonic moment just before the signal."""
        moment = time.monotonic()
        os.kill(self.pid, number)
        self.wait()
        return moment

    def wait(self) -> int:
        """Wait for the end; return the status as ``waitpid`` gives it."""
        if self.status is None:
            self.status = os.waitpid(self.pid, 0)[1]
            self._socket.close()
        return self.status

    def _read(self, slot: int) -> float:
        value: float = _SLOT.unpack_from(self._shared, slot * _SLOT.size)[0]
        return value

    # --- the process -----------------------------------------------------------------------------

    def _record(self, feed: socket.socket, producer: str, changes: dict[str, Any]) -> None:
        self._socket.close()
        logging.disable(logging.CRITICAL)
        registry = TraceRegistry(settings(self.folder, **changes))
        handle = registry.acquire(producer, Endpoint())
        if handle is None:
            raise RuntimeError("the trace is off")
        signal.signal(signal.SIGTERM, lambda *_: _stop(handle))
        self._note(0, _sink_thread(producer))
        number = 0
        while message := feed.recv(_LARGEST):
            payloads = msgspec.msgpack.decode(message, type=list[bytes])
            if handle.offer_many(payloads) != len(payloads):
                raise RuntimeError("a payload was refused")
            number += 1
            self._note(number, time.monotonic())
        _stop(handle)

    def _note(self, slot: int, value: float) -> None:
        _SLOT.pack_into(self._shared, slot * _SLOT.size, value)


def _sink_thread(producer: str) -> int:
    names = {thread.name: thread.native_id for thread in threading.enumerate()}
    return names.get(f"fpm-trace-{producer}") or 0


def _stop(handle: TraceHandle) -> NoReturn:
    handle.release()
    os._exit(0)
