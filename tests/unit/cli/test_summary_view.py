"""How a trace's summary reads."""

from __future__ import annotations

import pytest

from forwardpass.analyze.summary import summarize
from forwardpass.cli.summary_view import counted, format_bytes, format_seconds, format_time, render_summary
from forwardpass.cli.trace_verify_view import render_health
from forwardpass.testing.traces import decode_pass, prefill_pass, trace_record
from forwardpass.trace.report import FileFormat, FileReport, Problem, ProblemKind, TraceReport
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

ROWS = [
    trace_record(0, ScheduledRequestMetrics(), wall_time=0.0),
    trace_record(1, prefill_pass(2, 3000, cached=1000), wall_time=0.5, queued=QueuedRequestMetrics(3, 4500)),
    *(trace_record(number, decode_pass(8), wall_time=0.012) for number in (2, 3, 6)),
]


def test_the_page_says_what_matters() -> None:
    """Passes, step times by kind, tokens, queue, gaps and ranks, in this order."""
    page = render_summary(summarize(ROWS)).splitlines()

    assert page[0] == "4 passes and 1 heartbeat of 1 rank in 120 ms (every pass)"
    assert page[1] == "2026-11-30T12:34:25.000Z to 2026-11-30T12:34:25.120Z"
    table = [line.split() for line in page[3:6]]
    assert table[0] == ["kind", "of", "pass", "passes", "share", "p50", "p90", "p99", "max", "mean"]
    assert table[1][:5] == ["prefill", "1", "25.0", "%", "500"]
    assert table[2][:6] == ["decode", "3", "75.0", "%", "12", "ms"]
    assert page[7].startswith("tokens  3,000 prefill, 24 decode (")
    assert "25.0 % of prompt tokens read, not computed" in page[7]
    assert page[8].startswith("queue   0.8 requests waiting on average, 3 at most")
    assert page[9] == "gaps    2 messages missing in 1 gap"
    assert page[12].split()[:5] == ["4192", "0", "4", "1", "447"]


def test_no_gap_comes_with_its_caveat() -> None:
    """Where no message is missing the page says what that does not prove."""
    page = render_summary(summarize(ROWS[:4]))

    assert "gaps    none between the rows" in page
    assert 'No gap is not "no loss"' in page


def test_a_sample_is_called_a_sample() -> None:
    """The head, the gaps, the ranks and a note say that rows were left out on purpose."""
    rows = [trace_record(number, capture_mode="sampled") for number in (0, 100)]
    page = render_summary(summarize(rows))

    assert "(a sample of the passes)" in page
    assert "99 messages left out by sampling: each row stands for 50.5 on average" in page
    assert "not valid as a p99" in page
    assert "No gap is not" not in page


def test_restarts_and_repeats_are_named() -> None:
    """Counters that went back or repeat are part of the gaps."""
    rows = [trace_record(number) for number in (0, 1, 1, 0)]

    assert "none between the rows, 1 restart of a counter, 1 repeated row" in render_summary(summarize(rows))


def test_an_empty_trace_has_a_page() -> None:
    """Without rows there is still something to say about the files."""
    assert render_summary(summarize([])) == "The trace holds no rows."
    report = TraceReport([FileReport("a.jsonl.gz", FileFormat.GZIP, size=20)])
    assert "a.jsonl.gz" in render_summary(summarize([]), report)


def test_many_ranks_and_files_are_cut() -> None:
    """A page stays a page with a hundred ranks and files."""
    rows = [trace_record(0, dp_rank=rank) for rank in range(100)]
    report = TraceReport([FileReport(f"{number}.gz") for number in range(100)])
    page = render_summary(summarize(rows), report)

    assert "and 84 more ranks" in page
    assert "and 88 more files" in page
    assert len(page.splitlines()) < 60


def test_files_come_with_their_state() -> None:
    """Damage is pointed at where the files are listed."""
    broken = FileReport("b.gz", FileFormat.GZIP, size=12_345, rows=2)
    broken.add_problem(Problem("b.gz", ProblemKind.GARBAGE, "junk", 0, 5))
    page = render_summary(summarize(ROWS), TraceReport([FileReport("a.gz", size=10), broken]))

    assert "intact" in page
    assert "1 problem" in page
    assert "forwardpass trace verify" in page
    assert "2 files, 12.4 kB" in page


def test_health_shows_few_problems_and_counts_all() -> None:
    """Ten problems of a file are shown; of the others their number and kinds."""
    report = FileReport("a\x1b.gz", FileFormat.GZIP, size=100)
    for line in range(1, 31):
        report.add_problem(Problem("a\x1b.gz", ProblemKind.BAD_JSON, "not JSON", line=line))
    lines = render_health(TraceReport([report]))

    assert len(lines) == 2 + 10 + 1 + 1
    assert lines[-2] == "a?.gz: and 20 more problems (30 bad_json in all)"
    assert lines[-1] == "damaged: 1 of 1 file; 0 rows are safe"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.0, "0 us"),
        (0.00085, "850 us"),
        (0.0125, "12.5 ms"),
        (0.85, "850 ms"),
        (3.204, "3.2 s"),
        (150.0, "2.5 min"),
        (9000.0, "2.5 h"),
        (432_000.0, "5.0 d"),
    ],
)
def test_durations_have_a_unit_that_fits(seconds: float | None, text: str) -> None:
    """Three digits and a unit."""
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (812, "812 B"),
        (12_400, "12.4 kB"),
        (268_435_456, "268 MB"),
        (999_600, "1 MB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes_are_decimal(count: float, text: str) -> None:
    """Three digits and a unit of a power of 1000."""
    assert format_bytes(count) == text


def test_times_are_utc_to_the_millisecond() -> None:
    """ISO 8601, also at the ends of what a row may hold."""
    assert format_time(None) == "-"
    assert format_time(0) == "1970-01-01T00:00:00.000Z"
    assert format_time(1_796_042_065_007) == "2026-11-30T12:34:25.007Z"
    assert format_time(253_402_300_799_999) == "9999-12-31T23:59:59.999Z"


def test_nouns_follow_their_number() -> None:
    """One of a thing is not many."""
    assert [counted(0, "gap"), counted(1, "pass", "passes"), counted(1204, "pass", "passes")] == [
        "0 gaps",
        "1 pass",
        "1,204 passes",
    ]
