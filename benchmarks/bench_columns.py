"""Knows how fast traces become columns, are asked in SQL, and are loaded again from a Parquet copy.

The rows are those of a simulated engine, in members of 1 MiB. Every way ends with the same columns or the
same answer. The baseline is what anybody writes first: ``gzip``, ``json`` and lists. DuckDB, Polars and
``pyarrow.json`` are measured where they are installed, each as its documentation says it is fastest; none of
them checks the checksums of damaged files or goes on behind damage, as ours does.

FORWARDPASS_BENCH_ROWS sets the number of rows (60,000; 6,000 in quick mode). Beyond a million there is one
round, without one to warm up: with 2 million it takes five minutes.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from forwardpass.testing.passes import simulated_passes
from forwardpass.trace.gzip_member import compress_member
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from harness import Result, compare, from_rounds, is_quick, run_script

ROUNDS = 5
MANY_ROWS = 1_000_000
COLUMNS_GOAL = 1 / 3.5
SQL_GOAL = 1 / 9
RELOAD_GOAL = 1 / 6
SIZE_GOAL = 0.62
ROWS_PER_MEMBER = 1450
NESTED = ("scheduled_requests", "queued_requests")
QUERY = "SELECT count(*), sum({scheduled}sum_decode_kv_tokens)::BIGINT, max({fpm}wall_time) FROM {source}"


def rows_wanted() -> int:
    """Return how many rows to measure with."""
    return int(os.environ.get("FORWARDPASS_BENCH_ROWS", "6000" if is_quick() else "60000"))


def write(path: Path, rows: int) -> None:
    """Write a trace of a simulated engine."""
    source = {"namespace": "dynamo", "component": "backend", "producer_id": "7649828356715521"}
    passes = islice(simulated_passes(worker_id="7649828356715521"), rows)
    with path.open("wb") as file:
        number = 0
        while chunk := list(islice(passes, ROWS_PER_MEMBER)):
            lines = []
            for metrics in chunk:
                event = {
                    "schema": "dynamo.fpm.trace.v1",
                    "source": source,
                    "capture_mode": "full",
                    "observed_at_unix_ms": 1_796_042_065_546 + number * 12 + number % 5,
                    "fpm": metrics,
                }
                lines.append(msgspec.json.encode({"timestamp": number * 12, "event": event}) + b"\n")
                number += 1
            file.write(compress_member(b"".join(lines)))


# --- into columns ----------------------------------------------------------------------------------


def plain_columns(path: Path) -> int:
    """Read with the standard library into one list for each column."""
    columns: dict[str, list[Any]] = {}
    with gzip.open(path) as file:
        for line in file:
            row = json.loads(line)
            event = row["event"]
            fpm = event["fpm"]
            flat = {
                "timestamp": row["timestamp"],
                "observed": event["observed_at_unix_ms"],
                **event["source"],
            }
            flat |= {name: value for name, value in fpm.items() if name not in NESTED}
            for nested in NESTED:
                flat |= {f"{nested}_{name}": value for name, value in fpm[nested].items()}
            for name, value in flat.items():
                columns.setdefault(name, []).append(value)
    return len(columns["timestamp"])


def our_columns(path: Path) -> int:
    """Read as record batches."""
    from forwardpass import read_trace_arrow

    return int(read_trace_arrow(path).read_all().num_rows)


def arrow_json(path: Path) -> int:
    """Read with Arrow's own reader of JSON, its structs as columns."""
    import pyarrow.json

    with gzip.open(path) as file:
        options = pyarrow.json.ReadOptions(block_size=4 << 20)
        table = pyarrow.json.read_json(file, read_options=options)
    return int(table.flatten().flatten().flatten().num_rows)


def polars_json(path: Path) -> int:
    """Read with Polars, its structs as columns."""
    import polars

    with gzip.open(path) as file:
        frame = polars.read_ndjson(io.BytesIO(file.read()))
    return len(frame.unnest("event").unnest("fpm").unnest("scheduled_requests"))


# --- asked in SQL ----------------------------------------------------------------------------------


def plain_answer(path: Path) -> None:
    """Answer the question with the standard library."""
    rows, tokens, longest = 0, 0, 0.0
    with gzip.open(path) as file:
        for line in file:
            fpm = json.loads(line)["event"]["fpm"]
            rows += 1
            tokens += fpm["scheduled_requests"]["sum_decode_kv_tokens"]
            longest = max(longest, fpm["wall_time"])


def duckdb_answer(path: Path) -> None:
    """Answer it with DuckDB, which guesses the columns."""
    import duckdb

    query = QUERY.format(scheduled="event.fpm.scheduled_requests.", fpm="event.fpm.", source=f"'{path}'")
    duckdb.connect().execute(query.replace(f"'{path}'", f"read_json_auto('{path}')")).fetchall()


def named_columns(path: Path) -> str:
    """Return what DuckDB reads of a trace when it is told every column and its type, its fastest way."""
    payload = types_of(ForwardPassMetrics)
    payload["scheduled_requests"] = struct(types_of(ScheduledRequestMetrics))
    payload["queued_requests"] = struct(types_of(QueuedRequestMetrics))
    source = struct(dict.fromkeys(("namespace", "component", "producer_id"), "VARCHAR"))
    event = {
        "schema": "VARCHAR",
        "source": source,
        "capture_mode": "VARCHAR",
        "observed_at_unix_ms": "BIGINT",
    }
    columns = {"timestamp": "BIGINT", "event": struct({**event, "fpm": struct(payload)})}
    return f"read_json('{path}', format = 'newline_delimited', columns = {columns})"


