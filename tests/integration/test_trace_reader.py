"""Traces in real files, read."""

from __future__ import annotations

import gzip
import logging
import os
import tracemalloc
import zlib
from pathlib import Path

import pytest

from forwardpass.errors import TracePathError
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace import reader as reader_module
from forwardpass.trace.reader import TraceReader, read_trace
from forwardpass.trace.report import ByteRange, FileFormat, FileReport, Problem, ProblemKind

LINES = [trace_line(number) for number in range(12)]


def read(path: Path, **options: int) -> tuple[list[int], FileReport]:
    """Return the counters of all rows and the file's report, after checking what always holds."""
    problems: list[Problem] = []
    reader = TraceReader([path], on_problem=problems.append, **options)
    rows = list(reader)
    report = reader.report.files[0]
    assert report.rows == len(rows)
    assert sum(part.end - part.start for part in report.ranges) == report.size == path.stat().st_size
    assert [part.start for part in report.ranges[1:]] == [part.end for part in report.ranges[:-1]]
    assert sum(report.problem_counts.values()) == len(problems)
    assert report.problems == problems[:100]
    return [row.metrics.counter_id for row in rows], report


def kinds(report: FileReport) -> list[ProblemKind]:
    """Return the kinds of the problems in order."""
    return [problem.kind for problem in report.problems]


@pytest.mark.parametrize("name", ["trace.jsonl.gz", "trace.txt", "noext"])
def test_format_is_told_by_content(tmp_path: Path, name: str) -> None:
    """TRACE-61: gzip and plain lines are read whatever the file is called."""
    path = tmp_path / name
    path.write_bytes(b"".join(gzip_member([line]) for line in LINES))
    assert read(path)[0] == list(range(12))
    path.write_bytes(b"\n".join(LINES) + b"\n")
    counters, report = read(path)

    assert counters == list(range(12))
    assert (report.format, report.intact, report.ranges) == (
        FileFormat.JSONL,
        True,
        [ByteRange(0, path.stat().st_size)],
    )


def test_many_members_are_one_text(tmp_path: Path) -> None:
    """TRACE-06: each member's rows are read, and the report counts members and text."""
    path = tmp_path / "a.gz"
    path.write_bytes(gzip_member(LINES[:5]) + gzip_member([]) + gzip_member(LINES[5:], level=9))
    counters, report = read(path)

    assert counters == list(range(12))
    assert (report.members, report.text_bytes, report.intact) == (3, sum(map(len, LINES)) + 12, True)
    assert report.ranges == [ByteRange(0, report.size)]


def test_headers_with_names_comments_and_levels_are_gzip(tmp_path: Path) -> None:
    """What the gzip program and Python's module write is read, file name in the header or not."""
    path = tmp_path / "a.gz"
    with gzip.open(tmp_path / "named.jsonl.gz", "wb", compresslevel=1) as file:
        file.write(b"\n".join(LINES[:6]) + b"\n")
    commented = b"\x1f\x8b\x08\x14" + bytes(6) + b"\x03\0abc" + b"a comment\0" + gzip_member(LINES[6:])[10:]
    path.write_bytes((tmp_path / "named.jsonl.gz").read_bytes() + commented)

    assert read(path)[0] == list(range(12))


@pytest.mark.parametrize("cut", [1, 100, 700, 1500])
def test_row_may_span_intact_members(tmp_path: Path, cut: int) -> None:
    """A writer that cuts its text anywhere is read like any gzip stream."""
    text = b"\n".join(LINES) + b"\n"
    path = tmp_path / "a.gz"
    pieces = [text[start : start + cut] for start in range(0, len(text), cut)]
    path.write_bytes(b"".join(zlib.compress(piece, 1, 31) for piece in pieces))
    counters, report = read(path)

    assert counters == list(range(12))
    assert report.intact


@pytest.mark.parametrize("compressed", [True, False])
def test_last_row_needs_no_newline(tmp_path: Path, compressed: bool) -> None:
    """A whole JSON object is a whole row, also at the end of a file."""
    text = b"\n".join(LINES)
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(text) if compressed else text)
    counters, report = read(path)

    assert counters == list(range(12))
    assert report.intact


