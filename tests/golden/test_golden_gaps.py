"""What can be said of the gaps in traces that another writer made: no ledger is beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwardpass.analyze.causes import Cause
from forwardpass.analyze.gap_report import report_gaps
from forwardpass.trace.discover import parse_segment_name
from forwardpass.trace.reader import TraceReader, find_segments

GOLDEN = Path(__file__).parent
TRACES = sorted({path.parent.name for path in GOLDEN.glob("*/*.jsonl.gz") if parse_segment_name(path.name)})


@pytest.mark.parametrize("name", TRACES)
def test_reference_traces_are_explained_without_a_ledger(name: str) -> None:
    """LEDGER-13, LEDGER-14: Every row counts, no recorder is made up, and what is missing is missing."""
    files = find_segments(GOLDEN / name)
    rows = list(TraceReader(files))
    found = report_gaps(files)

    assert found.rows == len(rows) > 0
    assert found.recorders == []
    assert found.files_without_ledger == found.files == len(files)
    assert {gap.cause for gap in found.gaps} <= {Cause.UNKNOWN, Cause.RESTART, Cause.DELETED}
    for stream in found.streams:
        counters = {
            row.metrics.counter_id
            for row in rows
            if (row.metrics.worker_id, row.metrics.dp_rank) == (stream.worker_id, stream.dp_rank)
        }
        holes = set(range(min(counters), max(counters) + 1)) - counters
        assert (stream.sampled_out if stream.sampled else stream.missing) == len(holes)


@pytest.mark.parametrize("name", TRACES)
def test_damaged_copies_say_damage(tmp_path: Path, name: str) -> None:
    """LEDGER-11: A byte run overwritten in the middle of a copy costs rows, and they are missing for that."""
    copies = []
    for path in find_segments(GOLDEN / name):
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        data[middle : middle + 4] = b"\xff\x00\xff\x00"
        copies.append(tmp_path / path.name)
        copies[-1].write_bytes(bytes(data))
    found = report_gaps(copies)
    whole = report_gaps(find_segments(GOLDEN / name))

    assert found.problem_count > 0
    assert found.rows < whole.rows
    assert {gap.cause for gap in found.gaps} <= {Cause.DAMAGE, *(gap.cause for gap in whole.gaps)}
