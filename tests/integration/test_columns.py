"""Traces as columns: the same rows with the same values as the tolerant reader, whatever is in the files."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from column_rows import expected_rows, rows_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import forwardpass
from forwardpass.columnar.read import ColumnReader, read_trace_arrow
from forwardpass.columnar.schema import COLUMNS
from forwardpass.errors import MissingExtra, TracePathError
from forwardpass.testing.strategies import metrics
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.row_filter import RowFilter

pytest.importorskip("pyarrow", reason="the extra `analyze` is not installed")

GOLDEN = Path(__file__).parent.parent / "golden"
SEGMENTS = sorted(path.relative_to(GOLDEN).as_posix() for path in GOLDEN.glob("*/fpm.*.jsonl.gz"))
ROWS = [trace_line(number) for number in range(6)]


def both(path: Path, *, unverified: bool = False) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows that the columns hold and those they should hold; the reports must be equal as well."""
    columns = ColumnReader(path, unverified=unverified)
    found = rows_of(columns.batches())
    reader = TraceReader(path, unverified=unverified)
    expected = expected_rows(reader)

    assert columns.report == reader.report
    return found, expected


def changed(line: bytes, *place: str, **values: Any) -> bytes:
    """Return a row with values set in the object at ``place``."""
    row = json.loads(line)
    target = row
    for name in place:
        target = target[name]
    target.update(values)
    return msgspec.json.encode(row)


def payload_line(payload: Any, **details: Any) -> bytes:
    """Return a row that carries ``payload``."""
    return changed(trace_line(**details), "event", fpm=payload)


@pytest.mark.parametrize("segment", SEGMENTS)
def test_every_golden_trace_has_the_readers_values(segment: str) -> None:
    """TRACE-80: each row of each trace that the reference wrote, value by value, in its order."""
    found, expected = both(GOLDEN / segment)

    assert found == expected
    assert found


def test_the_schema_says_what_the_columns_mean() -> None:
    """TRACE-80: names and types are fixed, each field has a unit and a description, the schema its format."""
    schema = read_trace_arrow(GOLDEN / "vllm-cpu-full").schema

    assert schema.names == [column.name for column in COLUMNS]
    assert str(schema.field("worker_id").type).startswith("dictionary<values=string, indices=int32")
    assert {str(schema.field(name).type) for name in ("timestamp", "counter_id", "dp_rank")} == {"int64"}
    assert str(schema.field("queued_var_decode_kv_tokens").type) == "double"
    assert schema.field("wall_time").metadata[b"unit"] == b"s"
    assert all(field.metadata[b"description"] for field in schema)
    assert schema.metadata == {
        b"forwardpass.format": b"forwardpass.trace.columns",
        b"forwardpass.format_version": b"1",
        b"forwardpass.source_schema": b"dynamo.fpm.trace.v1",
        b"forwardpass.message_version": b"1",
    }