@pytest.mark.parametrize("compressed", [True, False])
def test_bad_lines_are_reported_by_number(tmp_path: Path, compressed: bool) -> None:
    """TRACE-64: what is no row is named ``path:line`` and skipped; blank lines are nothing."""
    bad = [b"{]", b"", b'{"timestamp":1}', trace_line(5).replace(b".v1", b".v9"), b"  ", trace_line(6) + b"x"]
    lines = [LINES[0], *bad, LINES[1]]
    path = tmp_path / "a"
    path.write_bytes(gzip_member(lines) if compressed else b"\n".join(lines) + b"\n")
    counters, report = read(path)

    assert counters == [0, 1]
    assert [(problem.line, problem.kind) for problem in report.problems] == [
        (2, ProblemKind.BAD_JSON),
        (4, ProblemKind.NOT_A_RECORD),
        (5, ProblemKind.WRONG_SCHEMA),
        (7, ProblemKind.BAD_JSON),
    ]
    if compressed:
        assert report.ranges == [ByteRange(0, report.size)]
    else:
        assert [(p.start, p.end) for p in report.problems if p.kind is ProblemKind.WRONG_SCHEMA] == [
            (len(b"\n".join(lines[:4])) + 1, len(b"\n".join(lines[:5])) + 1)
        ]
        assert report.damaged_bytes == sum(len(lines[n]) + 1 for n in (1, 3, 4, 6))


def test_plain_file_may_end_in_the_middle_of_a_row(tmp_path: Path) -> None:
    """TRACE-62: a cut last line is reported with its bytes, and every row before it is read."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join(LINES)[:-10])
    counters, report = read(path)

    assert counters == list(range(11))
    assert kinds(report) == [ProblemKind.TORN_ROW]
    assert (report.problems[0].line, report.problems[0].end) == (12, report.size)


@pytest.mark.parametrize("compressed", [True, False])
def test_row_beyond_the_limit_is_skipped(tmp_path: Path, compressed: bool) -> None:
    """TRACE-65: a line too long to hold is reported with its size; the rows around it are read."""
    long = b'{"x":"' + b"y" * 200_000 + b'"}'
    lines = [LINES[0], long, LINES[1]]
    path = tmp_path / "a"
    path.write_bytes(gzip_member(lines) if compressed else b"\n".join(lines) + b"\n")
    counters, report = read(path, max_row_bytes=100_000)

    assert counters == [0, 1]
    assert [(problem.line, problem.kind) for problem in report.problems] == [(2, ProblemKind.OVERSIZED_ROW)]
    assert str(len(long)) in report.problems[0].reason
    assert read(path, max_row_bytes=len(long))[1].problems[0].kind is ProblemKind.NOT_A_RECORD


def test_a_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    """TRACE-65: 96 MB of text in one line, in a file of 100 kB, is refused within 16 MiB and a little."""
    path = tmp_path / "bomb.gz"
    compressor = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = b"x" * (1 << 20)
    with path.open("wb") as file:
        for _ in range(96):
            file.write(compressor.compress(block))
        file.write(compressor.compress(b"\n" + LINES[0] + b"\n") + compressor.flush())
    tracemalloc.start()
    counters, report = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert counters == [0]
    assert kinds(report) == [ProblemKind.OVERSIZED_ROW]
    assert peak < 48 << 20


def test_member_larger_than_memory_is_read_in_pieces(tmp_path: Path) -> None:
    """A whole trace in one member is verified first and then read again piece by piece."""
    rows = 40_000
    path = tmp_path / "one.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for number in range(rows):
            file.write(trace_line(number) + b"\n")
    tracemalloc.start()
    reader = TraceReader(path)
    count = sum(1 for _ in reader)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert count == rows
    assert (reader.report.files[0].members, reader.report.intact) == (1, True)
    assert reader.report.text_bytes > 20 << 20
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("content", "format_", "damage"),
    [
        (b"", FileFormat.EMPTY, None),
        (bytes(5000), FileFormat.GZIP, ProblemKind.ZERO_PADDING),
        (b"\0\1\2" * 900, FileFormat.GZIP, ProblemKind.GARBAGE),
        (b"\x1f", FileFormat.GZIP, ProblemKind.TORN_MEMBER),
        (b"\x1f\x8b", FileFormat.GZIP, ProblemKind.TORN_MEMBER),
        (b"\x1f\x8b\x08\0\0\0\0", FileFormat.GZIP, ProblemKind.TORN_MEMBER),
        (b"\x1f\x8b\x09" + bytes(20), FileFormat.GZIP, ProblemKind.GARBAGE),
        (b"Dear reader,\nthis is no trace.\n", FileFormat.JSONL, ProblemKind.BAD_JSON),
        (b"\n\n  \n", FileFormat.JSONL, None),
        (b"[1]", FileFormat.JSONL, ProblemKind.NOT_A_RECORD),
    ],
)
def test_files_that_hold_no_rows(
    tmp_path: Path, content: bytes, format_: FileFormat, damage: ProblemKind | None
) -> None:
    """Whatever a file holds, the report says what it is."""
    path = tmp_path / "a"
    path.write_bytes(content)
    counters, report = read(path)

    assert counters == []
    assert report.format is format_
    assert set(report.problem_counts) == ({damage} if damage else set())


def test_traces_are_read_file_by_file(tmp_path: Path) -> None:
    """TRACE-60: rows come in the order of the segments' numbers."""
    for index in (11, 2, 10):
        (tmp_path / f"fpm.4.{index:06d}.jsonl.gz").write_bytes(gzip_member([trace_line(index)]))
    rows = list(read_trace(f"{tmp_path}/fpm"))

    assert [row.metrics.counter_id for row in rows] == [2, 10, 11]


