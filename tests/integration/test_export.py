"""Exported rows, read back with other programs' readers, are the rows of the trace; whole or not there."""

from __future__ import annotations

import csv
import io
import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from column_rows import expected_rows, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.columnar.export import export_dataset, export_file, export_pipe
from forwardpass.columnar.formats import ExportFormat
from forwardpass.columnar.read import ColumnReader
from forwardpass.columnar.schema import COLUMNS, Kind
from forwardpass.errors import TracePathError
from forwardpass.testing.strategies import metrics
from forwardpass.testing.traces import decode_pass, gzip_member, trace_line
from forwardpass.trace.reader import TraceReader

duckdb = pytest.importorskip("duckdb", reason="the extra `analyze` is not installed")
pyarrow = pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.dataset")
pytest.importorskip("pyarrow.ipc")

GOLDEN = Path(__file__).parent.parent / "golden"
SEGMENTS = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/fpm.*.jsonl.gz"))
SUFFIXES = {
    "a.parquet": ExportFormat.PARQUET,
    "a.arrow": ExportFormat.ARROW,
    "a.arrows": ExportFormat.ARROW,
    "a.csv": ExportFormat.CSV,
    "a.ndjson": ExportFormat.NDJSON,
}
TARGETS = [["a.parquet"], ["a.csv"], ["a.arrow"], ["a.ndjson"], ["lake", "--dataset"]]
PEAK_LIMIT_MIB = 256


def parsed(column: str, text: str) -> Any:
    """Return the value that a field of a CSV file spells."""
    kinds = {each.name: each.kind for each in COLUMNS}
    if kinds[column] is Kind.TEXT:
        return text
    if text == "":
        return None
    return {Kind.INTEGER: int, Kind.NUMBER: float, Kind.JSON: json.loads}[kinds[column]](text)