def test_the_public_name_gives_a_stream(tmp_path: Path) -> None:
    """``forwardpass.read_trace_arrow`` is a stream of batches that knows its schema before it is read."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member(ROWS))

    stream = forwardpass.read_trace_arrow(path)

    assert stream.schema.names[0] == "timestamp"
    assert stream.read_all()["counter_id"].to_pylist() == list(range(6))


def test_an_empty_trace_has_the_columns_and_no_row(tmp_path: Path) -> None:
    """A file without a row, and one of zero bytes, give an empty table of the usual schema."""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip_member([]))
    (tmp_path / "b.jsonl.gz").write_bytes(b"")
    table = read_trace_arrow(tmp_path).read_all()

    assert table.num_rows == 0
    assert table.schema.names == [column.name for column in COLUMNS]


def test_a_path_that_is_nothing_is_refused_at_once(tmp_path: Path) -> None:
    """A wrong path raises where it is named, not when the first batch is asked for."""
    with pytest.raises(TracePathError):
        read_trace_arrow(tmp_path / "missing")


@pytest.mark.parametrize(
    "text",
    [
        b"%s\n%s\n" % (ROWS[0], ROWS[1]),
        b"%s\n%s" % (ROWS[0], ROWS[1]),
        b"%s%s\n%s\n" % tuple(ROWS[:3]),
        b"%s\n%s%s\n" % tuple(ROWS[:3]),
        b"\n%s\n\n  \n%s\n\n" % (ROWS[0], ROWS[1]),
        b"%s\r\n%s \n" % (ROWS[0], ROWS[1]),
        b"%s\n%s%s\n%s\n" % (ROWS[0], ROWS[1], ROWS[2].replace(b":{", b":\n{", 1), ROWS[3]),
        b"%s\n%s\n%s\n" % (ROWS[0], ROWS[1].replace(b",", b"\n,", 1) + ROWS[2], ROWS[3]),
        b"%s\n%s\n" % (ROWS[0].replace(b"dynamo", b"}\n{", 1), ROWS[1]),
        b"%s\n[%s]\n%s\n" % (ROWS[0], ROWS[1], ROWS[2]),
        b"%s\n%s\n" % (ROWS[0], ROWS[1].replace(b"4192", b"4192\xff")),
    ],
)
@pytest.mark.parametrize("cut", [None, 300])
def test_a_row_is_a_line(tmp_path: Path, text: bytes, cut: int | None) -> None:
    """TRACE-80: two rows on a line, a row on two lines and blank lines are what they are for rows.

    The text may be cut into members anywhere.
    """
    path = tmp_path / "a.jsonl.gz"
    parts = [text] if cut is None else [text[:cut], text[cut:]]
    path.write_bytes(b"".join(zlib.compress(part, 6, 31) for part in parts))
    found, expected = both(path)

    assert found == expected


def test_long_lines_among_the_rows_are_told(tmp_path: Path) -> None:
    """TRACE-80: a line longer than a batch is read, one longer than a row may be is told, as for rows."""
    long = changed(ROWS[1], "event", fpm={**json.loads(ROWS[1])["event"]["fpm"], "later": "x" * (3 << 20)})
    lines = [ROWS[0], long, ROWS[2], b"x" * (17 << 20), ROWS[3]]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member(lines, level=1))
    found, expected = both(path)

    assert found == expected
    assert [row["counter_id"] for row in found] == [0, 1, 2, 3]


def test_unknown_fields_are_kept_in_extra(tmp_path: Path) -> None:
    """TRACE-81: unknown fields stand in ``extra`` at their place, each digit kept; other rows have none."""
    big = 12345678901234567890123
    lines = [
        ROWS[0],
        changed(ROWS[1], "event", "fpm", later={"a": [1, big, 0.1]}),
        changed(ROWS[2], "event", "fpm", "queued_requests", later="\u65e5\U0001f600"),
        ROWS[3].replace(b'"fpm":{', b'"fpm":{"later":1.10,"big":%d,' % big),
    ]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member(lines))
    found, expected = both(path)
    texts = [row for batch in ColumnReader(path).batches() for row in batch["extra"].to_pylist()]

    assert found == expected
    assert texts == [
        None,
        f'{{"later":{{"a":[1,{big},0.1]}}}}',
        '{"queued_requests":{"later":"\u65e5\U0001f600"}}',
        f'{{"later":1.10,"big":{big}}}',
    ]


def test_unknown_fields_of_the_envelope_are_no_payload(tmp_path: Path) -> None:
    """A field that a later writer adds around the payload does not stand in ``extra``."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member([changed(changed(ROWS[0], later=1), "event", later=2)]))
    found, expected = both(path)

    assert found == expected
    assert found[0]["extra"] is None


