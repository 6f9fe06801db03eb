"""Knows how the garbage collector is kept away from what a long benchmark leaves behind, and given back.

A collection of the oldest generation goes through everything that is alive: over tens of thousands of points
its pauses grow from tenths of a second to seconds, in the middle of what is timed. While anybody holds the
collector such collections do not happen by themselves, and what is alive is frozen now and then, so that
the younger generations stay small.

A process has one collector: holds are counted, the first changes it and the last puts it back. An engine's
scheduler and its worker may share a process.
"""

from __future__ import annotations

import gc
import threading

from forwardpass.bench.environment import BenchEnvironment

__all__ = ["GarbageHold", "hold_garbage"]

NEVER = 2**30
"""Collections of the middle generation before one of the oldest."""


class GarbageHold:
    """One holder's share."""

    def __init__(self, *, held: bool) -> None:
        self.held = held

    def release(self, *, freeze_again: bool) -> None:
        """Let go. Idempotent, and from any thread.

        The last holder restores the threshold, unfreezes and collects. ``freeze_again`` leaves what is then
        alive frozen, as vLLM does before it serves; if one holder asks for it, that is done.
        """
        with _collector.lock:
            if self.held:
                self.held = False
                _collector.give_back(freeze_again=freeze_again)


def hold_garbage(environment: BenchEnvironment) -> GarbageHold:
    """Hold this process's collector if the settings say so; else the hold that is returned is none."""
    if environment.freeze_garbage:
        with _collector.lock:
            _collector.take(environment.freeze_interval_seconds)
    return GarbageHold(held=environment.freeze_garbage)


class _Collector:
    """The process's collector, and who holds it. Its methods are called with ``lock`` held."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._holders = 0
        self._freeze_again = False
        self._oldest_threshold = 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self, interval_seconds: float) -> None:
        self._holders += 1
        if self._holders > 1:
            return
        youngest, middle, self._oldest_threshold = gc.get_threshold()
        gc.set_threshold(youngest, middle, NEVER)
        gc.freeze()
        self._freeze_again, self._ended = False, threading.Event()
        self._thread = threading.Thread(
            target=_freeze_on, args=(self._ended, interval_seconds), name="forwardpass-freeze", daemon=True
        )
        self._thread.start()

    def give_back(self, *, freeze_again: bool) -> None:
        self._holders -= 1
        self._freeze_again |= freeze_again
        if self._holders:
            return
        youngest, middle, _ = gc.get_threshold()  # these two may have been changed meanwhile
        gc.set_threshold(youngest, middle, self._oldest_threshold)
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        gc.unfreeze()
        gc.collect()
        if self._freeze_again:
            gc.freeze()


def _freeze_on(ended: threading.Event, interval_seconds: float) -> None:
    """Freeze what is alive, again and again; nothing else, so that nobody has to wait for it."""
    while not ended.wait(interval_seconds):
        gc.freeze()


_collector = _Collector()