def test_missing_path_is_said_before_the_first_row(tmp_path: Path) -> None:
    """A wrong path is an error of the call, not of the first use of what it returned."""
    with pytest.raises(TracePathError):
        read_trace(tmp_path / "missing")


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A FIFO is refused at once instead of waiting for its writer."""
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(TracePathError):
        list(read_trace(tmp_path / "fifo"))


def test_unreadable_file_is_an_error(tmp_path: Path) -> None:
    """A link to itself cannot be opened; the path is in the error."""
    (tmp_path / "fpm.1.000000.jsonl.gz").symlink_to(tmp_path / "fpm.1.000000.jsonl.gz")

    with pytest.raises(TracePathError):
        list(read_trace(tmp_path / "fpm.1.000000.jsonl.gz"))


def test_segment_that_retention_removes_meanwhile_is_reported(tmp_path: Path) -> None:
    """Reading a live trace does not end because its oldest segment was removed."""
    for index in (0, 1):
        (tmp_path / f"fpm.4.{index:06d}.jsonl.gz").write_bytes(gzip_member([trace_line(index)]))
    reader = TraceReader(tmp_path / "fpm")
    (tmp_path / "fpm.4.000000.jsonl.gz").unlink()

    assert [row.metrics.counter_id for row in reader] == [1]
    assert [set(file.problem_counts) for file in reader.report.files] == [{ProblemKind.UNREADABLE}, set()]


def test_rows_appended_while_reading_are_left_for_the_next_time(tmp_path: Path) -> None:
    """A file is read as large as it was when it was opened."""
    path = tmp_path / "a.gz"
    path.write_bytes(b"".join(gzip_member([line]) for line in LINES[:3]))
    size = path.stat().st_size
    reader = TraceReader(path)
    rows = iter(reader)
    next(rows)
    with path.open("ab") as file:
        file.write(gzip_member(LINES[3:]))

    assert [row.metrics.counter_id for row in rows] == [1, 2]
    assert (reader.report.files[0].size, reader.report.intact) == (size, True)


def test_file_that_shrinks_while_reading_ends_there(tmp_path: Path) -> None:
    """TRACE-44: a writer may cut its file back after a disk error; what is gone is not there."""
    path = tmp_path / "a.gz"
    noise = [os.urandom(1 << 20).hex().encode() for _ in range(3)]
    first = gzip_member(LINES)
    path.write_bytes(first + gzip_member(noise))
    reader = TraceReader(path)
    rows = reader.batches()
    assert len(next(rows)) == 12
    os.truncate(path, len(first) + (1 << 20) + 4096)

    assert list(rows) == []
    report = reader.report.files[0]
    assert report.size == path.stat().st_size == sum(part.end - part.start for part in report.ranges)


def test_problems_are_logged_where_nobody_listens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a callback the first problem of each kind and file is logged."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([b"{]"] * 50 + LINES[:1]))
    reader_module._warnings._kinds.clear()
    with caplog.at_level(logging.WARNING):
        assert len(list(read_trace(path))) == 1

    assert len(caplog.records) == 1
    assert f"{path}:1" in caplog.text