def read_back(path: Path) -> list[dict[str, Any]]:
    """Return the rows of an exported file, each format by a reader that is not ours."""
    if path.suffix == ".parquet":
        return rows_of(pq.read_table(path).to_batches())
    if path.suffix == ".arrow":
        return rows_of(pa.ipc.open_file(str(path)).read_all().to_batches())
    if path.suffix == ".arrows":
        return rows_of(pa.ipc.open_stream(path.read_bytes()).read_all().to_batches())
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""))
        return [{name: parsed(name, text) for name, text in row.items()} for row in reader]
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as a Parquet file of one row group sorts them."""
    return sorted(
        rows,
        key=lambda row: (
            row["worker_id"].encode(),
            row["dp_rank"] is None,
            row["dp_rank"] or 0,
            row["observed_at_unix_ms"],
        ),
    )


def expected(source: Path, suffix: str) -> list[dict[str, Any]]:
    """Return the rows that an export of ``source`` must hold, in order."""
    rows = expected_rows(TraceReader(source))
    return in_order(rows) if suffix == ".parquet" else rows


@pytest.mark.parametrize("name", SUFFIXES)
@pytest.mark.parametrize("segment", SEGMENTS)
def test_every_golden_trace_comes_back(tmp_path: Path, segment: str, name: str) -> None:
    """TRACE-82: each golden trace in each format has the rows that the reader gives, value by value."""
    target = tmp_path / name
    done = export_file(ColumnReader(GOLDEN / segment).batches(), target, SUFFIXES[name])
    rows = read_back(target)

    assert rows == expected(GOLDEN / segment, target.suffix)
    assert (done.rows, done.size) == (len(rows), target.stat().st_size)


@pytest.mark.parametrize("name", SUFFIXES)
def test_odd_rows_come_back(tmp_path: Path, name: str) -> None:
    """TRACE-82: unknown fields, integers at the edges, odd text and numbers survive every format."""
    source = tmp_path / "t.jsonl"
    base = json.loads(trace_line(1))
    lines = [trace_line(0)]
    for number, change in enumerate(
        [
            {"later": {"a": [1, None, 'x,\n"y']}},
            {"counter_id": 2**64 - 1},
            {"counter_id": 2**63 - 1, "wall_time": 5e-324},
            {"worker_id": 'a,"b"\n\u65e5\U0001f600', "wall_time": 1.7976931348623157e308},
            {"worker_id": "", "wall_time": -1.5},
            {"dp_rank": 2**70},
        ]
    ):
        row = json.loads(json.dumps(base))
        row["event"]["fpm"].update(change)
        row["timestamp"] = number
        lines.append(msgspec.json.encode(row))
    source.write_bytes(b"\n".join(lines) + b"\n")
    target = tmp_path / name
    export_file(ColumnReader(source).batches(), target, SUFFIXES[name])

    assert read_back(target) == expected(source, target.suffix)


@pytest.mark.parametrize("name", SUFFIXES)
def test_an_empty_trace_is_an_empty_table(tmp_path: Path, name: str) -> None:
    """A trace without a row gives a file with the columns and no row."""
    source = tmp_path / "t.jsonl.gz"
    source.write_bytes(b"")
    target = tmp_path / name
    done = export_file(ColumnReader(source).batches(), target, SUFFIXES[name])

    assert done.rows == 0
    assert read_back(target) == []
    if target.suffix == ".parquet":
        assert pq.read_schema(target).names == [column.name for column in COLUMNS]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(metrics, max_size=8), st.sampled_from([*SUFFIXES]))
def test_any_messages_come_back(tmp_path: Path, passes: list[Any], name: str) -> None:
    """Whatever the messages hold, exporting and reading back is identity."""
    source, target = tmp_path / "t.jsonl", tmp_path / name
    lines = []
    for number, message in enumerate(passes):
        row = json.loads(trace_line(number))
        row["event"]["fpm"] = msgspec.to_builtins(message)
        lines.append(msgspec.json.encode(row) + b"\n")
    source.write_bytes(b"".join(lines))
    export_file(ColumnReader(source).batches(), target, SUFFIXES[name], force=True)

    if target.suffix == ".csv" and any("\r" in each.worker_id for each in passes):
        return  # the csv module of Python reads a lone carriage return as the end of a line
    assert read_back(target) == expected(source, target.suffix)


def test_parquet_says_its_units_and_its_order(tmp_path: Path) -> None:
    """TRACE-82: the units and the order stand in the file; the row group's order is declared too."""
    target = tmp_path / "a.parquet"
    export_file(ColumnReader(GOLDEN / "vllm-cpu-full-dp2").batches(), target, ExportFormat.PARQUET)
    file = pq.ParquetFile(target)
    group = file.metadata.row_group(0)

    assert file.schema_arrow.field("wall_time").metadata[b"unit"] == b"s"
    assert file.schema_arrow.metadata[b"forwardpass.format"] == b"forwardpass.trace.columns"
    assert file.schema_arrow.metadata[b"forwardpass.order"] == (
        b"each row group by worker_id, dp_rank, observed_at_unix_ms"
    )
    assert [group.column(each.column_index).path_in_schema for each in group.sorting_columns] == [
        "worker_id", "dp_rank", "observed_at_unix_ms",
    ]  # fmt: skip
    assert pq.read_table(target, columns=["dp_rank"])["dp_rank"].to_pylist() == sorted(
        record.metrics.dp_rank for record in TraceReader(GOLDEN / "vllm-cpu-full-dp2")
    )


def test_parquet_is_smaller_than_the_trace(tmp_path: Path) -> None:
    """A Parquet copy of rows with every field in use takes at most 0.62 of their gzip's bytes."""
    source, target = tmp_path / "t.jsonl.gz", tmp_path / "a.parquet"
    lines = [
        trace_line(
            number,
            decode_pass(64 + number % 7, 60_000 + number * 64 % 9_001),
            wall_time=0.008 + (number * 2_654_435_761 % 2**32) / 2**39,
        )
        for number in range(20_000)
    ]
    source.write_bytes(gzip_member(lines))
    done = export_file(ColumnReader(source).batches(), target, ExportFormat.PARQUET)

    assert done.size <= 0.62 * source.stat().st_size


# --- the name is taken only by a whole export ------------------------------------------------------


