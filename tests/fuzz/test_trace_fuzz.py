"""Any bytes in a file give rows or reported problems, never another exception."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.analyze.summary import summarize
from forwardpass.cli.summary_view import render_summary
from forwardpass.errors import TraceRecordError
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.ends import read_ends
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import decode_line, decode_lines

ROWS = [trace_line(number) for number in range(4)]
MEMBER = gzip_member(ROWS)

pieces = st.one_of(
    st.binary(max_size=60),
    st.just(MEMBER),
    st.builds(
        lambda lines: gzip_member(lines), st.lists(st.sampled_from(ROWS) | st.binary(max_size=30), max_size=3)
    ),
    st.builds(lambda at: MEMBER[:at], st.integers(0, len(MEMBER))),
    st.builds(lambda at: MEMBER[at:], st.integers(0, len(MEMBER))),
    st.sampled_from(
        [b"\x1f\x8b\x08", b"\x1f\x8b", b"\n", bytes(40), ROWS[0] + b"\n", b"\x1f\x8b\x08\x00" + bytes(6)]
    ),
    st.builds(lambda text: zlib.compress(text, 1, 31), st.binary(max_size=200)),
)
files = st.lists(pieces, max_size=8).map(b"".join)

FIELDS = (
    "timestamp", "schema", "observed_at_unix_ms", "capture_mode", "worker_id", "dp_rank", "counter_id",
    "wall_time", "num_prefill_requests", "sum_prefill_tokens", "sum_decode_kv_tokens", "version",
)  # fmt: skip

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that each example overwrites."""
    return tmp_path / "a.jsonl.gz"


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(content=files, limit=st.sampled_from([16, 800, 1 << 20]))
def test_any_file_is_read_to_its_end(path: Path, content: bytes, limit: int) -> None:
    """Bytes are in one range each; rows are rows that were written, or decode as such; ends are found."""
    path.write_bytes(content)
    reader = TraceReader(path, max_row_bytes=limit)
    records = list(reader)
    report = reader.report.files[0]

    assert report.rows == len(records)
    assert sum(part.end - part.start for part in report.ranges) == report.size == len(content)
    assert {record.line.strip() for record in records} <= set(
        ROWS
    )  # blanks may come from a member of their own
    assert (report.damaged_bytes > 0) <= (not report.intact)
    ends = read_ends(path)
    assert ends.first is not None or ends.last is None
    msgspec.json.encode(reader.report)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | json_values.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_a_record_or_a_declared_error(line: bytes) -> None:
    """A line that is no row is a :class:`TraceRecordError` with its place."""
    if decode_lines([line]) is None:
        with pytest.raises(TraceRecordError) as caught:
            decode_line(line, "file", 3)
        assert (caught.value.path, caught.value.line) == ("file", 3)
    else:
        assert decode_line(line).line == line


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=3))
def test_whatever_decodes_sums_up(path: Path, changes: dict[str, object]) -> None:
    """Rows with any values that a record may hold end in a summary that can be shown and written."""

    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {name: changes.get(name, changed(inner)) for name, inner in value.items()}
        return value

    path.write_bytes(gzip_member([json.dumps(changed(json.loads(row))).encode() for row in ROWS]))
    reader = TraceReader(path)
    summary = summarize(reader)

    assert summary.rows + reader.report.problem_count() == len(ROWS)
    assert render_summary(summary, reader.report)
    assert json.loads(msgspec.json.encode(summary))["rows"] == summary.rows
