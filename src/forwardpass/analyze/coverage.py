"""Knows which counters of a stream a trace holds and which it does not, one recorder's files at a time.

Bounded: a stream keeps its holes and the stretches between them, the first ``MAX_HOLES``, and all streams
together no more than an :class:`Allowance` has; what is beyond is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field

from forwardpass.trace.discover import parse_segment_name
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import Problem
from forwardpass.wire.epochs import Epochs, Step, StepKind

__all__ = ["MAX_HOLES", "Allowance", "Coverage", "Hole", "HoleKind", "SeriesReader", "StreamId", "Stretch"]

MAX_HOLES = 10_000
ALWAYS_KEPT = 10
"""Holes, and stretches, that a stream keeps whatever the others have."""
MAX_ALL = 200_000
"""Holes and stretches that all streams keep beyond those: about 50 MB, with what is found out about them."""

HoleKind = StepKind
"""``JUMP``: counters were skipped. ``RESTART``: the counter went back."""


class StreamId(NamedTuple):
    """Whose rows these are, whoever recorded them."""

    namespace: str
    component: str
    worker_id: str
    dp_rank: int


class Hole(Struct, frozen=True):
    """Counters ``first`` to ``last`` (both included) are not in these files."""

    kind: HoleKind
    first: int
    last: int
    before_ms: int
    after_ms: int
    """When the rows on both sides were observed, Unix milliseconds."""
    damaged: bool = False
    """Something in the files between those rows could not be read."""
    segment_missing: bool = False
    """A whole file between those rows is not there."""

    @property
    def count(self) -> int:
        """How many counters."""
        return self.last - self.first + 1


class Stretch(NamedTuple):
    """Counters ``first`` to ``last`` are there without a hole."""

    first: int
    last: int
    from_ms: int
    to_ms: int


class Coverage(Struct):
    """One stream as one recorder wrote it."""

    stream: StreamId
    rows: int = 0
    first_counter: int = 0
    last_counter: int = 0
    first_ms: int = 0
    last_ms: int = 0
    sampled: bool = False
    sampled_out: int = 0
    """Counters between the rows of sampled mode."""
    duplicates: int = 0
    restarts: int = 0
    turns: int = 0
    """Times that two publishers under one name took turns."""
    holes: list[Hole] = field(default_factory=list)
    holes_omitted: int = 0
    stretches: list[Stretch] = field(default_factory=list)


class Allowance:
    """How many holes and stretches may still be kept, for all streams of a report."""

    __slots__ = ("_left",)

    def __init__(self, most: int = MAX_ALL) -> None:
        self._left = most

    def covers(self, kept: int) -> bool:
        """Say whether a stream that keeps ``kept`` may keep one more, and count that."""
        if kept < ALWAYS_KEPT:
            return True
        if kept >= MAX_HOLES or not self._left:
            return False
        self._left -= 1
        return True


class _Follower:
    """One stream, row by row."""

    __slots__ = ("_allowance", "_epochs", "_last_sampled", "_marks", "_stretch", "result")

    def __init__(self, stream: StreamId, allowance: Allowance) -> None:
        self.result = Coverage(stream)
        self._allowance = allowance
        self._epochs = Epochs()
        self._stretch: list[int] = []  # first, last, from, to
        self._last_sampled = False
        self._marks = (0, 0)

    def add(self, row: TraceRecord, marks: tuple[int, int]) -> None:
        """Take the next row; ``marks`` count the damaged places and the missing files before it."""
        result, counter, at = self.result, row.metrics.counter_id, row.observed_at_unix_ms
        sampled = row.capture_mode != "full"
        step = self._epochs.step(counter, at)
        if step.kind is StepKind.FIRST:
            result.first_counter, result.first_ms = counter, at
        elif step.kind is not StepKind.NEXT:
            self._unusual(step, counter, at, marks, sampled or self._last_sampled)
        result.rows += 1
        result.sampled = result.sampled or sampled
        result.last_counter = counter
        result.last_ms = max(result.last_ms, at)
        self._last_sampled, self._marks = sampled, marks
        self._extend(step, counter, at)

    def finish(self) -> Coverage:
        """Return what was found."""
        self._end_stretch()
        self.result.restarts, self.result.turns = self._epochs.restarts, self._epochs.turns
        return self.result

    def _unusual(self, step: Step, counter: int, at: int, marks: tuple[int, int], sampled: bool) -> None:
        if step.kind is StepKind.AGAIN:
            self.result.duplicates += 1
        elif step.kind is StepKind.JUMP and sampled:
            self.result.sampled_out += step.skipped
        elif step.kind is StepKind.JUMP:
            self._hole(HoleKind.JUMP, step.last + 1, counter - 1, step.last_ms, at, marks)
        elif step.kind is StepKind.RESTART and not sampled:
            self._hole(HoleKind.RESTART, 0, counter - 1, step.last_ms, at, marks)

    def _hole(
        self, kind: HoleKind, first: int, last: int, before_ms: int, after_ms: int, marks: tuple[int, int]
    ) -> None:
        if not self._allowance.covers(len(self.result.holes)):
            self.result.holes_omitted += 1
            return
        damaged, missing = marks[0] > self._marks[0], marks[1] > self._marks[1]
        self.result.holes.append(Hole(kind, first, last, before_ms, after_ms, damaged, missing))

    def _extend(self, step: Step, counter: int, at: int) -> None:
        stretch = self._stretch
        if step.kind in (StepKind.NEXT, StepKind.AGAIN) and stretch:
            stretch[1], stretch[3] = counter, max(stretch[3], at)
            return
        self._end_stretch()
        self._stretch = [counter, counter, at, at]

    def _end_stretch(self) -> None:
        stretches = self.result.stretches
        if self._stretch and self._allowance.covers(len(stretches)):
            stretches.append(Stretch(*self._stretch))
        elif self._stretch and self._stretch[0] > stretches[-1].last:
            # The holes on the way are counted as not looked at. Where this recorder ends must stay known, or
            # what follows in another one would seem to come after a hole.
            _, last, _, to_ms = self._stretch
            stretches[-1] = stretches[-1]._replace(last=last, to_ms=max(stretches[-1].to_ms, to_ms))
        self._stretch = []


class SeriesReader:
    """Reads the files of one recorder."""

    def __init__(
        self, files: Iterable[Path], *, unverified: bool = False, allowance: Allowance | None = None
    ) -> None:
        self.files = list(files)
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.rows = 0
        self._unverified = unverified
        self._allowance = allowance or Allowance()
        self._missing_files = 0

    def read(self, keep: Callable[[TraceRecord], bool]) -> list[Coverage]:
        """Return what is there of each stream, of the rows that ``keep`` lets through.

        Raises :class:`~forwardpass.errors.TracePathError` for a file that cannot be read.
        """
        followers: dict[StreamId, _Follower] = {}
        index: int | None = None
        for path in self.files:
            name = parse_segment_name(path.name)
            if name is not None:
                self._missing_files += index is not None and name.number > index + 1
                index = name.number
            for row in TraceReader([path], on_problem=self._note, unverified=self._unverified):
                self.rows += 1
                if not keep(row):
                    continue
                source, metrics = row.source, row.metrics
                stream = StreamId(source.namespace, source.component, metrics.worker_id, metrics.dp_rank)
                follower = followers.get(stream)
                if follower is None:
                    follower = followers[stream] = _Follower(stream, self._allowance)
                follower.add(row, (self.problem_count, self._missing_files))
        return [follower.finish() for follower in followers.values()]

    def _note(self, problem: Problem) -> None:
        self.problem_count += 1
        if len(self.problems) < MAX_HOLES:
            self.problems.append(problem)
