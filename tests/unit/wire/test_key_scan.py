"""Whose message a payload is."""

from __future__ import annotations

import msgpack
import pytest

from forwardpass.errors import MalformedPayload
from forwardpass.wire.codec import encode
from forwardpass.wire.key_scan import MAX_VALUES, scan_key
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.schema import ForwardPassMetrics

BOTH = msgpack.packb({"worker_id": "7", "dp_rank": 3})


def nested(depth: int) -> bytes:
    """Return so many arrays, each in the one before."""
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "rank", [0, 127, 128, 255, 256, 65_536, 2**32, 2**63 - 1, -1, -32, -33, -129, -(2**63)]
)
@pytest.mark.parametrize("worker", ["", "7", "w" * 31, "w" * 32, "w" * 256, "w" * 70_000, "\u65e5\u672c"])
def test_every_form_of_a_key(worker: str, rank: int) -> None:
    """SUB-08: Worker and rank are found in whatever form MessagePack has for them."""
    payload = encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank))

    assert scan_key(payload) == StreamKey(worker, rank)


@pytest.mark.parametrize(
    "payload",
    [
        BOTH,
        BOTH + b"trailing",
        msgpack.packb({"dp_rank": 3, "worker_id": "7"}),
        msgpack.packb({"version": 2, "worker_id": "7", "dp_rank": 3, "body": [1]}),
        msgpack.packb({"a": b"\x00" * 300, "b": {"worker_id": "8"}, "worker_id": "7", "dp_rank": 3}),
        msgpack.packb({"a": msgpack.ExtType(5, b"x" * 300), "worker_id": "7", "dp_rank": 3}),
        msgpack.packb({"scheduled_requests": None, "worker_id": "7", "dp_rank": 3}),
        msgpack.packb({"wall_time": float("nan"), "worker_id": "7", "dp_rank": 3}),
        b"\x83\xa9worker_id\xa17\xa7dp_rank\x03\xc1",  # found before what is broken
        b"\x84\xa9worker_id\xa17\xa9worker_id\xa18\xa7dp_rank\x03\xa7dp_rank\x04",
        b"\x83\xa1a" + nested(50_000) + BOTH[1:],
        b"\xde\x00\x02" + BOTH[1:],
        b"\xdf\x00\x00\x00\x02" + BOTH[1:],
    ],
)
def test_what_is_around_the_key_does_not_matter(payload: bytes) -> None:
    """SUB-08: Order, other keys, binary, deep nesting, other versions, repetitions and what follows are no
    obstacle; the first of two equal keys counts.
    """
    assert scan_key(payload) == StreamKey("7", 3)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b"", "$"),
        (b"junk", "$"),
        (msgpack.packb([1, "7", 3]), "$"),
        (msgpack.packb({}), "$.worker_id"),
        (msgpack.packb({"worker_id": "7"}), "$.dp_rank"),
        (msgpack.packb({"dp_rank": 3}), "$.worker_id"),
        (msgpack.packb({"worker_id": 7, "dp_rank": 3}), "$.worker_id"),
        (msgpack.packb({"worker_id": b"7", "dp_rank": 3}), "$.worker_id"),
        (msgpack.packb({"worker_id": None, "dp_rank": 3}), "$.worker_id"),
        (b"\x82\xa9worker_id\xa1\xff\xa7dp_rank\x03", "$.worker_id"),
        (msgpack.packb({"worker_id": "7", "dp_rank": 3.0}), "$.dp_rank"),
        (msgpack.packb({"worker_id": "7", "dp_rank": True}), "$.dp_rank"),
        (msgpack.packb({"worker_id": "7", "dp_rank": "3"}), "$.dp_rank"),
        (msgpack.packb({"worker_id": "7", "dp_rank": None}), "$.dp_rank"),
        (msgpack.packb({"worker_id": "7", "dp_rank": 2**63}), "$.dp_rank"),
        (msgpack.packb({1: 2, "worker_id": "7", "dp_rank": 3}), "$"),
        (msgpack.packb({b"x": 2, "worker_id": "7", "dp_rank": 3}), "$"),
        (msgpack.packb({None: 2, "worker_id": "7", "dp_rank": 3}), "$"),
        (b"\x83\xa2\xff\xfe\x01" + BOTH[1:], "$"),
        (b"\x83\xa1a\xc1" + BOTH[1:], "$"),
        (b"\x83\xa1a\xdd\xff\xff\xff\xff" + BOTH[1:], "$"),  # an array of four milliards: the data ends
        (b"\x83\xa1a\xdb\xff\xff\xff\xff" + BOTH[1:], "$"),
        (b"\x83\xa1a" + nested(MAX_VALUES) + BOTH[1:], "$"),
    ],
)
def test_what_has_no_key(payload: bytes, path: str) -> None:
    """SUB-08: An array, a key that is missing or of another type, keys that are not text, and bytes that
    break first are refused with the path of what is wrong.
    """
    with pytest.raises(MalformedPayload) as caught:
        scan_key(payload)

    assert caught.value.path == path


def test_every_cut_is_refused() -> None:
    """SUB-08: A payload cut anywhere before its key ends is refused, and never read beyond its end."""
    for end in range(len(BOTH)):
        with pytest.raises(MalformedPayload):
            scan_key(BOTH[:end])