@pytest.mark.parametrize("value", [2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30, -1, -(2**63), -(2**63) - 1])
def test_integers_at_the_edge_lose_no_digit(tmp_path: Path, value: int) -> None:
    """TRACE-81: what 64 bit hold stands in the column, more is null there and in ``extra``."""
    path = tmp_path / "a.jsonl"
    lines = [
        changed(ROWS[0], "event", "fpm", counter_id=value),
        changed(ROWS[1], "event", "fpm", "scheduled_requests", sum_decode_kv_tokens=value),
        changed(ROWS[2], timestamp=value),
        ROWS[3],
    ]
    path.write_bytes(b"\n".join(lines) + b"\n")
    found, expected = both(path)
    fits = -(2**63) <= value < 2**63

    assert found == expected
    assert found[0]["counter_id"] == (value if fits else None)
    assert found[0]["extra"] == (None if fits else {"counter_id": value})
    assert found[1]["extra"] == (None if fits else {"scheduled_requests": {"sum_decode_kv_tokens": value}})


def test_missing_fields_take_the_defaults(tmp_path: Path) -> None:
    """A payload of an older writer has the schema's defaults in its columns, as in its record."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member([payload_line({}), payload_line({"queued_requests": {}}), ROWS[0]]))
    found, expected = both(path)

    assert found == expected
    assert (found[0]["counter_id"], found[0]["wall_time"], found[0]["worker_id"]) == (0, 0.0, "")


def test_numbers_are_the_readers_numbers(tmp_path: Path) -> None:
    """Negative, tiny, huge and whole wall times are what the reader makes of them; no column has NaN."""
    spelled = [
        b"-0.5",
        b"5e-324",
        b"1.7976931348623157e308",
        b"7",
        b"-0.0",
        b"1E2",
        b"0.1e1",
        b"1e400",
        b"NaN",
    ]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member([ROWS[0].replace(b"0.02", number) for number in spelled]))
    found, expected = both(path)

    assert found == expected
    assert [row["wall_time"] for row in found] == [
        -0.5,
        5e-324,
        1.7976931348623157e308,
        7.0,
        -0.0,
        100.0,
        1.0,
    ]
    assert str(found[4]["wall_time"]) == "-0.0"


def test_text_of_any_kind_is_kept(tmp_path: Path) -> None:
    """Worker ids and sources are any text, also none, and as many different ones as there are rows."""
    names = ["", '"', "a,b", "\\", "\n", "\x00", "\x7f", "\u65e5\u672c", "\U0001f600", *map(str, range(3000))]
    lines = [trace_line(number, worker_id=name, producer_id=name) for number, name in enumerate(names)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member(lines))
    found, expected = both(path)

    assert found == expected
    assert [row["worker_id"] for row in found] == names


TRICKY = [
    b"",
    b"  ",
    b"\r",
    b"{}",
    b"null",
    ROWS[0] + b"\r",
    b" " + ROWS[0],
    ROWS[0] + ROWS[1],
    ROWS[0] + b",",
    ROWS[0][:-1],
    ROWS[0][1:],
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":"0"'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":0.0'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":1.5'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":00'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":+1'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":0x1'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":-0'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":true'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":null'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id": 0'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":1,"counter_id":0'),
    ROWS[0].replace(b'"counter_id":0', b'"counter_id":0,"counter_id":"x"'),
    ROWS[0].replace(b'"counter_id"', b'"counter\\u005fid"'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":.5'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":5.'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":00.5'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":1e'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":inf'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":nan'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":"0.02"'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":1.2.3'),
    ROWS[0].replace(b'"wall_time":0.02', b'"wall_time":0.123456789012345678901234567890'),
    ROWS[0].replace(b'"version":1', b'"version":2'),
    ROWS[0].replace(b'"version":1', b'"version":1.0'),
    ROWS[0].replace(b'"version":1,', b""),
    ROWS[0].replace(b"trace.v1", b"trace.v2"),
    ROWS[0].replace(b'"4192"', b'"\xff"'),
    ROWS[0].replace(b'"4192"', b'"\\ud800"'),
    ROWS[0].replace(b'"4192"', b'"\\u0000"'),
    ROWS[0].replace(b'"4192"', b'"a\tb"'),
    ROWS[0].replace(b'"4192"', b'"a\rb"'),
    ROWS[0].replace(b'"4192"', b"4192"),
    ROWS[0].replace(b'"worker_id":"4192"', b'"worker_id":"","dp_rank":7'),
    ROWS[0].replace(b'"dynamo"', b'"a","component":"b"'),
    ROWS[0].replace(b'"fpm":{', b'"fpm":{"later":"\xff",'),
    ROWS[0].replace(b'"fpm":{', b'"fpm":{"later":1e999,'),
    ROWS[0].replace(b'"fpm":{', b'"fpm":{"scheduled_requests":{"x":1},'),
    ROWS[0].replace(b'"fpm":{', b'"fpm":{"later":' + b"[" * 2000 + b"]" * 2000 + b","),
    ROWS[0].replace(b"1796042065000", b"253402300799999"),
    ROWS[0].replace(b"1796042065000", b"253402300800000"),
    ROWS[0].replace(b"1796042065000", b"-1"),
    ROWS[0].replace(b"1796042065000", b"01"),
]


@pytest.mark.parametrize("line", TRICKY, ids=range(len(TRICKY)))
def test_a_line_counts_as_the_reader_counts_it(tmp_path: Path, line: bytes) -> None:
    """TRACE-80: a line that is almost a row is one or none as for the reader, and so are those around it."""
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip_member([*ROWS[:3], line, *ROWS[3:]]))
    columns, reader = ColumnReader(path), TraceReader(path)
    found = [row for batch in columns.batches() for row in batch.to_pylist()]
    records = list(reader)

    assert columns.report == reader.report
    assert [row["counter_id"] for row in found] == [record.metrics.counter_id for record in records]
    assert [row["wall_time"] for row in found] == [record.metrics.wall_time for record in records]
    assert [row["worker_id"] for row in found] == [record.metrics.worker_id for record in records]
    assert [row["namespace"] for row in found] == [record.source.namespace for record in records]
    assert [row["observed_at_unix_ms"] for row in found] == [record.observed_at_unix_ms for record in records]


@pytest.mark.parametrize("unverified", [False, True])
def test_damaged_files_give_what_the_reader_gives(tmp_path: Path, unverified: bool) -> None:
    """TRACE-80: torn, corrupt and padded files, cut or flipped anywhere: the same rows, the same report."""
    members = [gzip_member([trace_line(3 * number + at) for at in range(3)]) for number in range(4)]
    whole = b"".join(members)
    path = tmp_path / "a.jsonl.gz"
    for at in range(0, len(whole), 23):
        flipped = bytearray(whole)
        flipped[at] ^= 0x55
        for content in (whole[:at], bytes(flipped), whole[:at] + bytes(30) + whole[at:]):
            path.write_bytes(content)
            found, expected = both(path, unverified=unverified)

            assert found == expected


def test_a_line_may_span_members_and_batches(tmp_path: Path) -> None:
    """Members that cut lines, and a row longer than what is decoded at once, are whole rows."""
    long = changed(ROWS[1], "event", "fpm", later="x" * 3_000_000)
    text = b"".join(line + b"\n" for line in [ROWS[0], long, *ROWS[2:]])
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(
        b"".join(zlib.compress(text[at : at + 70_001], 6, 31) for at in range(0, len(text), 70_001))
    )
    found, expected = both(path)

    assert found == expected
    assert len(found) == 6


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(metrics, st.dictionaries(st.text(max_size=5), st.integers(-(2**70), 2**70), max_size=2))
    )
)
def test_any_messages_come_back(tmp_path: Path, passes: list[tuple[Any, dict[str, int]]]) -> None:
    """Any messages, with any unknown fields, are the reader's rows."""
    path = tmp_path / "a.jsonl"
    lines = [
        payload_line({**extra, **msgspec.to_builtins(message)}, counter_id=number)
        for number, (message, extra) in enumerate(passes)
    ]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    found, expected = both(path)

    assert found == expected
    assert len(found) == len(passes)


