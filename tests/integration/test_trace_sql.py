"""Rows in the embedded database are the reader's rows, and the database reaches nothing else."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from column_rows import expected_rows

from forwardpass.columnar.read import ColumnReader
from forwardpass.columnar.schema import COLUMNS
from forwardpass.columnar.sql import TraceDatabase, trace_database
from forwardpass.errors import QueryError, TracePathError
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.reader import TraceReader

pytest.importorskip("duckdb", reason="the extra `analyze` is not installed")

GOLDEN = Path(__file__).parent.parent / "golden"
SEGMENTS = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/fpm.*.jsonl.gz"))
NAMES = [column.name for column in COLUMNS]


@pytest.fixture
def database() -> Iterator[TraceDatabase]:
    """A database with an empty table."""
    with trace_database() as database:
        database.create("trace")
        yield database


def rows(database: TraceDatabase, query: str) -> list[tuple[Any, ...]]:
    """Return all rows of an answer."""
    return [row for block in database.ask(query) for row in block]


def table_rows(database: TraceDatabase) -> list[dict[str, Any]]:
    """Return the rows of the table in its order, ``extra`` as a parsed object."""
    query = "SELECT " + ", ".join(f'"{name}"' for name in NAMES) + " FROM trace"
    found = [dict(zip(NAMES, row, strict=True)) for row in rows(database, query)]
    return [{**row, "extra": row["extra"] and json.loads(row["extra"])} for row in found]


@pytest.mark.parametrize("segment", SEGMENTS)
def test_every_golden_trace_is_in_the_table(database: TraceDatabase, segment: str) -> None:
    """TRACE-85: the table's rows are those that the reader gives, value by value, in its order."""
    database.fill("trace", ColumnReader(GOLDEN / segment).batches())

    assert table_rows(database) == expected_rows(TraceReader(GOLDEN / segment))


def test_a_damaged_trace_gives_the_rows_that_are_sure(database: TraceDatabase, tmp_path: Path) -> None:
    """TRACE-85: behind damage, with unknown fields and integers beyond 64 bit, the rows are the reader's."""
    odd = json.loads(trace_line(1))
    odd["event"]["fpm"].update(counter_id=2**64 - 1, later=[1])
    members = [
        gzip_member([trace_line(0)]),
        gzip_member([trace_line(5)]),
        gzip_member([json.dumps(odd).encode()]),
    ]
    content = bytearray(b"".join(members))
    content[len(members[0]) + len(members[1]) - 6] ^= 0xFF
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(content)
    database.fill("trace", ColumnReader(path).batches())
    found = table_rows(database)

    assert found == expected_rows(TraceReader(path))
    assert [row["extra"] for row in found] == [None, {"counter_id": 2**64 - 1, "later": [1]}]


def test_times_are_timestamps_in_utc(database: TraceDatabase) -> None:
    """TRACE-85: ``observed_at`` is the time of observation, for grouping by minute and the like."""
    database.fill("trace", ColumnReader(GOLDEN / "vllm-cpu-full").batches())
    query = (
        "SELECT count(*) FROM trace WHERE epoch_ms(observed_at) <> observed_at_unix_ms OR observed_at IS NULL"
    )

    assert rows(database, query) == [(0,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_csv('{path}')",
        "SELECT * FROM '{path}'",
        "SELECT * FROM read_text('{path}')",
        "SELECT * FROM glob('/*')",
        "SELECT * FROM read_parquet('http://127.0.0.1:9/x')",
        "COPY trace TO '{path}.copy'",
        "EXPORT DATABASE '{path}.copy'",
        "ATTACH '{path}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET memory_limit = '10GB'",
        "SET enable_external_access = true",
        "PRAGMA database_list",
        "CREATE TABLE other AS SELECT 1",
        "DELETE FROM trace",
        "DROP TABLE trace",
        "CALL pragma_version()",
        "EXPLAIN ANALYZE COPY trace TO '{path}.copy'",
        "SELECT 1; DROP TABLE trace",
        "SELECT * FROM secret",
        "",
        "SELEC 1",
        "SELECT nothing FROM trace",
        "SELECT ?",
    ],
)
def test_a_query_reaches_nothing_but_the_rows(database: TraceDatabase, tmp_path: Path, query: str) -> None:
    """TRACE-86: files, network, settings and changes are refused, in one line, and leave nothing behind."""
    secret = tmp_path / "secret.csv"
    secret.write_text("a,b\n1,2\n")

    with pytest.raises(QueryError) as caught:
        rows(database, query.format(path=secret))

    assert "\n" not in str(caught.value)
    assert str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert rows(database, "SELECT count(*) FROM trace") == [(0,)]


@pytest.mark.parametrize(
    "query", ["DESCRIBE trace", "SUMMARIZE trace", "FROM trace", "VALUES (1)", "EXPLAIN FROM trace;"]
)
def test_queries_of_other_forms_are_answered(database: TraceDatabase, query: str) -> None:
    """What reads only is a query, whatever word it begins with."""
    database.check(query)

    assert database.ask(query).names


def test_an_answer_fails_in_the_middle_in_one_line(database: TraceDatabase) -> None:
    """TRACE-86: a value that a cast does not take is an error of the query, also behind many rows."""
    with pytest.raises(QueryError, match="out of range"):
        rows(database, "SELECT i::TINYINT FROM range(10000) AS t(i)")


