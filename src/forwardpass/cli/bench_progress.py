"""Knows how the progress of a benchmark is shown: a bar on a terminal, and elsewhere a line now and then."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from forwardpass.cli.output import say
from forwardpass.clock import Clock, SystemClock

__all__ = ["BenchProgress"]

LINE_SECONDS = 10.0


class BenchProgress:
    """Shows how far the slowest rank is. A context; :meth:`take` may be called for any rank at any time."""

    def __init__(
        self, ranks: int, *, quiet: bool = False, lines: bool = False, clock: Clock | None = None
    ) -> None:
        """``lines`` says it where there is no terminal; ``quiet`` says nothing anywhere."""
        console = Console(stderr=True)
        self._ranks = ranks
        self._settled: dict[int, int] = {}
        self._lines = lines and not quiet and not console.is_terminal
        self._clock, self._next_line = clock or SystemClock(), 0.0
        self._bars: Progress | None = None
        self._task = TaskID(0)
        if not quiet and console.is_terminal:
            columns = (
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("points,"),
                TimeRemainingColumn(), TextColumn("left"), TextColumn("{task.fields[point]}", style="dim"),
            )  # fmt: skip
            self._bars = Progress(*columns, console=console, transient=True)
            words = "agreeing on a grid" if ranks > 1 else "planning"
            self._task = self._bars.add_task(words, total=None, point="")

    def __enter__(self) -> BenchProgress:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def take(self, rank: int, settled: int, expected: int, point: str = "") -> None:
        """Note that ``rank`` has settled so many points of those expected; 0 of those is no grid yet."""
        self._settled[rank] = settled
        if not expected:
            return
        slowest = min(self._settled.values()) if len(self._settled) >= self._ranks else 0
        if self._bars is not None:
            self._bars.update(
                self._task, total=expected, completed=slowest, description="measuring", point=point
            )
        elif self._lines and self._clock.monotonic() >= self._next_line:
            self._next_line = self._clock.monotonic() + LINE_SECONDS
            say(f"self-benchmark: {slowest:,} of {expected:,} points{f', {point}' if point else ''}")
