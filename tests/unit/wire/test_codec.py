"""Messages to bytes and back, and what each reader makes of bytes that are not quite a message."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from forwardpass.errors import MalformedPayload, UnsupportedVersion, WireError
from forwardpass.quiet import QuietLog
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import decode, decode_full, decode_strict, encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

pack = msgspec.msgpack.encode
VECTOR = ForwardPassMetrics(
    1,
    "w7",
    1,
    300,
    0.5,
    ScheduledRequestMetrics(2, 70, 25.0, 128, 3, 90000, 6.25),
    QueuedRequestMetrics(0, 0, 0.0, 1, 9, 0.0),
)


def altered(**changes: Any) -> bytes:
    """Return the vector's bytes with top-level fields replaced or added."""
    return pack({**msgspec.to_builtins(VECTOR), **changes})


def without(name: str) -> bytes:
    """Return the vector's bytes without one top-level field."""
    document = msgspec.to_builtins(VECTOR)
    del document[name]
    return pack(document)


def test_published_vector() -> None:
    """WIRE-01, WIRE-04: the documented message encodes to the documented 416 bytes."""
    data = encode(VECTOR)

    assert len(data) == 416
    assert hashlib.sha256(data).hexdigest() == (
        "a060c60c61ee2e73dd04bbb2bd38c8fad263ba97bc4c8b44fc96884d14f4b5fb"
    )
    assert data.hex().startswith(
        "87"
        + "a776657273696f6e01"
        + "a9776f726b65725f6964a27737"
        + "a764705f72616e6b01"
        + "aa636f756e7465725f6964cd012c"
        + "a977616c6c5f74696d65cb3fe0000000000000"
    )


def test_heartbeat_size() -> None:
    """WIRE-02: an all-zero message still holds every field, 407 bytes in all."""
    assert len(encode(ForwardPassMetrics())) == 407


def test_stamp_changes_the_counter_only() -> None:
    """WIRE-08: stamping copies the message and sets nothing but ``counter_id``."""
    stamped = stamp(VECTOR, 301)

    assert stamped == msgspec.structs.replace(VECTOR, counter_id=301)
    assert VECTOR.counter_id == 300


def test_stamp_sets_an_identity_that_came_late() -> None:
    """WIRE-46, D-15: an id that was not known when the message was built is set with the counter."""
    stamped = stamp(VECTOR, 301, worker_id="late", dp_rank=0)

    assert stamped == msgspec.structs.replace(VECTOR, counter_id=301, worker_id="late", dp_rank=0)


ACCEPTED: list[tuple[str, bytes, ForwardPassMetrics]] = [
    ("unknown field", altered(extra=[1, {"a": None}]), VECTOR),
    ("missing version", without("version"), VECTOR),
    ("missing counter", without("counter_id"), msgspec.structs.replace(VECTOR, counter_id=0)),
    ("missing nested map", without("queued_requests"), stamp(
        msgspec.structs.replace(VECTOR, queued_requests=QueuedRequestMetrics()), 300)),
    ("nothing at all", b"\x80", ForwardPassMetrics()),
    ("integer for a float", altered(wall_time=2), msgspec.structs.replace(VECTOR, wall_time=2.0)),
    ("negative integer", altered(dp_rank=-1), msgspec.structs.replace(VECTOR, dp_rank=-1)),
    ("binary in an unknown field", altered(extra=b"\x00\xff"), VECTOR),
    ("extension in an unknown field", altered(extra=msgspec.msgpack.Ext(7, b"x")), VECTOR),
    ("text that is no text, unread", b"\x81\xa5extra\xa1\xff", ForwardPassMetrics()),
    ("duplicate key", b"\x82\xa9worker_id\xa1a\xa9worker_id\xa1b", ForwardPassMetrics(worker_id="b")),
]  # fmt: skip

REFUSED: list[tuple[str, bytes, str]] = [
    ("float for an integer", altered(counter_id=1.0), "$.counter_id"),
    ("boolean for an integer", altered(dp_rank=True), "$.dp_rank"),
    ("text for an integer", altered(dp_rank="1"), "$.dp_rank"),
    ("text for a float", altered(wall_time="1"), "$.wall_time"),
    ("boolean version", altered(version=True), "$.version"),
    ("null nested map", altered(scheduled_requests=None), "$.scheduled_requests"),
    ("nested array", altered(queued_requests=[0] * 6), "$.queued_requests"),
    ("wrong nested field", altered(queued_requests={"num_decode_requests": "x"}),
     "$.queued_requests.num_decode_requests"),
    ("array form", pack(list(msgspec.to_builtins(VECTOR).values())), "$"),
    ("trailing bytes", encode(VECTOR) + b"\x00", "$"),
    ("two messages", encode(VECTOR) * 2, "$"),
    ("cut short", encode(VECTOR)[:-1], "$"),
    ("binary for text", altered(worker_id=b"w7"), "$.worker_id"),
    ("integer key", b"\x81\x01\x01", "key of $"),
    ("nothing", b"", "$"),
    ("null", b"\xc0", "$"),
    ("reserved byte", b"\xc1", "$"),
    ("JSON", b'{"version":1}', "$"),
    ("nested too deeply", b"\x81\xa5extra" + b"\x91" * 100_000 + b"\x00", "$"),
]  # fmt: skip

