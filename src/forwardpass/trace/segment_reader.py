"""Knows how one file becomes rows and a report of what could not be used.

The rule for damage is that a wrong row is never made up:

* rows of intact gzip members and lines of plain files are returned if they decode;
* of a torn member (its bytes simply end) the whole lines that decode are counted as ``unverified_rows``,
  because the checksum that would prove them is missing, and returned only if they are asked for. Mostly
  they are right. But two stray bytes after the cut were seen to turn the end of one row into another's;
* of a corrupt member nothing is returned: where the damage begins cannot be known;
* a line that does not decode is reported by number and skipped.

A line may span two members if both are intact (any gzip writer may cut there; ours does not).

What a row becomes is the business of whoever reads: ``decode`` makes of lines what is wanted of them, or
says that one of them is no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Generic, TypeVar

from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.line_assembler import LineAssembler, OversizedLine
from forwardpass.trace.member_scan import (
    GZIP_MAGIC,
    PIECE_BYTES,
    Region,
    State,
    inflate,
    next_member,
    scan_members,
)
from forwardpass.trace.record import begins_with_row, decode_lines, fault_of
from forwardpass.trace.report import FileFormat, FileReport, Problem, ProblemKind

__all__ = ["Decode", "DecodeText", "Rows", "SegmentReader"]

Rows = TypeVar("Rows", bound=Sized)
"""What some lines became; its length is the number of rows."""

Decode = Callable[[list[bytes]], Rows | None]
"""Returns what the rows in some lines (without newlines) are wanted as; ``None`` if one of them is no row."""

DecodeText = Callable[[bytes], Rows | None]
"""Returns the same for a text of whole lines, each with its newline, if every line is certainly a row (a
blank line is none). What a library decodes in one call need not be cut into lines first."""

_LOOK_BYTES = 4096

_DAMAGE = {
    State.CORRUPT: (ProblemKind.CORRUPT_MEMBER, "a gzip member is corrupt; its rows are not used"),
    State.PADDING: (ProblemKind.ZERO_PADDING, "zero bytes where a gzip member should begin"),
    State.GARBAGE: (ProblemKind.GARBAGE, "bytes that are no gzip member"),
}


class SegmentReader(Generic[Rows]):
    """Reads one opened file. ``report`` is complete when :meth:`batches` is exhausted.

    With ``decode_text``, ``gather_bytes`` of text (of sound members) are collected and decoded at once; only
    where that gives nothing they are cut into lines for ``decode``.
    """

    def __init__(
        self,
        file: FileBytes,
        report: FileReport,
        on_problem: Callable[[Problem], None],
        max_row_bytes: int,
        decode: Decode[Rows],
        *,
        unverified: bool = False,
        decode_text: DecodeText[Rows] | None = None,
        gather_bytes: int = 0,
    ) -> None:
        self._file = file
        self.report = report
        self._on_problem = on_problem
        self._max_row_bytes = max_row_bytes
        self._decode = decode
        self._decode_text = decode_text
        self._unverified = unverified
        self._gather_bytes = gather_bytes
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._lines = LineAssembler(max_row_bytes)
        self._line_number = 1  # of the next line
        self._line_start = 0  # its offset in a plain file
        report.size = file.size

    def batches(self) -> Iterator[Rows]:
        """Yield the file's rows in order, some at a time or none."""
        self.report.format = self._format()
        if self.report.format is FileFormat.GZIP:
            yield from self._gzip_batches()
        elif self.report.format is FileFormat.JSONL:
            yield from self._plain_batches()
        self.report.size = self._file.size

    def _format(self) -> FileFormat:
        head = self._file.read(0, _LOOK_BYTES)
        if not head:
            return FileFormat.EMPTY
        if head.startswith(GZIP_MAGIC[: min(2, len(head))]) or b"\0" in head:
            return FileFormat.GZIP
        if head.lstrip()[:1] == b"{" or next_member(self._file, 0, self._holds_row) == self._file.size:
            return FileFormat.JSONL
        return FileFormat.GZIP  # something else, and then a real member

    def _holds_row(self, text: bytes) -> bool | None:
        return begins_with_row(text, self._max_row_bytes)

    def _gzip_batches(self) -> Iterator[Rows]:
        for region in scan_members(self._file, self._holds_row):
            if region.state is State.INTACT:
                self.report.members += 1
                self.report.text_bytes += region.text_bytes
                self.report.add_range(region.start, region.end)
                for text in inflate(self._file, region):
                    yield from self._gather(text)
                continue
            yield from self._rest()
            if region.state is State.TORN:
                yield from self._torn_batches(region)
            else:
                kind, reason = _DAMAGE[region.state]
                self._damage(kind, reason, region)
        yield from self._rest()

    def _torn_batches(self, region: Region) -> Iterator[Rows]:
        rows = 0
        for text in inflate(self._file, region):
            records = self._records(self._lines.feed(text))
            rows += len(records)
            if self._unverified:
                yield records
        if self._lines.finish() is not None:
            self._line_number += 1
        self.report.rows -= rows
        self.report.unverified_rows += rows
        used = "used" if self._unverified else "not used"
        reason = f"a gzip member is torn; no checksum proves the {rows} whole rows before the tear: {used}"
        self._damage(ProblemKind.TORN_MEMBER, reason, region)

    def _plain_batches(self) -> Iterator[Rows]:
        position = 0
        while text := self._file.read(position, PIECE_BYTES):
            position += len(text)
            self.report.text_bytes += len(text)
            yield from self._gather(text)
        yield from self._rest()
        self.report.add_range(self.report.covered_bytes, self._file.size)

    def _gather(self, text: bytes) -> Iterator[Rows]:
        """Yield the rows of the lines that end in ``text`` and what was gathered, once it is enough."""
        if self._decode_text is None:
            yield self._records(self._lines.feed(text))
            return
        self._gathered.append(text)
        self._gathered_bytes += len(text)
        if self._gathered_bytes >= self._gather_bytes:
            yield from self._decoded(self._decode_text)

    def _decoded(self, decode_text: DecodeText[Rows]) -> Iterator[Rows]:
        pieces, self._gathered, self._gathered_bytes = self._gathered, [], 0
        whole = self._lines.feed_text(pieces)
        if whole is None:
            for text in pieces:
                yield self._records(self._lines.feed(text))
            return
        records = decode_text(whole)
        if records is None:
            yield self._records(whole.split(b"\n")[:-1])
        else:
            yield self._counted(records, len(records), len(whole))

    def _records(self, lines: list[bytes]) -> Rows:
        records = self._decode(lines)
        if records is None:
            return self._usable_records(lines)
        return self._counted(records, len(lines), sum(map(len, lines)) + len(lines))

    def _counted(self, records: Rows, lines: int, text_bytes: int) -> Rows:
        """Take note of ``lines`` lines that are all rows."""
        self.report.rows += len(records)
        self._line_number += lines
        self._line_start += text_bytes
        return records

    def _usable_records(self, lines: list[bytes]) -> Rows:
        """Return the records among ``lines`` and report the lines that are none. Blank lines are nothing."""
        usable: list[bytes] = []
        for line in lines:
            size = line.size if isinstance(line, OversizedLine) else len(line)
            if size and not line.isspace():
                if decode_lines([line]) is not None:
                    usable.append(line)
                else:
                    self._bad_line(line, size)
            self._line_number += 1
            self._line_start += size + 1
        records = self._decode(usable)
        assert records is not None, "each of the lines is a row"
        self.report.rows += len(records)
        return records

    def _rest(self) -> Iterator[Rows]:
        """Yield what was gathered, and the line that nothing ended: whole JSON is a whole row."""
        if self._decode_text is not None and self._gathered:
            yield from self._decoded(self._decode_text)
        line = self._lines.finish()
        if line is None or line.isspace():
            return
        records = self._decode([line])
        if records is None:
            size = line.size if isinstance(line, OversizedLine) else len(line)
            self._bad_line(line, size, torn=True)
        self._line_number += 1
        if records is not None:
            self.report.rows += len(records)
            yield records

    def _bad_line(self, line: bytes, size: int, *, torn: bool = False) -> None:
        if isinstance(line, OversizedLine):
            kind = ProblemKind.OVERSIZED_ROW
            reason = f"a line of {size} bytes; this reader takes up to {self._max_row_bytes}"
        else:
            fault, reason = fault_of(line)
            kind = ProblemKind(fault)
            if torn and kind is ProblemKind.BAD_JSON:
                kind, reason = ProblemKind.TORN_ROW, f"the row's end is missing after {size} bytes"
        start = end = None
        if self.report.format is FileFormat.JSONL:
            start = self._line_start
            end = min(start + size + 1, self._file.size)
            self.report.add_range(self.report.covered_bytes, start)
            self.report.add_range(start, end, kind)
        self._report(Problem(self._file.path, kind, reason, start, end, self._line_number))

    def _damage(self, kind: ProblemKind, reason: str, region: Region) -> None:
        self.report.add_range(region.start, region.end, kind)
        self._report(Problem(self._file.path, kind, reason, region.start, region.end))

    def _report(self, problem: Problem) -> None:
        self.report.add_problem(problem)
        self._on_problem(problem)
