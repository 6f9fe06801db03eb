"""``forwardpass trace export``, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from trace_process import small_trace, trace_process

from forwardpass.testing.traces import gzip_member, trace_line

pyarrow = pytest.importorskip("pyarrow", reason="the extra `analyze` is not installed")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.ipc")

ROWS = [trace_line(number, dp_rank=number % 2) for number in range(6)]


def command(*arguments: str | Path, text: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``trace export`` in a process of its own."""
    return trace_process("export", *arguments, text=text)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """An intact trace of six rows of two ranks."""
    return small_trace(tmp_path, ROWS)


def test_it_says_what_it_wrote(tmp_path: Path, trace: Path) -> None:
    """Rows, files and bytes are said on stderr; stdout stays empty."""
    done = command(trace, "--to", tmp_path / "a.parquet")

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("6 rows in 1 file of ")
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 6


def test_the_filters_choose_rows(tmp_path: Path, trace: Path) -> None:
    """Rank and time choose rows as for ``trace cat``."""
    target = tmp_path / "a.ndjson"
    done = command(trace, "--to", target, "--rank", "1", "--since", "1796042065040")
    rows = [json.loads(line) for line in target.read_text().splitlines()]

    assert done.returncode == 0
    assert [row["counter_id"] for row in rows] == [3, 5]


def test_stdout_takes_text_and_streams(trace: Path) -> None:
    """``-`` writes CSV, JSON lines and Arrow's stream to stdout, and not a word on stderr."""
    rows = list(csv.DictReader(io.StringIO(command(trace, "--to", "-", "--format", "csv").stdout)))
    lines = command(trace, "--to", "-", "--format", "ndjson").stdout.splitlines()
    arrow = command(trace, "--to", "-", "--format", "arrow", text=False)

    assert [row["counter_id"] for row in rows] == ["0", "1", "2", "3", "4", "5"]
    assert [json.loads(line)["dp_rank"] for line in lines] == [0, 1, 0, 1, 0, 1]
    assert pyarrow.ipc.open_stream(arrow.stdout).read_all().num_rows == 6
    assert not arrow.stderr


@pytest.mark.parametrize("form", ["csv", "ndjson", "arrow"])
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path: Path, form: str) -> None:
    """``| head`` ends the command without a word."""
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(gzip_member(trace_line(number, wall_time=1 / (number + 1)) for number in range(9000)))
    export = f"{sys.executable} -m forwardpass trace export {path} --to - --format {form}"
    done = subprocess.run(
        ["bash", "-c", f"{export} | head -c 10 | wc -c"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert (done.stdout.strip(), done.stderr) == ("10", "")


def test_damage_is_told_and_the_rest_is_exported(tmp_path: Path, trace: Path) -> None:
    """TRACE-82: exit code 4, what is damaged on stderr, and every row that is sure in the file."""
    trace.write_bytes(trace.read_bytes()[:-8])
    done = command(trace, "--to", tmp_path / "a.parquet")
    unverified = command(trace, "--to", tmp_path / "b.parquet", "--unverified")

    assert (done.returncode, unverified.returncode) == (4, 4)
    assert "a gzip member is torn" in done.stderr
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 3
    assert pq.read_metadata(tmp_path / "b.parquet").num_rows == 6


def test_a_name_that_is_taken_is_refused(tmp_path: Path, trace: Path) -> None:
    """TRACE-83: exit code 3 and a line that names ``--force``, which does it."""
    target = tmp_path / "a.csv"
    target.write_text("mine")
    refused = command(trace, "--to", target)
    done = command(trace, "--to", target, "--force")

    assert refused.returncode == 3
    assert "is there already" in refused.stderr
    assert "--force" in refused.stderr
    assert done.returncode == 0
    assert target.read_text().startswith('"timestamp"')


def test_without_the_extra_one_line_says_what_to_install(tmp_path: Path, trace: Path) -> None:
    """An installation without pyarrow: exit code 2 and the name of the extra, no traceback."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        f"sys.argv = ['x', 'trace', 'export', {str(trace)!r}, '--to', {str(tmp_path / 'a.csv')!r}]\n"
        "from forwardpass.cli.main import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert done.stderr == (
        "forwardpass: pyarrow is not installed; it comes with pip install 'forwardpass[analyze]'; "
        "nothing was started\n"
    )