def types_of(message: type[msgspec.Struct]) -> dict[str, str]:
    """Return field -> SQL type."""
    kinds = {int: "BIGINT", float: "DOUBLE", str: "VARCHAR"}
    return {field.name: kinds.get(field.type, "") for field in msgspec.structs.fields(message)}


def struct(fields: dict[str, str]) -> str:
    """Return the SQL type of an object."""
    return f"STRUCT({', '.join(f'{name} {kind}' for name, kind in fields.items())})"


def duckdb_named_answer(path: Path) -> None:
    """Answer it with DuckDB, which is told the columns."""
    import duckdb

    source = named_columns(path)
    query = QUERY.format(scheduled="event.fpm.scheduled_requests.", fpm="event.fpm.", source=source)
    duckdb.connect().execute(query).fetchall()


def our_answer(path: Path) -> None:
    """Answer it with ``trace sql``'s database."""
    from forwardpass.columnar.read import ColumnReader
    from forwardpass.columnar.sql import trace_database

    with trace_database() as database:
        query = QUERY.format(scheduled="scheduled_", fpm="", source="trace")
        database.create("trace")
        database.check(query)
        database.narrow(query)
        database.fill("trace", ColumnReader(path, columns=database.columns("trace")).batches())
        list(database.ask(query))


# --- into a table of DuckDB's ----------------------------------------------------------------------


def duckdb_table(path: Path) -> None:
    """Fill a table with every column, DuckDB reading by itself."""
    import duckdb

    duckdb.connect().execute(
        f"CREATE TABLE t AS SELECT timestamp, unnest(event, recursive := true) FROM {named_columns(path)}"
    )


def our_table(path: Path) -> None:
    """Fill the table of ``trace sql`` with every column."""
    from forwardpass.columnar.read import ColumnReader
    from forwardpass.columnar.sql import trace_database

    with trace_database() as database:
        database.create("trace")
        database.fill("trace", ColumnReader(path).batches())


# --- loaded again ----------------------------------------------------------------------------------


def export(path: Path, target: Path) -> None:
    """Export to Parquet."""
    from forwardpass.columnar.export import export_file
    from forwardpass.columnar.formats import ExportFormat
    from forwardpass.columnar.read import ColumnReader

    export_file(ColumnReader(path).batches(), target, ExportFormat.PARQUET)


def reload(path: Path) -> int:
    """Load a Parquet copy."""
    import pyarrow.parquet

    return int(pyarrow.parquet.read_table(path).num_rows)


def main() -> list[Result]:
    """Compare the ways that are installed."""
    if not installed("pyarrow") or not installed("duckdb"):
        print("skipped: no pyarrow or no duckdb here (pip install '.[analyze]')", file=sys.stderr)
        return []
    rows = rows_wanted()
    with tempfile.TemporaryDirectory() as folder:
        path, copy = Path(folder) / "t.jsonl.gz", Path(folder) / "t.parquet"
        write(path, rows)
        export(path, copy)
        others: dict[str, Callable[[Path], int]] = {"pyarrow.json": arrow_json}
        if installed("polars"):
            others["polars"] = polars_json
        columns = {"gzip + json": plain_columns, **others, "read_trace_arrow": our_columns}
        answers = {
            "gzip + json": plain_answer,
            "DuckDB read_json_auto": duckdb_answer,
            "DuckDB, columns named": duckdb_named_answer,
            "trace sql": our_answer,
        }
        tables = {"gzip + json": plain_columns, "DuckDB, columns named": duckdb_table, "trace sql": our_table}
        often = {"rounds": 1, "warmup": 0} if rows > MANY_ROWS else {"rounds": ROUNDS}
        return [
            compare("into columns", of(columns, path), items=rows, goal=COLUMNS_GOAL, **often),
            compare("into a table of DuckDB's", of(tables, path), items=rows, goal=SQL_GOAL, **often),
            compare("one question in SQL", of(answers, path), items=rows, goal=SQL_GOAL, **often),
            compare(
                "load again",
                {
                    "read_trace_arrow": lambda: discard(our_columns(path)),
                    "Parquet copy": lambda: discard(reload(copy)),
                },
                items=rows,
                goal=RELOAD_GOAL,
                **often,
            ),
            from_rounds(
                "size of a row",
                {"gzip": [path.stat().st_size / rows], "Parquet copy": [copy.stat().st_size / rows]},
                unit="bytes",
                goal=SIZE_GOAL,
            ),
        ]


def of(ways: dict[str, Callable[[Path], Any]], path: Path) -> dict[str, Callable[[], None]]:
    """Return the ways, each bound to ``path``."""
    return {label: lambda way=way: discard(way(path)) for label, way in ways.items()}


def discard(value: object) -> None:
    """Return nothing: the harness takes what a way returns for seconds."""


def installed(module: str) -> bool:
    """Say whether a library is there."""
    return importlib.util.find_spec(module) is not None


if __name__ == "__main__":
    run_script(main)
