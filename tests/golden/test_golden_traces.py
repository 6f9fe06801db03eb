"""Every trace that the reference wrote is read without loss."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwardpass.analyze.kinds import PassKind
from forwardpass.analyze.summary import Summary, summarize
from forwardpass.trace.ends import read_ends
from forwardpass.trace.reader import TraceReader, read_trace
from forwardpass.trace.report import ByteRange

GOLDEN = Path(__file__).parent
SEGMENTS = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/fpm.*.jsonl.gz"))
FOLDERS = sorted({segment.split("/")[0] for segment in SEGMENTS})


def plain_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows as the standard library reads them."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def summary_of(folder: str) -> Summary:
    """Return the summary of one folder's trace."""
    return summarize(read_trace(GOLDEN / folder))


def test_all_traces_are_here() -> None:
    """The list of files does not shrink unnoticed."""
    assert len(SEGMENTS) == 19


@pytest.mark.parametrize("segment", SEGMENTS)
def test_rows_are_those_of_the_standard_library(segment: str) -> None:
    """TRACE-20: each row has the values, key order and number types that ``json`` finds in its line."""
    path = GOLDEN / segment
    reader = TraceReader(path)
    records = list(reader)
    expected = plain_rows(path)

    assert len(records) == len(expected) > 0
    for record, row in zip(records, expected, strict=True):
        event = row["event"]
        assert repr(record.fpm) == repr(event["fpm"])
        assert record.timestamp == row["timestamp"]
        assert msgspec.to_builtins(record.source) == event["source"]
        assert (record.schema, record.capture_mode, record.observed_at_unix_ms) == (
            event["schema"],
            event["capture_mode"],
            event["observed_at_unix_ms"],
        )
        assert msgspec.to_builtins(record.metrics) == event["fpm"]
        assert json.loads(record.line) == row


@pytest.mark.parametrize("segment", SEGMENTS)
def test_files_are_intact(segment: str) -> None:
    """Every byte of every file is in a sound member, and members are counted as gzip counts them."""
    path = GOLDEN / segment
    reader = TraceReader(path)
    rows = sum(len(batch) for batch in reader.batches())
    report = reader.report.files[0]

    assert report.intact
    assert report.ranges == [ByteRange(0, path.stat().st_size)]
    assert report.rows == rows
    assert report.text_bytes == len(gzip.decompress(path.read_bytes()))
    assert report.members >= 1


@pytest.mark.parametrize("segment", SEGMENTS)
def test_ends_are_those_of_the_whole_file(segment: str) -> None:
    """The first and the last row found without reading the file are its first and last row."""
    path = GOLDEN / segment
    records = list(read_trace(path))
    ends = read_ends(path)

    assert (ends.first, ends.last) == (records[0], records[-1])


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_trace_sums_up(folder: str) -> None:
    """Rows are passes or heartbeats, kinds and ranks add up, and no counter goes back."""
    summary = summary_of(folder)

    assert summary.rows == summary.passes + summary.heartbeats
    assert summary.passes == sum(kind.passes for kind in summary.kinds)
    assert summary.rows == sum(stream.rows for stream in summary.streams)
    assert summary.sampled == folder.startswith("mocker-vllm-sampled")
    assert summary.restarts == summary.duplicates == 0
    for kind in summary.kinds:
        assert kind.p50_seconds is not None
        assert kind.max_seconds is not None
        assert 0 < kind.p50_seconds <= kind.max_seconds


@pytest.mark.parametrize("folder", [f for f in FOLDERS if "sampled" not in f])
def test_full_traces_have_no_gap(folder: str) -> None:
    """The reference lost nothing between the rows of its full traces."""
    assert (summary_of(folder).missing, summary_of(folder).gaps) == (0, 0)


def test_sampled_trace_says_so() -> None:
    """TRACE-34: rows that sampling left out are not called missing."""
    summary = summary_of("mocker-vllm-sampled200")

    assert (summary.missing, summary.gaps) == (0, 0)
    assert summary.sampled_out > summary.rows


def test_two_ranks_of_one_producer_are_two_streams() -> None:
    """Ranks in one file are told apart."""
    summary = summary_of("vllm-cpu-full-dp2")

    assert [stream.dp_rank for stream in summary.streams] == [0, 1]
    assert len(summary.producers) == 1


def test_preempting_engine_shows_a_queue() -> None:
    """Requests that were preempted wait, and the summary shows it."""
    summary = summary_of("mocker-vllm-full-preempt")

    assert summary.queue.max_requests >= 3
    assert {kind.kind for kind in summary.kinds} >= {PassKind.DECODE, PassKind.MIXED}


def test_rotated_trace_is_one_trace() -> None:
    """TRACE-60: the segments that retention left follow each other without a gap."""
    counters = [
        record.metrics.counter_id for record in read_trace(GOLDEN / "mocker-vllm-full-rotation" / "fpm")
    ]

    assert counters == list(range(counters[0], counters[0] + len(counters)))
    assert counters[0] > 1
