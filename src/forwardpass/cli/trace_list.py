"""Knows how the files of a trace are listed: names, sizes and times at once, rows and members on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from forwardpass.cli.output import aligned
from forwardpass.cli.summary_view import counted, format_bytes, format_count, format_time
from forwardpass.cli.terminal import printable
from forwardpass.errors import TracePathError
from forwardpass.trace.discover import parse_segment_name
from forwardpass.trace.ends import read_ends
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import FileFormat

__all__ = ["ListedFile", "count_rows", "list_file", "render_list"]


class ListedFile(Struct, frozen=True):
    """One file of a trace."""

    path: str
    producer: str | None
    """As in the file name; ``None`` for a file that is not named as a segment."""
    index: int | None
    format: FileFormat
    size: int
    first_observed_unix_ms: int | None
    last_observed_unix_ms: int | None
    rows: int | None = None
    """``None``: not counted."""
    members: int | None = None
    intact: bool | None = None


def list_file(path: Path) -> ListedFile | None:
    """Return what can be told without reading the whole file; ``None`` if retention has just removed it."""
    try:
        ends = read_ends(path)
    except TracePathError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    return _listed(path, ends.format, ends.size, ends.first, ends.last)


def count_rows(path: Path) -> ListedFile:
    """Return the same and what only reading the whole file tells."""
    first: TraceRecord | None = None
    last: TraceRecord | None = None
    reader = TraceReader([path])
    for batch in reader.batches():
        first = first or batch[0]
        last = batch[-1]
    report = reader.report.files[0]
    listed = _listed(path, report.format, report.size, first, last)
    return replace(listed, rows=report.rows, members=report.members, intact=report.intact)


def _listed(
    path: Path, file_format: FileFormat, size: int, first: TraceRecord | None, last: TraceRecord | None
) -> ListedFile:
    name = parse_segment_name(path.name)
    return ListedFile(
        path=str(path),
        producer=name.producer if name else None,
        index=name.number if name else None,
        format=file_format,
        size=size,
        first_observed_unix_ms=first.observed_at_unix_ms if first else None,
        last_observed_unix_ms=last.observed_at_unix_ms if last else None,
    )


def render_list(files: Sequence[ListedFile]) -> list[str]:
    """Return the list as lines of text, with a total below."""
    counts = any(file.rows is not None for file in files)
    titles = ("file", "producer", "size", "first row", "last row")
    rows = [titles + (("rows", "members", "state") if counts else ())]
    rows += [_row(file) for file in files]
    total = f"{counted(len(files), 'file')}, {format_bytes(sum(file.size for file in files))}"
    return [*aligned(rows), total]


def _row(file: ListedFile) -> tuple[str, ...]:
    cells: tuple[str, ...] = (
        printable(file.path),
        printable(file.producer or "-", 40),
        format_bytes(file.size),
        format_time(file.first_observed_unix_ms),
        format_time(file.last_observed_unix_ms),
    )
    if file.rows is not None and file.members is not None:
        state = "intact" if file.intact else "damaged"
        cells += (format_count(file.rows), format_count(file.members), state)
    return cells
