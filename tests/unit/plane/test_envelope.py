"""The event-plane envelope."""

from __future__ import annotations

import hashlib
from typing import Any

import msgpack
import msgspec
import pytest

from forwardpass.errors import MalformedPayload
from forwardpass.plane.base import TOPIC
from forwardpass.plane.envelope import Envelope, decode_envelope, encode_envelope
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

PAYLOAD = encode(
    ForwardPassMetrics(
        worker_id="w7",
        dp_rank=1,
        counter_id=300,
        wall_time=0.5,
        scheduled_requests=ScheduledRequestMetrics(2, 70, 25.0, 128, 3, 90000, 6.25),
        queued_requests=QueuedRequestMetrics(0, 0, 0.0, 1, 9, 0.0),
    )
)
VECTOR = encode_envelope(1000, 7, 1_700_000_000_000, PAYLOAD)
FIELDS: dict[str, Any] = {
    "publisher_id": 1000,
    "sequence": 7,
    "published_at": 1_700_000_000_000,
    "topic": TOPIC,
    "payload": PAYLOAD,
}
EXPECTED = Envelope(1000, 7, 1_700_000_000_000, TOPIC, PAYLOAD)


def test_vector() -> None:
    """RELAY-10: The specification's vector: 503 bytes with this digest."""
    digest = hashlib.sha256(VECTOR).hexdigest()

    assert (len(VECTOR), digest) == (503, "c67e5e89b3dff655e9e287dc0d1a00d5018cc06c7253239091408ca9d4861aa8")


def test_another_library_reads_it() -> None:
    """msgpack-python reads the five keys in the specified order, the payload as binary."""
    assert list(msgpack.unpackb(VECTOR).items()) == list(FIELDS.items())


def test_round_trip() -> None:
    """Decoding gives back what was encoded."""
    assert decode_envelope(VECTOR) == EXPECTED


def test_any_key_order_and_unknown_keys() -> None:
    """RELAY-10: Readers take any key order and ignore keys they do not know."""
    shuffled = {"later": [1, {"x": b"y"}], **dict(reversed(FIELDS.items())), "extra": None}

    assert decode_envelope(msgpack.packb(shuffled)) == EXPECTED


def test_array_form() -> None:
    """RELAY-10: Readers take the five values as an array, short or long header."""
    short = msgpack.packb(list(FIELDS.values()))
    long = b"\xdc\x00\x05" + short[1:]
    longest = b"\xdd\x00\x00\x00\x05" + short[1:]

    assert [decode_envelope(data) for data in (short, long, longest)] == [EXPECTED] * 3


def test_trailing_bytes_are_ignored() -> None:
    """RELAY-10: Bytes after the envelope are ignored, in both forms."""
    array = msgpack.packb(list(FIELDS.values()))

    assert decode_envelope(VECTOR + b"\x00\xc1 anything") == EXPECTED
    assert decode_envelope(array + b"\xff" * 9) == EXPECTED


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65535, 65536])
@pytest.mark.parametrize("kind", ["bin", "str"])
def test_payload_typed_as_string(size: int, kind: str) -> None:
    """A payload may be binary or a string of any header size; a string need not be UTF-8."""
    payload = b"\x87\xff" * size
    payload = payload[:size]
    header = bytes.fromhex("85")
    packer = msgpack.Packer()
    body = header + b"".join(packer.pack(key) + packer.pack(FIELDS[key]) for key in list(FIELDS)[:4])
    body += packer.pack("payload")
    if kind == "bin":
        body += packer.pack(payload)
    else:
        body += msgpack.Packer(use_bin_type=False).pack(payload)

    assert decode_envelope(body).payload == payload


def test_large_ids_are_read() -> None:
    """Readers take any unsigned 64-bit id, also above the 53 bits that we draw."""
    data = msgpack.packb({**FIELDS, "publisher_id": 2**64 - 1})

    assert decode_envelope(data).publisher_id == 2**64 - 1


@pytest.mark.parametrize("key", list(FIELDS))
def test_missing_key_is_refused(key: str) -> None:
    """An envelope without one of the five keys is refused."""
    with pytest.raises(MalformedPayload):
        decode_envelope(msgpack.packb({name: value for name, value in FIELDS.items() if name != key}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[
            (key, bad)
            for key in ("publisher_id", "sequence", "published_at")
            for bad in (-1, 1.0, "1", None, True)
        ],
        ("topic", 5),
        ("topic", b"forward-pass-metrics"),
        ("topic", None),
        ("payload", None),
        ("payload", 5),
        ("payload", [1]),
        ("payload", {"a": 1}),
        ("payload", 1.5),
    ],
)
def test_wrong_types_are_refused(key: str, value: object) -> None:
    """Negative and non-integer numbers, and values of another type, are refused."""
    with pytest.raises(MalformedPayload):
        decode_envelope(msgpack.packb({**FIELDS, key: value}))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x80", b"\x90", b"\xc0", b"x", VECTOR[:-1], PAYLOAD])
def test_other_bytes_are_refused(data: bytes) -> None:
    """Bytes that are no envelope are refused with the declared error."""
    with pytest.raises(MalformedPayload):
        decode_envelope(data)


def test_array_with_too_few_values_is_refused() -> None:
    """Four values are no envelope."""
    with pytest.raises(MalformedPayload):
        decode_envelope(msgspec.msgpack.encode(list(FIELDS.values())[:4]))


def test_another_topic_is_returned() -> None:
    """The caller decides by the topic; the codec only reports it."""
    assert decode_envelope(msgpack.packb({**FIELDS, "topic": "forward-pass-metrics2"})).topic.endswith("2")