@pytest.mark.parametrize(
    "wanted",
    [
        RowFilter(worker="1"),
        RowFilter(worker="none"),
        RowFilter(rank=1),
        RowFilter(rank=2**70),
        RowFilter(since_unix_ms=1_796_042_065_040),
        RowFilter(until_unix_ms=1_796_042_065_040),
        RowFilter(since_unix_ms=10**19),
        RowFilter(until_unix_ms=10**19),
        RowFilter(worker="1", rank=1, since_unix_ms=1_796_042_065_040, until_unix_ms=1_796_042_065_100),
    ],
)
def test_the_filter_keeps_what_it_keeps_of_records(tmp_path: Path, wanted: RowFilter) -> None:
    """The rows that are wanted are those of which the filter keeps the records."""
    path = tmp_path / "a.jsonl"
    lines = [trace_line(number, worker_id=str(number % 2), dp_rank=number % 3) for number in range(12)]
    lines.append(changed(ROWS[0], "event", "fpm", dp_rank=2**64))
    path.write_bytes(b"\n".join(lines))
    found = rows_of(ColumnReader(path, wanted=wanted).batches())

    assert found == expected_rows(record for record in TraceReader(path) if wanted.keeps(record))


def test_without_the_library_one_line_says_what_to_install() -> None:
    """An environment without pyarrow gets the name of the extra; nothing else of the package needs it."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import forwardpass\n"
        "from forwardpass.errors import MissingExtra\n"
        "try:\n    forwardpass.read_trace_arrow('tests/golden')\n"
        "except MissingExtra as error:\n    print(error.module, error.extra, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=GOLDEN.parent.parent,
    )

    assert done.stdout == (
        "pyarrow analyze pyarrow is not installed; it comes with pip install 'forwardpass[analyze]'\n"
    )
    assert MissingExtra("pyarrow", "analyze").variable == "pyarrow"


@pytest.mark.parametrize("wanted", [RowFilter(), RowFilter(rank=1, worker="1")])
def test_some_columns_are_those_of_all(tmp_path: Path, wanted: RowFilter) -> None:
    """Any choice of columns has the values that these have among all, with odd rows and filters."""
    path = tmp_path / "a.jsonl"
    lines = [trace_line(number, worker_id=str(number % 2), dp_rank=number % 3) for number in range(12)]
    lines.append(changed(lines[1], "event", "fpm", counter_id=2**64, later=1))
    path.write_bytes(b"\n".join(lines))
    whole = rows_of(ColumnReader(path, wanted=wanted).batches())
    for names in (
        ["extra"],
        ["wall_time"],
        ["queued_num_prefill_requests", "timestamp"],
        ["namespace", "extra"],
    ):
        batches = list(ColumnReader(path, wanted=wanted, columns=names).batches())
        rows = [row for batch in batches for row in batch.to_pylist()]

        assert {batch.num_columns for batch in batches} == {len(names)}
        assert [set(row) for row in rows] == [set(names)] * len(whole)
        for row, expected in zip(rows, whole, strict=True):
            if row.get("extra"):
                row["extra"] = json.loads(row["extra"])
            assert row == {name: expected[name] for name in names}


def test_a_column_that_does_not_exist_is_named() -> None:
    """A wrong name, or none at all, is refused before anything is read."""
    with pytest.raises(ValueError, match="'walltime' is no column"):
        read_trace_arrow(GOLDEN / "vllm-cpu-full", columns=["walltime"])
    with pytest.raises(ValueError, match="no column"):
        read_trace_arrow(GOLDEN / "vllm-cpu-full", columns=[])

    assert read_trace_arrow(GOLDEN / "vllm-cpu-full", columns=["wall_time"]).schema.names == ["wall_time"]