def test_what_is_there_is_not_overwritten(tmp_path: Path) -> None:
    """TRACE-83: a name in use is refused before anything is read, and stays; ``force`` replaces a file."""
    target = tmp_path / "a.parquet"
    target.write_text("mine")

    def never() -> Any:
        raise AssertionError("it was read")
        yield

    with pytest.raises(TracePathError):
        export_file(never(), target, ExportFormat.PARQUET)
    assert target.read_text() == "mine"

    source = GOLDEN / "vllm-cpu-full"
    export_file(ColumnReader(source).batches(), target, ExportFormat.PARQUET, force=True)
    assert pq.read_metadata(target).num_rows == len(list(TraceReader(source)))
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_a_folder_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    """TRACE-83: also with ``force``."""
    (tmp_path / "a.csv").mkdir()

    with pytest.raises(TracePathError):
        export_file(iter(()), tmp_path / "a.csv", ExportFormat.CSV, force=True)


@pytest.mark.parametrize("name", SUFFIXES)
def test_a_failure_leaves_nothing(tmp_path: Path, name: str) -> None:
    """TRACE-83: an export that fails half-way has no name, and nothing else is left in the folder."""

    def failing() -> Any:
        yield from ColumnReader(GOLDEN / "vllm-cpu-full").batches()
        raise TracePathError("x", "went away")

    with pytest.raises(TracePathError):
        export_file(failing(), tmp_path / name, SUFFIXES[name])
    with pytest.raises(TracePathError):
        export_dataset(failing(), tmp_path / "lake")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", TARGETS)
def test_a_full_disk_leaves_nothing(tmp_path: Path, arguments: list[str]) -> None:
    """TRACE-83: where the disk refuses more bytes the command says so in a line, and leaves no half file."""
    source = tmp_path / "t.jsonl.gz"
    source.write_bytes(gzip_member(trace_line(number, wall_time=1 / (1 + number)) for number in range(9_000)))
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "trace", "export", str(source), "--to", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=out,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"forwardpass: {arguments[0]}: cannot be written: File too large\n"
    assert list(out.iterdir()) == []


# --- datasets --------------------------------------------------------------------------------------

PLACES = ["dynamo", "a/b", "a=b", "50%", "..", "\u65e5", "x y", "", "'", '"', "Z\n", "1"]


def dataset_source(folder: Path) -> Path:
    """Write a trace of many namespaces, two components and three days."""
    lines = []
    for number, place in enumerate(PLACES * 3):
        row = json.loads(trace_line(number, observed_at_unix_ms=86_400_000 * (20_000 + number % 3) + number))
        row["event"]["source"].update(namespace=place, component=("backend", "pre/fill")[number % 2])
        lines.append(msgspec.json.encode(row) + b"\n")
    path = folder / "t.jsonl"
    path.write_bytes(b"".join(lines))
    return path


def test_a_dataset_reads_back_with_arrow(tmp_path: Path) -> None:
    """TRACE-84: pyarrow finds every row with its namespace, component and date; empty text is null there."""
    source = dataset_source(tmp_path)
    done = export_dataset(ColumnReader(source).batches(), tmp_path / "lake")
    keys = pa.schema([("namespace", pa.string()), ("component", pa.string()), ("date", pa.date32())])
    partitioning = pa.dataset.partitioning(keys, flavor="hive")
    table = pa.dataset.dataset(tmp_path / "lake", partitioning=partitioning).to_table()
    found = {row["counter_id"]: row for row in table.to_pylist()}

    assert done.rows == len(found) == 36
    for record in TraceReader(source):
        row = found[record.metrics.counter_id]
        assert row["namespace"] == (record.source.namespace or None)
        assert row["component"] == record.source.component
        assert row["date"].isoformat() == f"2024-10-0{4 + record.metrics.counter_id % 3}"
        assert row["observed_at_unix_ms"] == record.observed_at_unix_ms


