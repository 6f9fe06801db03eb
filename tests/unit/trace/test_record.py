"""One line of a trace, read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forwardpass.errors import TraceRecordError
from forwardpass.testing.traces import trace_line
from forwardpass.trace.record import LineFault, TraceSource, decode_line, decode_lines, fault_of
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

EXAMPLE = {
    "timestamp": 1250,
    "event": {
        "schema": "dynamo.fpm.trace.v1",
        "source": {"namespace": "default", "component": "backend", "producer_id": "4192"},
        "capture_mode": "sampled",
        "observed_at_unix_ms": 1782777601250,
        "fpm": {
            "version": 1,
            "worker_id": "4192",
            "dp_rank": 0,
            "counter_id": 42,
            "wall_time": 0.025,
            "scheduled_requests": {
                "num_prefill_requests": 2,
                "sum_prefill_tokens": 256,
                "sum_prefill_kv_tokens": 64,
                "num_decode_requests": 3,
                "sum_decode_kv_tokens": 1024,
            },
            "queued_requests": {
                "num_prefill_requests": 1,
                "sum_prefill_tokens": 128,
                "num_decode_requests": 0,
                "sum_decode_kv_tokens": 0,
            },
        },
    },
}
"""The record that the reference documentation shows, which leaves the variances out."""


def edited(**changes: Any) -> bytes:
    """Return the example with ``event`` changed; a value of ``...`` removes the key."""
    event = {**EXAMPLE["event"], **changes}  # type: ignore[dict-item]
    return json.dumps({"timestamp": 1, "event": {k: v for k, v in event.items() if v is not ...}}).encode()


def with_fpm(**changes: Any) -> bytes:
    """Return the example with ``fpm`` changed."""
    return edited(fpm={**EXAMPLE["event"]["fpm"], **changes})  # type: ignore[index]


def test_documented_example_is_a_record() -> None:
    """TRACE-64: the example of the reference documentation is read; its missing variances are 0."""
    record = decode_line(json.dumps(EXAMPLE).encode())

    assert (record.timestamp, record.schema) == (1250, "dynamo.fpm.trace.v1")
    assert record.source == TraceSource("default", "backend", "4192")
    assert (record.capture_mode, record.observed_at_unix_ms) == ("sampled", 1782777601250)
    assert (record.metrics.worker_id, record.metrics.dp_rank, record.metrics.counter_id) == ("4192", 0, 42)
    assert record.metrics.wall_time == 0.025
    assert record.metrics.scheduled_requests == ScheduledRequestMetrics(2, 256, 0.0, 64, 3, 1024, 0.0)
    assert record.metrics.queued_requests == QueuedRequestMetrics(1, 128, 0.0, 0, 0, 0.0)
    assert record.fpm == EXAMPLE["event"]["fpm"]  # type: ignore[index]


def test_line_is_kept_as_it_was_written() -> None:
    """The text of a row is kept byte for byte, blanks and odd number forms included."""
    line = b' {"timestamp": 1, "event":' + json.dumps(EXAMPLE["event"]).encode() + b"} "

    assert decode_line(line).line == line


def test_unknown_fields_are_kept_in_place() -> None:
    """TRACE-64: fields that this version does not know stay in ``fpm``, with their order and values."""
    line = with_fpm(extend=[[1, 2]], scheduled_requests={"per_request": {"a": 1.5}, "num_decode_requests": 1})
    record = decode_line(line)

    assert list(record.fpm)[-1] == "extend"
    assert record.fpm["scheduled_requests"] == {"per_request": {"a": 1.5}, "num_decode_requests": 1}
    assert record.metrics.scheduled_requests.num_decode_requests == 1


def test_unknown_fields_of_the_envelope_are_ignored() -> None:
    """A writer that adds a field beside ``fpm`` can still be read."""
    assert decode_line(edited(host="a")).metrics.counter_id == 42


def test_integers_stay_integers() -> None:
    """TRACE-20: a ``wall_time`` written as 1 reads as 1 in ``fpm``, and as the float 1.0 in ``metrics``."""
    record = decode_line(with_fpm(wall_time=1))

    assert type(record.fpm["wall_time"]) is int
    assert type(record.metrics.wall_time) is float


@pytest.mark.parametrize(("text", "value"), [("1e-7", 1e-7), ("1e-07", 1e-7), ("0.0000001", 1e-7)])
def test_spelling_of_a_float_does_not_matter(text: str, value: float) -> None:
    """TRACE-20: any spelling of a number is the number."""
    line = with_fpm(wall_time=0).replace(b'"wall_time": 0', f'"wall_time": {text}'.encode())

    assert decode_line(line).metrics.wall_time == value


FAULTS = {
    "no JSON": (b'{"timestamp":1', LineFault.BAD_JSON),
    "two rows on a line": (edited() + edited(), LineFault.BAD_JSON),
    "not UTF-8": (edited().replace(b"4192", b"\xff\xfe12"), LineFault.BAD_JSON),
    "nested beyond reason": (b"[" * 100_000, LineFault.BAD_JSON),
    "not a number of JSON": (edited().replace(b"0.025", b"NaN"), LineFault.BAD_JSON),
    "another schema": (edited(schema="dynamo.kv.trace.v1"), LineFault.WRONG_SCHEMA),
    "an array": (b"[1]", LineFault.NOT_A_RECORD),
    "no event": (b'{"timestamp":1}', LineFault.NOT_A_RECORD),
    "no timestamp": (edited().replace(b"timestamp", b"time"), LineFault.NOT_A_RECORD),
    "no fpm": (edited(fpm=...), LineFault.NOT_A_RECORD),
    "fpm null": (edited(fpm=None), LineFault.NOT_A_RECORD),
    "no schema": (edited(schema=...), LineFault.NOT_A_RECORD),
    "no source": (edited(source=...), LineFault.NOT_A_RECORD),
    "a float for a count": (with_fpm(counter_id=1.0), LineFault.NOT_A_RECORD),
    "a bool for a count": (with_fpm(counter_id=True), LineFault.NOT_A_RECORD),
    "text for a time": (edited(observed_at_unix_ms="1"), LineFault.NOT_A_RECORD),
    "a time before 1970": (edited(observed_at_unix_ms=-1), LineFault.NOT_A_RECORD),
    "a time after the calendar": (edited(observed_at_unix_ms=10**15), LineFault.NOT_A_RECORD),
    "version 2": (with_fpm(version=2), LineFault.UNSUPPORTED_VERSION),
    "version 2 with another body": (with_fpm(version=2, wall_time=[]), LineFault.UNSUPPORTED_VERSION),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_no_record_says_why(name: str) -> None:
    """TRACE-64: a line that is no record is refused with its place and the kind of fault."""
    line, fault = FAULTS[name]

    assert fault_of(line).fault is fault
    with pytest.raises(TraceRecordError) as caught:
        decode_line(line, "some/file", 7)
    assert (caught.value.path, caught.value.line) == ("some/file", 7)


def test_one_bad_line_refuses_the_quick_way() -> None:
    """Decoding many lines at once is all or nothing, so that no line can be lost unnoticed."""
    assert decode_lines([trace_line(1), b"{}", trace_line(2)]) is None
    assert [r.metrics.counter_id for r in decode_lines([trace_line(1), trace_line(2)]) or ()] == [1, 2]


def test_numbers_beyond_reason_are_a_declared_error() -> None:
    """An unknown field with a number that Python cannot hold fails on use, not on reading."""
    record = decode_line(with_fpm(x=1).replace(b'"x": 1', b'"x": 1' + b"0" * 5000))

    with pytest.raises(TraceRecordError):
        _ = record.fpm
    assert record.metrics.counter_id == 42
