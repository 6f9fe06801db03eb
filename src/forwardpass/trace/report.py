"""Knows what was found in trace files: how much is sound, what is damaged, where, and how.

The byte ranges of a file add up to its size: each byte is in exactly one range, sound or damaged.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from msgspec import Struct, field

__all__ = [
    "MAX_PROBLEMS",
    "MAX_RANGES",
    "ByteRange",
    "FileFormat",
    "FileReport",
    "Problem",
    "ProblemKind",
    "TraceReport",
]

MAX_PROBLEMS = 100
"""Problems that a report keeps in full for each file; the rest is counted by kind."""

MAX_RANGES = 10_000
"""Ranges that a report lists for each file."""


class FileFormat(StrEnum):
    """What a file is, by its content."""

    GZIP = "gzip"
    JSONL = "jsonl"
    EMPTY = "empty"


class ProblemKind(StrEnum):
    """What is wrong with a range of bytes, or with a line."""

    TORN_MEMBER = "torn_member"
    """A gzip member whose bytes simply end: a crash or a full disk while it was written."""
    CORRUPT_MEMBER = "corrupt_member"
    """A gzip member that does not inflate, or whose checksum or length is wrong."""
    ZERO_PADDING = "zero_padding"
    """Zero bytes where a member should begin: a power loss leaves such blocks."""
    GARBAGE = "garbage"
    """Bytes that are no gzip member."""
    TORN_ROW = "torn_row"
    """A line without its end."""
    OVERSIZED_ROW = "oversized_row"
    """A line longer than the reader's limit."""
    BAD_JSON = "bad_json"
    WRONG_SCHEMA = "wrong_schema"
    """A row of another format."""
    NOT_A_RECORD = "not_a_record"
    """JSON without the fields of a row, or with a field of the wrong type."""
    UNSUPPORTED_VERSION = "unsupported_version"
    """A message of another schema version."""
    UNREADABLE = "unreadable"
    """A file that went away before it could be read (retention removes old segments)."""
    UNLISTED = "unlisted"
    """In a list of ranges only: the rest of a file with very many ranges, sound and damaged."""


class Problem(Struct, frozen=True):
    """One thing wrong with one file."""

    path: str
    kind: ProblemKind
    reason: str
    """In words."""
    start: int | None = None
    """First byte of the damage in the file; ``None`` for a line inside a sound gzip member."""
    end: int | None = None
    """Byte after the damage."""
    line: int | None = None
    """Number of the line, counted from 1 over the text that could be inflated from the file."""

    def __str__(self) -> str:
        where = f":{self.line}" if self.line is not None else ""
        span = f" (bytes {self.start} to {self.end})" if self.start is not None else ""
        return f"{self.path}{where}: {self.reason}{span}"


class ByteRange(Struct, frozen=True):
    """Bytes ``start`` (inclusive) to ``end`` (exclusive) of a file."""

    start: int
    end: int
    damage: ProblemKind | None = None
    """``None``: sound."""


class FileReport(Struct):
    """What is in one file. Complete once the file was read to its end."""

    path: str
    format: FileFormat = FileFormat.EMPTY
    size: int = 0
    """Bytes when the file was opened: what a writer appended since is not looked at."""
    rows: int = 0
    """Records in sound members (in a plain file: in whole lines)."""
    unverified_rows: int = 0
    """Whole rows in torn members, whose checksum is missing. Returned only on request; not in ``rows``."""
    members: int = 0
    """Sound gzip members."""
    text_bytes: int = 0
    """Bytes of text in sound members (or in the plain file)."""
    damaged_bytes: int = 0
    """Bytes in damaged ranges, the unlisted ones included; the other bytes are sound."""
    ranges: list[ByteRange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    """The first ``MAX_PROBLEMS``."""
    problem_counts: dict[ProblemKind, int] = field(default_factory=dict)

    @property
    def intact(self) -> bool:
        """Whether nothing at all is wrong."""
        return not self.problem_counts

    @property
    def covered_bytes(self) -> int:
        """Bytes from the file's beginning that are in a range."""
        return self.ranges[-1].end if self.ranges else 0

    def add_range(self, start: int, end: int, damage: ProblemKind | None = None) -> None:
        """Append a range; it joins the one before if nothing differs. Empty ranges are ignored.

        Beyond ``MAX_RANGES`` the rest of the file becomes one range of kind ``UNLISTED``.
        """
        if start >= end:
            return
        if damage is not None:
            self.damaged_bytes += end - start
        last = self.ranges[-1] if self.ranges else None
        if last is not None and (last.damage is damage or last.damage is ProblemKind.UNLISTED):
            self.ranges[-1] = ByteRange(last.start, end, last.damage)
        elif len(self.ranges) < MAX_RANGES:
            self.ranges.append(ByteRange(start, end, damage))
        else:
            self.ranges.append(ByteRange(start, end, ProblemKind.UNLISTED))

    def add_problem(self, problem: Problem) -> None:
        """Count a problem, and keep it while there are few."""
        self.problem_counts[problem.kind] = self.problem_counts.get(problem.kind, 0) + 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)


class TraceReport(Struct):
    """What is in the files that were read, in reading order."""

    files: list[FileReport] = field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong with any file."""
        return all(file.intact for file in self.files)

    @property
    def rows(self) -> int:
        """Records returned from all files."""
        return sum(file.rows for file in self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def text_bytes(self) -> int:
        """Bytes of readable text in all files."""
        return sum(file.text_bytes for file in self.files)

    @property
    def compression_ratio(self) -> float:
        """Bytes of text per sound byte; 1.0 where nothing is sound."""
        sound = self.size - sum(file.damaged_bytes for file in self.files)
        return self.text_bytes / sound if sound else 1.0

    def problem_count(self) -> int:
        """Return how many problems were found."""
        return sum(sum(file.problem_counts.values()) for file in self.files)

    def problems(self) -> Iterator[Problem]:
        """Yield the problems that were kept."""
        for file in self.files:
            yield from file.problems
