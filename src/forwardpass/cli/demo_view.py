"""Knows what a running demonstration shows: the newest pass of every rank, and how much is recorded."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from forwardpass.analyze.derived import queue_depth
from forwardpass.cli.output import say
from forwardpass.cli.summary_view import counted, format_count, format_seconds
from forwardpass.cli.terminal import redraws
from forwardpass.wire.codec import decode
from forwardpass.wire.frames import Frames
from forwardpass.wire.schema import ForwardPassMetrics

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

__all__ = [
    "Board",
    "PlainProgress",
    "Progress",
    "RankNow",
    "TerminalProgress",
    "choose_progress",
    "plain_line",
]

LINE_SECONDS = 2.0
REFRESH_SECONDS = 0.25


class RankNow(Struct, frozen=True):
    """One rank at this moment."""

    dp_rank: int
    messages: int
    latest: ForwardPassMetrics | None
    """The newest message; ``None`` before the first."""


class Board:
    """Keeps the newest payload of each rank; it is decoded only when somebody looks."""

    def __init__(self, ranks: int) -> None:
        self._messages = [0] * ranks
        self._latest: list[bytes | None] = [None] * ranks

    def note(self, dp_rank: int | None, frames: Frames) -> None:
        """Take a message of the stream of ``dp_rank``."""
        if dp_rank is not None:
            self._messages[dp_rank] += 1
            self._latest[dp_rank] = frames.payload

    def ranks(self) -> list[RankNow]:
        """Return every rank as it is now."""
        return [
            RankNow(rank, messages, None if payload is None else decode(payload))
            for rank, (messages, payload) in enumerate(zip(self._messages, self._latest, strict=True))
        ]


class Progress(Protocol):
    """Somewhere to show it."""

    interval_seconds: float

    def show(self, elapsed_seconds: float, ranks: list[RankNow], rows: int) -> None:
        """Show the state after ``elapsed_seconds``, with ``rows`` on disk."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def choose_progress(seconds: float) -> Progress:
    """Return a table that renews itself if stderr is a terminal, else a line every two seconds."""
    return TerminalProgress(seconds) if redraws(sys.stderr) else PlainProgress()


class PlainProgress:
    """One line each time, to stderr."""

    interval_seconds = LINE_SECONDS

    def show(self, elapsed_seconds: float, ranks: list[RankNow], rows: int) -> None:
        """Write one line."""
        say(plain_line(elapsed_seconds, ranks, rows))

    def close(self) -> None:
        """Nothing to leave."""


class TerminalProgress:
    """A table that is drawn over itself, on stderr; gone at the end."""

    interval_seconds = REFRESH_SECONDS

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._live: Live | None = None

    def show(self, elapsed_seconds: float, ranks: list[RankNow], rows: int) -> None:
        """Draw the table anew."""
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            console = Console(file=sys.stderr, highlight=False)
            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(_page(elapsed_seconds, self._seconds, ranks, rows), refresh=True)

    def close(self) -> None:
        """Remove the table."""
        if self._live is not None:
            self._live.stop()


def plain_line(elapsed_seconds: float, ranks: list[RankNow], rows: int) -> str:
    """Return the state as one line."""
    parts = [f"{elapsed_seconds:4.0f} s  {counted(rows, 'row')} on disk"]
    parts += [f"rank {rank.dp_rank}: {_words(rank.latest)}" for rank in ranks]
    return "; ".join(parts)


def _words(latest: ForwardPassMetrics | None) -> str:
    if latest is None:
        return "nothing yet"
    step = latest.scheduled_requests
    if not latest.wall_time:
        return "idle"
    prefill = (
        f"{format_count(step.sum_prefill_tokens)} prefill tokens + " if step.num_prefill_requests else ""
    )
    waiting = queue_depth(latest)
    took = format_seconds(latest.wall_time)
    return (
        f"{prefill}{counted(step.num_decode_requests, 'decode')} in {took}, {format_count(waiting)} waiting"
    )


def _page(elapsed_seconds: float, seconds: float, ranks: list[RankNow], rows: int) -> Group:
    from rich import box
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    done = min(elapsed_seconds, seconds)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in ("rank", "messages", "newest", "prefill", "decodes", "context", "waiting", "preempted"):
        table.add_column(column, justify="right", min_width=len(column))
    for rank in ranks:
        table.add_row(str(rank.dp_rank), format_count(rank.messages), *_cells(rank.latest))
    words = f"{done:.0f} of {seconds:.0f} s, {counted(rows, 'row')} on disk"
    return Group(ProgressBar(total=seconds, completed=done, width=72), table, words)


def _cells(latest: ForwardPassMetrics | None) -> tuple[str, ...]:
    if latest is None:
        return ("",) * 6
    step, queue = latest.scheduled_requests, latest.queued_requests
    return (
        format_seconds(latest.wall_time) if latest.wall_time else "idle",
        format_count(step.sum_prefill_tokens),
        format_count(step.num_decode_requests),
        format_count(step.sum_decode_kv_tokens),
        format_count(queue.num_prefill_requests),
        format_count(queue.num_decode_requests),
    )