def test_a_dataset_reads_back_with_duckdb(tmp_path: Path) -> None:
    """TRACE-84: DuckDB reads the same partitions and values."""
    source = dataset_source(tmp_path)
    export_dataset(ColumnReader(source).batches(), tmp_path / "lake")
    query = (
        "SELECT counter_id, namespace, component, date::VARCHAR "
        "FROM read_parquet(?, hive_partitioning = true, hive_types_autocast = false)"
    )
    rows = duckdb.connect().execute(query, [str(tmp_path / "lake" / "**" / "*.parquet")]).fetchall()

    assert sorted(rows) == sorted(
        (
            record.metrics.counter_id,
            record.source.namespace or None,
            record.source.component,
            f"2024-10-0{4 + record.metrics.counter_id % 3}",
        )
        for record in TraceReader(source)
    )


def test_a_dataset_of_many_partitions_keeps_few_files_open(tmp_path: Path) -> None:
    """TRACE-84: more partitions than files may be open at once: later rows of one go to its next part."""
    lines = [
        trace_line(number, observed_at_unix_ms=86_400_000 * (20_000 + number % 90) + number)
        for number in range(360)
    ]
    source = tmp_path / "t.jsonl.gz"
    source.write_bytes(b"".join(gzip_member(lines[at : at + 45]) for at in range(0, 360, 45)))
    batches = (batch.slice(at, 45) for batch in ColumnReader(source).batches() for at in range(0, 360, 45))
    done = export_dataset(batches, tmp_path / "lake")
    counters = pa.dataset.dataset(tmp_path / "lake").to_table()["counter_id"].to_pylist()

    assert sorted(counters) == list(range(360))
    assert done.files > 90
    assert len(list((tmp_path / "lake").rglob("date=*"))) == 90


def test_a_dataset_replaces_a_dataset_only(tmp_path: Path) -> None:
    """TRACE-83: a folder with anything else in it is not replaced, also not with ``force``."""
    source, lake = GOLDEN / "vllm-cpu-full", tmp_path / "lake"
    lake.mkdir()
    export_dataset(ColumnReader(source).batches(), lake)  # an empty folder is no obstacle
    with pytest.raises(TracePathError):
        export_dataset(ColumnReader(source).batches(), lake)
    export_dataset(ColumnReader(source).batches(), lake, force=True)
    (lake / "notes.txt").write_text("mine")

    with pytest.raises(TracePathError):
        export_dataset(ColumnReader(source).batches(), lake, force=True)
    assert (lake / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["lake"]


# --- memory ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trace of 200,000 rows of 40 workers."""
    path = tmp_path_factory.mktemp("large") / "t.jsonl.gz"
    with path.open("wb") as file:
        for start in range(0, 200_000, 2_000):
            lines = (
                trace_line(number, wall_time=1 / (number + 2), worker_id=str(number % 40), dp_rank=number % 8)
                for number in range(start, start + 2_000)
            )
            file.write(gzip_member(lines, level=1))
    return path


ASK_ALL = ["sql", "SELECT * FROM trace ORDER BY wall_time", "--csv"]


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [*(["export", "--to", *target] for target in TARGETS), ASK_ALL])
def test_memory_is_bounded(tmp_path: Path, large: Path, arguments: list[str]) -> None:
    """TRACE-82, TRACE-86: exporting 200,000 rows, or sorting them in SQL, never holds 256 MiB."""
    code = (
        "import sys\nfrom forwardpass.cli.main import main\n"
        "try:\n    main()\nfinally:\n"
        "    peak = next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1]\n"
        "    print(f'{peak} kB', file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "trace", *arguments, str(large)],
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
        cwd=tmp_path,
    )

    assert int(done.stderr.splitlines()[-1].removesuffix(" kB")) < PEAK_LIMIT_MIB * 1024
    assert done.stdout.count("\n") == 200_001 or done.stderr.startswith("200,000 rows in ")


def test_a_pipe_takes_the_rows() -> None:
    """Arrow's stream goes into any open file, and says how many rows."""
    sink = io.BytesIO()
    rows = export_pipe(ColumnReader(GOLDEN / "vllm-cpu-full").batches(), sink, ExportFormat.ARROW)

    assert pa.ipc.open_stream(sink.getvalue()).read_all().num_rows == rows
