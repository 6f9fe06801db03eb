"""``forwardpass trace sql``, as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from trace_process import small_trace, trace_process

from forwardpass.testing.traces import trace_line

pytest.importorskip("duckdb", reason="the extra `analyze` is not installed")

ROWS = [trace_line(number, dp_rank=number % 2, worker_id="w\x1b[31m") for number in range(6)]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``trace sql`` in a process of its own."""
    return trace_process("sql", *arguments)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """An intact trace of six rows of two ranks."""
    return small_trace(tmp_path, ROWS)


def test_a_table_for_people(trace: Path) -> None:
    """Names, numbers to the right, null as a word, times as times, and no control characters."""
    columns = "worker_id, dp_rank, count(*) AS passes, max(observed_at) AS last, NULL AS n"
    done = command(f"SELECT {columns} FROM trace GROUP BY ALL ORDER BY ALL", trace)

    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "worker_id  dp_rank  passes  last                        n",
        "w?[31m           0       3  2026-11-30 12:34:25.080  NULL",
        "w?[31m           1       3  2026-11-30 12:34:25.100  NULL",
    ]
    assert done.stderr == ""


def test_json_for_programs(trace: Path) -> None:
    """One array; integers of any size are numbers, times are ISO 8601, NaN is null, lists are lists."""
    query = (
        "SELECT counter_id, sum(counter_id::HUGEINT * 10::HUGEINT ** 20) OVER () AS huge, observed_at AS at, "
        "'nan'::DOUBLE AS nan, [1, NULL] AS list, {'a': 1.50::DECIMAL(4,2)} AS object "
        "FROM trace ORDER BY ALL LIMIT 2"
    )
    done = command(query, trace, "--json")
    (first, _) = json.loads(done.stdout)

    assert first == {
        "counter_id": 0,
        "huge": 15 * 10**20,
        "at": "2026-11-30T12:34:25",
        "nan": None,
        "list": [1, None],
        "object": {"a": 1.5},
    }
    assert json.loads(command("SELECT 1 FROM trace WHERE false", trace, "--json").stdout) == []


def test_csv_for_programs(trace: Path) -> None:
    """A line of names and a line for each row, more than one block of them, quoted where needed."""
    query = "SELECT i, 'a,b' AS text, NULL AS none FROM range(2500) AS t(i) ORDER BY i"
    rows = list(csv.reader(io.StringIO(command(query, trace, "--csv").stdout)))

    assert rows[0] == ["i", "text", "none"]
    assert rows[1:] == [[str(number), "a,b", ""] for number in range(2500)]


def test_named_tables_join(tmp_path: Path, trace: Path) -> None:
    """``--table`` gives traces names; with no path there is no table ``trace``."""
    other = tmp_path / "other.jsonl"
    other.write_bytes(trace_line(4, wall_time=0.5) + b"\n")
    query = "SELECT b.wall_time - a.wall_time AS longer FROM a JOIN b USING (counter_id)"
    done = command(query, "--table", f"a={trace}", "--table", f"b={other}", "--json")
    beside = command(
        "SELECT (SELECT count(*) FROM trace) + (SELECT count(*) FROM b) AS n", trace, "-t", f"b={other}"
    )
    missing = command("SELECT * FROM trace", "--table", f"a={trace}")
    twice = command("SELECT 1", trace, "--table", f"trace={other}")

    assert json.loads(done.stdout) == [{"longer": 0.48}]
    assert beside.stdout.split() == ["n", "7"]
    assert (missing.returncode, twice.returncode) == (2, 2)
    assert "Table with name trace does not exist" in missing.stderr
    assert "--table='trace'" in twice.stderr


def test_damage_is_told(trace: Path) -> None:
    """TRACE-85: exit code 4, the damage on stderr, and the answer from the rows that are sure."""
    trace.write_bytes(trace.read_bytes()[:-8])
    done = command("SELECT count(*) FROM trace", trace, "--csv")
    unverified = command("SELECT count(*) FROM trace", trace, "--csv", "--unverified")

    assert (done.returncode, unverified.returncode) == (4, 4)
    assert "a gzip member is torn" in done.stderr
    assert (done.stdout.split()[1], unverified.stdout.split()[1]) == ("3", "6")


def test_a_wrong_query_is_told_before_anything_is_read(tmp_path: Path) -> None:
    """TRACE-86: the query is checked first: the damage of a trace is not even looked at."""
    (tmp_path / "t.jsonl.gz").write_bytes(b"\x1f\x8b\x08garbage")
    done = command("SELECT nothing FROM trace", tmp_path)

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


def test_explain_draws_the_plan(trace: Path) -> None:
    """The plan is a drawing of several lines."""
    done = command("EXPLAIN SELECT sum(wall_time) FROM trace", trace)

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 3


def test_a_reader_that_has_seen_enough_is_no_failure(trace: Path) -> None:
    """``| head`` ends the command without a word."""
    query = "SELECT i FROM range(1000000) AS t(i)"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m forwardpass trace sql '{query}' {trace} --csv | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert (done.stdout, done.stderr) == ("i\n", "")


def test_without_the_extra_one_line_says_what_to_install(trace: Path) -> None:
    """An installation without DuckDB: exit code 2 and the name of the extra, no traceback."""
    code = (
        "import sys; sys.modules['duckdb'] = None\n"
        f"sys.argv = ['forwardpass', 'trace', 'sql', 'SELECT 1', {str(trace)!r}]\n"
        "from forwardpass.cli.main import main\nmain()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 2
    assert "duckdb is not installed; it comes with pip install 'forwardpass[analyze]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
