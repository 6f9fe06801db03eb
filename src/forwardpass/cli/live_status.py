"""Knows what a running recording says about itself: how it goes, and what does not arrive.

Words go to stderr: one line that renews itself on a terminal, one line every ten seconds elsewhere.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Sequence

from forwardpass.cli.output import say
from forwardpass.cli.recording import Recording
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import redraws
from forwardpass.config.variables import BIND_HOST
from forwardpass.relay.relay import RelayStats
from forwardpass.trace.sink import TraceCounts

__all__ = ["SILENT_AT_START_SECONDS", "LiveStatus", "SilenceWatch", "status_text"]

SILENT_AT_START_SECONDS = 3.0
SILENT_LATER_SECONDS = 10.0
"""An idle publisher speaks once a second, so a stream this quiet is worth a word."""
LINE_SECONDS = 10.0
_CLEAR = "\r\x1b[K"
_LOCAL = re.compile(r"tcp://(127\.|localhost|\[::1\])|ipc:")
_PORT = re.compile(r":(\d+)\Z")


class SilenceWatch:
    """Notices streams that say nothing, and says so once each time."""

    def __init__(self) -> None:
        self._received: dict[str, int] = {}
        self._since: dict[str, float] = {}
        self._told: set[str] = set()

    def note(self, elapsed_seconds: float, streams: Sequence[RelayStats]) -> list[str]:
        """Return what there is to say about ``streams`` after ``elapsed_seconds`` of recording."""
        return [line for stream in streams for line in self._note_one(elapsed_seconds, stream)]

    def _note_one(self, elapsed: float, stream: RelayStats) -> list[str]:
        url = stream.url
        if stream.received > self._received.get(url, 0):
            self._received[url] = stream.received
            self._since[url] = elapsed
            if url in self._told:
                self._told.discard(url)
                return [f"{url}: receiving now"]
            return []
        patience = SILENT_LATER_SECONDS if stream.received else SILENT_AT_START_SECONDS
        if url in self._told or elapsed - self._since.get(url, 0.0) < patience:
            return []
        self._told.add(url)
        return [_silence(stream, elapsed - self._since.get(url, 0.0))]


def _silence(stream: RelayStats, seconds: float) -> str:
    url = stream.url
    if stream.received:
        what = "it is connected but says nothing" if stream.connected else "its publisher is gone"
        return f"nothing from {url} for {seconds:.0f} s: {what}; it is read again as soon as it comes back"
    if stream.bad_frames:
        return f"{url} sends messages, but they are no forward passes ({stream.bad_frames} skipped)"
    if stream.connected:
        return (
            f"nothing from {url} yet: connected, but the publisher says nothing; is it paused, or no engine?"
        )
    if not _LOCAL.match(url):
        return (
            f"nothing from {url} yet; is the engine up, and its stream bound to more than its own loopback "
            f"({BIND_HOST.name})? `forwardpass doctor` on that host finds out"
        )
    port = _PORT.search(url)
    how = f"--fpm-trace or DYN_FORWARDPASS_METRIC_PORT={port[1]}" if port else "forward pass metrics on"
    return f"nothing from {url} yet; is the engine up with {how}? `forwardpass doctor` finds out"


def status_text(
    elapsed_seconds: float, streams: Sequence[RelayStats], trace: TraceCounts | None, per_second: float
) -> str:
    """Return one line about a running recording."""
    alive = sum(1 for stream in streams if stream.received)
    parts = [
        f"{elapsed_seconds:.0f} s",
        f"{alive} of {counted(len(streams), 'stream')}",
        f"{counted(sum(stream.received for stream in streams), 'message')} ({per_second:,.0f}/s)",
    ]
    if trace is not None:
        parts.append(f"{counted(trace.written, 'row')} written")
    missed = sum(stream.lost for stream in streams)
    dropped = (trace.dropped_total if trace is not None else 0) + sum(
        stream.plane.dropped_total for stream in streams if stream.plane is not None
    )
    parts += [f"{missed:,} missed"] if missed else []
    parts += [f"{dropped:,} dropped"] if dropped else []
    return "  ".join(parts)


class LiveStatus:
    """Follows one recording until it is asked to stop."""

    def __init__(self, recording: Recording, *, quiet: bool = False, terminal: bool | None = None) -> None:
        self._recording = recording
        self._quiet = quiet
        self._terminal = not quiet and (redraws(sys.stderr) if terminal is None else terminal)
        self._silence = SilenceWatch()
        self._next_line = LINE_SECONDS
        self._before = 0

    async def follow(self, stop: asyncio.Event, seconds: float | None = None) -> None:
        """Say how it goes, until ``stop`` is set or ``seconds`` have passed."""
        while not stop.is_set():
            wait = 1.0
            if seconds is not None:
                wait = min(wait, seconds - self._recording.elapsed_seconds)
            if wait <= 0:
                break
            await _wait(stop, wait)
            if not self._quiet:
                self._speak(wait)
        if self._terminal:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def _speak(self, interval_seconds: float) -> None:
        elapsed, streams = self._recording.elapsed_seconds, self._recording.stats()
        for line in self._silence.note(elapsed, streams):
            say(f"{_CLEAR if self._terminal else ''}{line}")
        received = sum(stream.received for stream in streams)
        rate, self._before = (received - self._before) / interval_seconds, received
        if self._terminal:
            text = status_text(elapsed, streams, self._recording.trace_counts(), rate)
            sys.stderr.write(f"{_CLEAR}{text}")
            sys.stderr.flush()
        elif elapsed >= self._next_line:
            self._next_line += LINE_SECONDS
            say(status_text(elapsed, streams, self._recording.trace_counts(), received / elapsed))


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
