"""Commands that read traces do work in proportion to what they read, and keep little of it.

Work is counted as calls of functions, which is the same on every machine.
"""

from __future__ import annotations

import cProfile
import io
import pstats
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from forwardpass.analyze.coverage import ALWAYS_KEPT, Allowance, SeriesReader
from forwardpass.analyze.gap_report import report_gaps
from forwardpass.cli.main import cli
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.member_scan import State, scan_members
from forwardpass.trace.reader import find_segments


def write(folder: Path, producer: int, counters: Sequence[int], worker: int | None = None) -> None:
    """Write one producer's rows with these counters, a thousand of them in a second."""
    folder.mkdir(exist_ok=True)
    whose = str(producer if worker is None else worker)
    lines = [
        trace_line(
            counter,
            producer_id=str(producer),
            worker_id=whose,
            observed_at_unix_ms=1_796_042_065_000 + counter,
        )
        for counter in counters
    ]
    (folder / f"fpm.{producer}.000000.jsonl.gz").write_bytes(gzip_member(lines))


def calls_of(*words: str) -> int:
    """Return how many functions a command calls."""
    profile = cProfile.Profile()
    with redirect_stdout(io.TextIOWrapper(io.BytesIO())):
        profile.runcall(cli.main, list(words), standalone_mode=False)
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    return calls


@pytest.mark.parametrize("command", ["stats", "ls", "verify", "gaps", "merge"])
def test_twice_as_many_producers_are_twice_the_work(command: str, tmp_path: Path) -> None:
    """A command's work grows no faster than the number of producers."""
    for many in (400, 800):
        for producer in range(many):
            write(tmp_path / str(many), producer, range(2))
    calls_of("trace", command, str(tmp_path / "400"))  # imports

    few, twice = (calls_of("trace", command, str(tmp_path / many)) for many in ("400", "800"))

    assert twice < 2.2 * few


def test_twice_as_many_holes_in_two_recordings_are_twice_the_work(tmp_path: Path) -> None:
    """What two recorders of one stream both miss is found without comparing each hole with everything."""
    for holes in (500, 1000):
        folder = tmp_path / str(holes)
        write(folder, 1, range(0, 2 * holes, 2), worker=7)
        write(folder, 2, range(0, 3 * holes, 3), worker=7)
    calls_of("trace", "gaps", str(tmp_path / "500"))

    few, twice = (calls_of("trace", "gaps", str(tmp_path / holes)) for holes in ("500", "1000"))

    assert twice < 2.2 * few


def test_holes_of_all_streams_together_are_bounded(tmp_path: Path) -> None:
    """Each stream keeps its first holes, all together as many more as are allowed; the rest is counted."""
    allowance = Allowance(10)
    found = []
    for producer in range(5):
        write(tmp_path, producer, range(0, 100, 2))
    for path in find_segments(tmp_path):
        found += SeriesReader([path], allowance=allowance).read(lambda row: True)

    kept = [len(each.holes) + len(each.stretches) for each in found]
    assert sum(kept) == 5 * 2 * ALWAYS_KEPT + 10
    assert min(kept) == 2 * ALWAYS_KEPT
    assert [len(each.holes) + each.holes_omitted for each in found] == [49] * 5


def test_problems_of_all_files_together_are_bounded(tmp_path: Path) -> None:
    """A report lists some thousands of problems and counts the others."""
    for producer in range(3):
        path = tmp_path / f"fpm.{producer}.000000.jsonl.gz"
        path.write_bytes(gzip_member([trace_line(0), *[b"no row"] * 4000]))

    report = report_gaps(find_segments(tmp_path))

    assert (len(report.problems), report.problem_count) == (10_000, 12_000)


@pytest.mark.parametrize(("size", "held"), [(1 << 20, True), (2 << 20, False)])
def test_the_text_of_large_members_is_not_held(size: int, held: bool, tmp_path: Path) -> None:
    """What writers put into a member is kept while it is read, larger ones are inflated again."""
    path = tmp_path / "one.jsonl.gz"
    path.write_bytes(gzip_member([b"x" * 1023] * (size >> 10)))

    with FileBytes(path) as file:
        (region,) = scan_members(file, lambda text: True)

    assert (region.state, region.text_bytes) == (State.INTACT, size)
    assert (region.pieces is not None) == held
