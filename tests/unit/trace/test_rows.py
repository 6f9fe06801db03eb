"""Payloads to rows, with values only."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forwardpass.errors import MalformedPayload, UnsupportedVersion, WireError
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import encode_rows, read_one, read_payloads
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from forwardpass.wire.validate import CanonicalMetrics, validate_payload

METRICS = ForwardPassMetrics(
    worker_id="w7",
    dp_rank=1,
    counter_id=300,
    wall_time=0.5,
    scheduled_requests=ScheduledRequestMetrics(2, 70, 25.0, 128, 3, 90000, 6.25),
    queued_requests=QueuedRequestMetrics(0, 0, 0.0, 1, 9, 0.0),
)
SOURCE = TraceSource("dynamo", "backend", "42")


def document(**changes: Any) -> dict[str, Any]:
    """Return the message as a map, with changes."""
    return {**msgspec.to_builtins(METRICS), **changes}


def packed(**changes: Any) -> bytes:
    """Return the message's bytes with changes."""
    return msgspec.msgpack.encode(document(**changes))


def rows(*payloads: bytes) -> bytes:
    """Return the rows of payloads that must all be accepted."""
    bodies = [body for body in read_payloads(list(payloads)) if not isinstance(body, WireError)]
    assert len(bodies) == len(payloads)
    return encode_rows([(SOURCE, 1_700_000_000_123, payload) for payload in payloads], bodies, "full", 17)


def test_the_text_of_a_row() -> None:
    """TRACE-10, TRACE-14: keys in the documented order, no spaces, a newline at the end."""
    expected = (
        '{"timestamp":17,"event":{"schema":"dynamo.fpm.trace.v1",'
        '"source":{"namespace":"dynamo","component":"backend","producer_id":"42"},'
        '"capture_mode":"full","observed_at_unix_ms":1700000000123,'
        '"fpm":{"version":1,"worker_id":"w7","dp_rank":1,"counter_id":300,"wall_time":0.5,'
        '"scheduled_requests":{"num_prefill_requests":2,"sum_prefill_tokens":70,"var_prefill_length":25.0,'
        '"sum_prefill_kv_tokens":128,"num_decode_requests":3,"sum_decode_kv_tokens":90000,'
        '"var_decode_kv_tokens":6.25},'
        '"queued_requests":{"num_prefill_requests":0,"sum_prefill_tokens":0,"var_prefill_length":0.0,'
        '"num_decode_requests":1,"sum_decode_kv_tokens":9,"var_decode_kv_tokens":0.0}}}}\n'
    )

    assert rows(encode(METRICS)).decode() == expected


def test_text_is_utf8_and_stays_on_its_line() -> None:
    """TRACE-10: text is written unescaped, except for what would break the line."""
    row = rows(packed(worker_id='ü語\n"\r\x1f\x7f'))

    assert '"worker_id":"ü語\\n\\"\\r\\u001f\x7f"'.encode() in row
    assert row.count(b"\n") == 1
    assert b"\r" not in row


def test_integers_stay_integers() -> None:
    """TRACE-20: an integer where a float is usual is written as an integer."""
    row = rows(packed(wall_time=3))

    assert b'"wall_time":3,' in row


def test_unknown_fields_and_key_order_are_kept() -> None:
    """TRACE-22: whatever a newer version adds stays where it was."""
    reordered = {"extra": [1, None, {"a": True}], **dict(reversed(document().items()))}
    row = rows(msgspec.msgpack.encode(reordered))

    assert b'"fpm":{"extra":[1,null,{"a":true}],"queued_requests":{' in row
    assert row.endswith(b',"worker_id":"w7","version":1}}}\n')


def test_the_usual_payload_takes_the_fast_way() -> None:
    """A payload in the schema's own encoding becomes a typed message; any other becomes a map."""
    usual, other = read_payloads([encode(METRICS), packed(extra=1)])

    assert isinstance(usual, CanonicalMetrics)
    assert isinstance(other, dict)


def test_a_bad_payload_costs_only_itself() -> None:
    """A batch with refused payloads in it gives all the others, in order, and an error for each of those."""
    good = [encode(msgspec.structs.replace(METRICS, counter_id=number)) for number in range(200)]
    payloads = list(good)
    bad = {0: b"", 7: b"\xc1", 64: packed(version=2), 65: packed(wall_time=-1.0), 199: good[199][:-1]}
    for position, payload in bad.items():
        payloads[position] = payload

    results = read_payloads(payloads)

    assert {position for position, result in enumerate(results) if isinstance(result, WireError)} == set(bad)
    assert [result.counter_id for result in results if isinstance(result, CanonicalMetrics)] == [
        number for number in range(200) if number not in bad
    ]


def test_bytes_may_not_move_between_payloads() -> None:
    """Two payloads that only together are two messages are refused, both of them."""
    whole = encode(METRICS)
    for cut in (1, 40, len(whole) - 1):
        results = read_payloads([whole[:cut], whole[cut:] + whole])

        assert [type(result) for result in results] == [MalformedPayload, MalformedPayload]


def test_bytes_after_a_map_cost_nothing_else() -> None:
    """TRACE-21: A payload with bytes after its map is read as the map alone, and so are those beside it;
    bytes that would be a message of their own do not become one.
    """
    whole = encode(METRICS)
    results = read_payloads([whole, whole + b"\x00", whole + whole, whole])

    assert [msgspec.to_builtins(result) for result in results] == [msgspec.to_builtins(METRICS)] * 4
    assert read_one(whole + b"\x00").body == msgspec.to_builtins(METRICS)


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 2},
        {"worker_id": 7},
        {"dp_rank": -1},
        {"counter_id": 2**63},
        {"wall_time": float("nan")},
        {"wall_time": float("inf")},
        {"scheduled_requests": None},
        {"queued_requests": {}},
        {"binary": b"\x00"},
    ],
)
def test_refusals_are_those_of_the_validator(changes: dict[str, Any]) -> None:
    """D-7: what the sink refuses, and why, is what ``validate_payload`` says."""
    payload = packed(**changes)
    with pytest.raises(WireError) as expected:
        validate_payload(payload)
    with pytest.raises(WireError) as alone:
        read_one(payload)

    (result,) = read_payloads([payload])
    assert type(result) is type(expected.value) is type(alone.value)
    assert str(result) == str(expected.value) == str(alone.value)


def test_another_version_is_called_so() -> None:
    """TRACE-21: a message of version 2 is refused as such."""
    (result,) = read_payloads([packed(version=2)])

    assert isinstance(result, UnsupportedVersion)
    assert result.version == 2


@pytest.mark.parametrize("payload", [encode(METRICS), packed(extra=1)])
def test_one_payload_tells_whose_it_is(payload: bytes) -> None:
    """Reading one payload gives its stream, its counter and the same body as reading many."""
    reading = read_one(payload)

    assert (reading.key, reading.counter_id) == (StreamKey("w7", 1), 300)
    assert [reading.body] == read_payloads([payload])


def test_no_payloads_are_no_rows() -> None:
    """Nothing in, nothing out."""
    assert read_payloads([]) == []
    assert encode_rows([], [], "full", 0) == b""
