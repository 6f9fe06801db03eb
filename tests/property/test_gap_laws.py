"""Which counters no recorder has: any rows lost by any recorders, against plain sets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.analyze.gap_report import report_gaps
from forwardpass.testing.traces import gzip_member, trace_line

COUNT = 40


@st.composite
def recorders(draw: st.DrawFn) -> list[list[int]]:
    """Return what each recorder has of messages 0 to ``COUNT``: a stretch of them, some of it lost."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        first = draw(st.integers(0, COUNT - 1))
        last = draw(st.integers(first, COUNT - 1))
        lost = draw(st.sets(st.integers(first, last), max_size=12))
        found.append([counter for counter in range(first, last + 1) if counter not in lost])
    return found


@pytest.mark.parametrize("spread_ms", [20, 1])
def test_what_no_recorder_has_is_missing(tmp_path: Path, spread_ms: int) -> None:
    """LEDGER-12: The gaps are exactly the counters between the first and the last row that nobody has."""

    @given(recorded=recorders(), skew=st.lists(st.integers(-30, 30), min_size=4, max_size=4))
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def check(recorded: list[list[int]], skew: list[int]) -> None:
        for old in tmp_path.iterdir():
            old.unlink()
        files = []
        for number, counters in enumerate(recorded):
            lines = [
                trace_line(
                    counter,
                    producer_id=str(number),
                    observed_at_unix_ms=1_800_000_000_000 + spread_ms * counter + skew[number],
                )
                for counter in counters
            ]
            if lines:
                files.append(tmp_path / f"fpm.{number}.000000.jsonl.gz")
                files[-1].write_bytes(gzip_member(lines))
        seen = {counter for counters in recorded for counter in counters}
        expected = set(range(min(seen), max(seen) + 1)) - seen if seen else set()

        gaps = report_gaps(files).gaps
        found = [counter for gap in gaps for counter in range(gap.first, gap.last + 1)]
        assert sorted(found) == sorted(expected)

    check()


def test_gaps_are_reported_once(tmp_path: Path) -> None:
    """LEDGER-12: What two recorders both lost is one gap, however differently they lost around it."""
    for name, lost in (("a", {4, 5, 6, 7}), ("b", {6, 7, 8})):
        lines = [trace_line(counter, producer_id=name) for counter in range(12) if counter not in lost]
        (tmp_path / f"fpm.{name}.000000.jsonl.gz").write_bytes(gzip_member(lines))

    report = report_gaps(sorted(tmp_path.iterdir()))

    assert [(gap.first, gap.last) for gap in report.gaps] == [(6, 7)]
    assert report.missing == 2