UNSUPPORTED: list[tuple[str, bytes, int]] = [
    ("version 2", altered(version=2), 2),
    ("version 2 with a body that would not decode", altered(version=2, scheduled_requests=[1]), 2),
    ("version 2 with binary values", altered(version=2, worker_id=b"\x01"), 2),
    ("version 0", altered(version=0), 0),
    ("negative version", altered(version=-1), -1),
    ("largest version", altered(version=2**64 - 1), 2**64 - 1),
]


def named(cases: list[Any]) -> list[Any]:
    """Return the cases with their first element as the test's id."""
    return [pytest.param(*case[1:], id=case[0]) for case in cases]


@pytest.mark.parametrize(("data", "expected"), named(ACCEPTED))
def test_what_a_reader_tolerates(data: bytes, expected: ForwardPassMetrics) -> None:
    """WIRE-16, WIRE-17, WIRE-19, WIRE-21: these are messages to the lenient and the strict decoder."""
    assert decode(data) == expected
    assert decode_strict(data) == expected
    assert decode_full(data).metrics == expected


def test_nan_is_a_number_to_the_typed_decoder() -> None:
    """WIRE-19: typed decoding takes NaN; only the canonical rules refuse it."""
    metrics = decode_strict(altered(wall_time=float("nan")))

    assert metrics.wall_time != metrics.wall_time


@pytest.mark.parametrize("reader", [decode_strict, decode_full])
@pytest.mark.parametrize(("data", "path"), named(REFUSED))
def test_what_a_reader_refuses(data: bytes, path: str, reader: Callable[[bytes], object]) -> None:
    """WIRE-20: these are malformed, and the error names the field."""
    with pytest.raises(MalformedPayload) as caught:
        reader(data)

    assert caught.value.path == path


@pytest.mark.parametrize("reader", [decode_strict, decode_full])
@pytest.mark.parametrize(("data", "version"), named(UNSUPPORTED))
def test_other_versions(data: bytes, version: int, reader: Callable[[bytes], object]) -> None:
    """WIRE-05, WIRE-18, D-6: another version is named as such, whatever its body looks like."""
    with pytest.raises(UnsupportedVersion) as caught:
        reader(data)

    assert caught.value.version == version


@pytest.mark.parametrize("data", [case[1] for case in (*REFUSED, *UNSUPPORTED)])
def test_decode_never_raises(data: bytes) -> None:
    """WIRE-22, D-6: the lenient decoder answers None for everything that is refused."""
    assert decode(data, faults=QuietLog(logging.getLogger("test.codec"))) is None


def test_decode_says_each_fault_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """D-6: one line per reason and source, then one a minute with the total; every refusal is counted."""
    clock = ManualClock()
    faults = QuietLog(logging.getLogger("test.codec"), clock)
    with caplog.at_level(logging.WARNING, "test.codec"):
        for _ in range(5):
            decode(b"", source="rank 0", faults=faults)
            decode(b"", source="rank 1", faults=faults)
            decode(altered(version=2), source="rank 0", faults=faults)
            clock.advance(11.9)
    first_minute = len(caplog.records)
    with caplog.at_level(logging.WARNING, "test.codec"):
        clock.advance(1.0)
        decode(b"", source="rank 0", faults=faults)

    assert first_minute == 3
    assert len(caplog.records) == 4
    assert "rank 0" in caplog.messages[3]
    assert "6 in all" in caplog.messages[3]
    assert faults.total(("malformed", "rank 0")) == 6
    assert faults.total(("malformed", "rank 1")) == 5
    assert faults.total(("unsupported_version", "rank 0")) == 5


def test_unknown_fields_survive_a_round_trip() -> None:
    """WIRE-23, D-8: fields of a newer schema are kept byte for byte, also inside the nested maps."""
    newer = msgspec.to_builtins(VECTOR)
    newer["lane"] = {"name": "a", "raw": b"\x00\xff"}
    newer["at"] = msgspec.msgpack.Ext(-1, bytes.fromhex("0000000100000000"))  # nanoseconds that Python lacks
    newer["scheduled_requests"]["lengths"] = [7, 63]
    newer["queued_requests"]["oldest_ms"] = None
    data = pack(newer)
    metrics, unknown = decode_full(data)

    assert metrics == VECTOR
    assert set(unknown) == {"lane", "at", "scheduled_requests", "queued_requests"}
    assert msgspec.msgpack.decode(unknown["scheduled_requests"]["lengths"]) == [7, 63]

    again = decode_full(encode(metrics, unknown))

    assert again == (metrics, unknown)
    assert bytes(again.unknown["at"]) == data[data.index(b"\xa2at") + 3 :][:10]


def test_known_messages_have_no_unknown_fields() -> None:
    """WIRE-23: a message of this version encodes to its own bytes again."""
    data = encode(VECTOR)
    metrics, unknown = decode_full(data)

    assert unknown == {}
    assert encode(metrics, unknown) == data


def test_unknown_field_with_a_name_that_is_no_text() -> None:
    """WIRE-23: what could not be written again is refused by the reader that promises to keep it."""
    with pytest.raises(WireError):
        decode_full(b"\x81\xa1\xff\x01")