def test_names_are_distinct(database: TraceDatabase) -> None:
    """Columns of the same name get numbers, so that an object can hold them."""
    assert database.ask("SELECT 1 AS a, 2 AS a, 3 AS a_2").names == ["a", "a_2", "a_2_2"]


def test_what_reading_raises_is_raised(database: TraceDatabase) -> None:
    """An error while rows come in is that error, not DuckDB's words for it."""

    def failing() -> Iterator[Any]:
        yield from ColumnReader(GOLDEN / "vllm-cpu-full").batches()
        raise TracePathError("x", "went away")

    with pytest.raises(TracePathError, match="went away"):
        database.fill("trace", failing())


def test_more_rows_than_memory_go_to_a_folder_that_goes_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-86: beyond its limit the database uses a temporary folder, which is gone at the end."""
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(
        gzip_member((trace_line(number, wall_time=1 / (number + 1)) for number in range(40_000)), level=1)
    )
    spill = tmp_path / "spill"
    spill.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spill))
    with trace_database(24 << 20) as database:
        database.create("trace")
        for _ in range(5):
            database.fill("trace", ColumnReader(path).batches())
        answer = rows(database, "SELECT count(*), count(DISTINCT counter_id), min(wall_time) FROM trace")
        used = sum(file.stat().st_size for file in spill.rglob("*") if file.is_file())

    assert answer == [(200_000, 40_000, 1 / 40_000)]
    assert used > 0
    assert list(spill.iterdir()) == []


def test_a_query_that_needs_more_memory_is_told_so() -> None:
    """TRACE-86: a query that even a temporary folder cannot help ends with a line that names the option."""
    with trace_database(8 << 20) as database:
        database.create("trace")

        with pytest.raises(QueryError, match="--memory"):
            rows(database, "SELECT list(i ORDER BY -i) FROM range(9000000) AS t(i)")


# --- only the columns that a query needs -----------------------------------------------------------

NARROW = {
    "SELECT count(*) FROM trace": {"counter_id"},
    "SELECT max(wall_time) AS m FROM trace ORDER BY m": {"wall_time"},
    "SELECT t.Wall_Time FROM trace AS t WHERE t.dp_rank = 0 ORDER BY 1": {"wall_time", "dp_rank"},
    'SELECT "wall_time" FROM trace GROUP BY ALL': {"wall_time"},
    "SELECT min(observed_at) FROM trace": {"observed_at_unix_ms"},
    "SELECT count(*) FROM trace WHERE extra IS NULL": {"extra"},
    "SELECT sum(a.wall_time) FROM trace a JOIN trace b USING (counter_id, dp_rank)": {
        "wall_time", "counter_id", "dp_rank",
    },
    "SELECT (SELECT max(wall_time) FROM trace) - min(wall_time) FROM trace": {"wall_time"},
    "SELECT dp_rank FROM trace UNION SELECT scheduled_num_decode_requests FROM trace ORDER BY 1": {
        "dp_rank", "scheduled_num_decode_requests",
    },
    "SELECT sum(wall_time) OVER (PARTITION BY dp_rank ORDER BY counter_id) FROM trace": {
        "wall_time", "dp_rank", "counter_id",
    },
}  # fmt: skip
ALL = [
    "SELECT * FROM trace",
    "FROM trace",
    "SELECT count(*) FROM (SELECT DISTINCT * FROM trace)",
    "SELECT count(*) FROM (SELECT wall_time FROM trace) NATURAL JOIN trace",
    "SELECT t FROM trace t",
    "SELECT count(DISTINCT trace) FROM trace",
    "SELECT max(COLUMNS('sched.*')) FROM trace",
    "SELECT a FROM trace AS t(a)",
    "SELECT a, h FROM trace AS t(a, b, c, d, e, f, g, h)",
    "SUMMARIZE trace",
    "DESCRIBE trace",
    "WITH q AS (SELECT wall_time FROM trace) SELECT max(wall_time) FROM q",
    "SELECT count(*) FROM duckdb_columns() WHERE table_name = 'trace'",
    "SELECT count(*) FROM information_schema.columns WHERE table_name = 'trace'",
    "SELECT count(*) FROM trace POSITIONAL JOIN trace AS b",
    "SELECT 1 FROM (PIVOT trace ON dp_rank IN (0, 1) USING max(wall_time) GROUP BY capture_mode)",
    "EXPLAIN SELECT max(wall_time) FROM trace",
    "SELECT count(*) FROM trace, range(3)",
]


@pytest.mark.parametrize("query", [*NARROW, *ALL])
def test_a_narrow_table_gives_the_same_answer(query: str) -> None:
    """TRACE-85: leaving out columns that a query does not need changes no answer; in doubt all are there."""
    source = GOLDEN / "vllm-cpu-full-dp2"
    answers = []
    for narrow in (False, True):
        with trace_database() as database:
            database.create("trace")
            database.check(query)
            if narrow:
                database.narrow(query)
            columns = database.columns("trace")
            database.fill("trace", ColumnReader(source, columns=columns).batches())
            answer = database.ask(query)
            answers.append((answer.names, sorted(map(repr, (row for block in answer for row in block)))))

    assert columns == [name for name in NAMES if name in NARROW.get(query, NAMES)]
    if not query.startswith("EXPLAIN"):
        assert answers[0] == answers[1]
