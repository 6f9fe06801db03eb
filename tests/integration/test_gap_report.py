"""What a report says of several lives and recorders, where counting wrongly is easy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from forwardpass.analyze import gap_report
from forwardpass.analyze.causes import Cause
from forwardpass.analyze.coverage import ALWAYS_KEPT, Allowance
from forwardpass.analyze.gap_report import GapReport, report_gaps
from forwardpass.testing.traces import gzip_member, trace_line

EPOCH_MS = 1_800_000_000_000


def reported(folder: Path, recorders: dict[str, Sequence[tuple[int, int]]]) -> GapReport:
    """Explain traces of one stream: of each recorder (counter, observed milliseconds)."""
    files = []
    for name, rows in recorders.items():
        lines = [
            trace_line(counter, producer_id=name, observed_at_unix_ms=EPOCH_MS + at) for counter, at in rows
        ]
        files.append(folder / f"fpm.{name}.000000.jsonl.gz")
        files[-1].write_bytes(gzip_member(lines))
    return report_gaps(files)


def restarts(found: GapReport) -> list[int]:
    """Return the numbers of restarts that the report tells, as streams and as gaps."""
    return [found.streams[0].restarts, sum(gap.cause is Cause.RESTART for gap in found.gaps)]


@pytest.mark.parametrize("recorders", [("a",), ("a", "b")])
@pytest.mark.parametrize("first", [0, 3])
def test_a_restart_counts_once(tmp_path: Path, recorders: tuple[str, ...], first: int) -> None:
    """LEDGER-12: However many recorders saw it, and whether or not its first messages were missed."""
    rows = [(7, 0), (8, 20), (first, 40), (first + 1, 60)]

    found = reported(tmp_path, {name: [(c, at + n) for c, at in rows] for n, name in enumerate(recorders)})

    assert restarts(found) == [1, 1]


def test_a_publisher_that_begins_again_and_again_is_counted_so(tmp_path: Path) -> None:
    """LEDGER-12: Restarts two seconds apart are three, also where two recorders saw each of them."""
    rows = [(counter, 2_000 * life + 20 * counter) for life in range(4) for counter in range(5)]

    found = reported(tmp_path, {name: [(c, at + n) for c, at in rows] for n, name in enumerate("ab")})

    assert restarts(found) == [3, 3]


def test_what_is_not_kept_of_one_recorder_is_not_missing_between_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LEDGER-12: A recorder with more holes than are kept ends where its last row is; the rest is counted."""
    monkeypatch.setattr(gap_report, "Allowance", lambda: Allowance(0))
    lossy = [(counter, 20 * counter) for counter in range(0, 62, 2)]
    later = [(counter, 20 * counter) for counter in range(61, 71)]

    found = reported(tmp_path, {"a": lossy, "b": later})

    assert [gap.count for gap in found.gaps] == [1] * ALWAYS_KEPT
    assert found.streams[0].holes_omitted == len(lossy) - 1 - ALWAYS_KEPT
