"""Knows how to read a trace while it is written: each row once, across rolls, as soon as it is sure.

A member that is not whole yet is waited for. Only when its producer has gone on to another segment is it
known that nobody will finish it; then it is reported, and what follows it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from forwardpass.errors import TracePathError
from forwardpass.trace.discover import find_segments, parse_segment_name
from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.line_assembler import LineAssembler, OversizedLine
from forwardpass.trace.member_scan import GZIP_MAGIC, PIECE_BYTES, inflate, intact_member, next_member
from forwardpass.trace.reader import MAX_ROW_BYTES
from forwardpass.trace.record import TraceRecord, begins_with_row, decode_lines, fault_of
from forwardpass.trace.report import Problem, ProblemKind

__all__ = ["TraceFollower"]


class TraceFollower:
    """Reads what is new in the traces at ``paths`` (files, folders or prefixes) each time it is asked.

    What is not there yet is waited for. ``on_problem`` is called for what could not be used.
    """

    def __init__(
        self, paths: str | Path | Iterable[str | Path], on_problem: Callable[[Problem], None]
    ) -> None:
        self._paths = [paths] if isinstance(paths, str | Path) else list(paths)
        self._on_problem = on_problem
        self._open: dict[Path, _Followed] = {}
        self._done: set[Path] = set()

    def poll(self) -> Iterator[list[TraceRecord]]:
        """Yield the rows that came since the last call, in lists that may be empty.

        Raises :class:`~forwardpass.errors.TracePathError` for a file that cannot be read.
        """
        found = self._find()
        self._done.intersection_update(found)
        newest = {_series(path): path for path in found}  # they come in the order of their numbers
        for path in found:
            if path in self._done:
                continue
            if path not in self._open and not self._begin(path):
                continue
            yield from self._open[path].new_rows()
            if newest[_series(path)] != path:
                yield from self._finish(path)
        for path in self._open.keys() - set(found):  # retention has removed it; we have it open still
            yield from self._finish(path)

    def close(self) -> None:
        """Let go of all files."""
        for followed in self._open.values():
            followed.file.close()
        self._open.clear()

    def _find(self) -> list[Path]:
        found: list[Path] = []
        for path in self._paths:
            try:
                found += find_segments(path)
            except TracePathError:  # not there yet
                continue
        return list(dict.fromkeys(found))

    def _begin(self, path: Path) -> bool:
        try:
            self._open[path] = _Followed(path, self._on_problem)
        except TracePathError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            self._on_problem(Problem(str(path), ProblemKind.UNREADABLE, "the file went away"))
            return False
        return True

    def _finish(self, path: Path) -> Iterator[list[TraceRecord]]:
        followed = self._open.pop(path)
        self._done.add(path)
        try:
            yield from followed.new_rows()
            yield from followed.rest()
        finally:
            followed.file.close()


def _series(path: Path) -> tuple[str, ...]:
    """Return whose segments follow each other; a file that is no segment follows nothing."""
    name = parse_segment_name(path.name)
    return (str(path),) if name is None else (str(path.parent), name.prefix, name.producer)


class _Followed:
    """One file, and how far it was read."""

    def __init__(self, path: Path, on_problem: Callable[[Problem], None]) -> None:
        self.file = FileBytes(path)
        self._on_problem = on_problem
        self._position = 0
        self._lines = LineAssembler(MAX_ROW_BYTES)

    def new_rows(self) -> Iterator[list[TraceRecord]]:
        """Yield the rows of whole members, or of whole lines in a plain file, that were not read yet."""
        self.file.refresh()
        head = self.file.read(0, len(GZIP_MAGIC))
        if head[:1] == b"{":
            yield from self._plain_rows()
        elif head == GZIP_MAGIC:
            yield from self._member_rows()

    def _plain_rows(self) -> Iterator[list[TraceRecord]]:
        while text := self.file.read(self._position, PIECE_BYTES):
            self._position += len(text)
            yield self._records(self._lines.feed(text))

    def _member_rows(self) -> Iterator[list[TraceRecord]]:
        while self._position < self.file.size:
            region = intact_member(self.file, self._position)
            if region is None:
                return
            for text in inflate(self.file, region):
                yield self._records(self._lines.feed(text))
            self._position = region.end

    def rest(self) -> Iterator[list[TraceRecord]]:
        """Yield what stands behind members that nobody will finish, and report those."""
        while self._position < self.file.size:
            start, self._position = (
                self._position,
                next_member(self.file, self._position + 1, _holds_row),
            )
            reason = "bytes that are no whole gzip member; `trace verify` says more"
            self._report(ProblemKind.TORN_MEMBER, reason, start, self._position)
            self._lines.finish()
            yield from self._member_rows()
        if (line := self._lines.finish()) is not None:
            yield self._records([line])

    def _records(self, lines: list[bytes]) -> list[TraceRecord]:
        records = decode_lines(lines)
        if records is not None:
            return records
        records = []
        for line in lines:
            if isinstance(line, OversizedLine):
                self._report(ProblemKind.OVERSIZED_ROW, f"a line of {line.size} bytes")
            elif found := decode_lines([line]):
                records += found
            elif line and not line.isspace():
                fault, reason = fault_of(line)
                self._report(ProblemKind(fault), reason)
        return records

    def _report(
        self, kind: ProblemKind, reason: str, start: int | None = None, end: int | None = None
    ) -> None:
        self._on_problem(Problem(self.file.path, kind, reason, start, end))


def _holds_row(text: bytes) -> bool | None:
    return begins_with_row(text, MAX_ROW_BYTES)
