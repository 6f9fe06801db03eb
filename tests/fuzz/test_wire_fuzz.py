"""Any bytes at the wire's border give a value or a declared error, and nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forwardpass.errors import FrameError, WireError
from forwardpass.quiet import QuietLog
from forwardpass.testing import strategies
from forwardpass.wire.codec import Decoded, decode, decode_full, decode_strict, encode
from forwardpass.wire.frames import split
from forwardpass.wire.ports import PortBlock, parse_port_range
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

READERS: list[tuple[Callable[[bytes], Any], type]] = [
    (decode_strict, ForwardPassMetrics),
    (decode_full, Decoded),
    (validate_payload, dict),
]
silent = QuietLog(logging.getLogger("test.fuzz"))
logging.getLogger("test.fuzz").setLevel(logging.CRITICAL)

HOSTILE = [
    b"",
    b"\x81\xa1x\xdd\xff\xff\xff\xff",  # an array of 4 billion
    b"\x81\xa1x\xdf\xff\xff\xff\xff",  # a map of 4 billion
    b"\x81\xa1x\xc6\xff\xff\xff\xff",  # 4 GB of binary
    b"\x81\xa1x\xdb\xff\xff\xff\xff",  # 4 GB of text
    b"\x81\xa1x\xc9\xff\xff\xff\xff\x01",  # 4 GB of an extension
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\x81\xa1x" + b"\x91" * 200_000 + b"\x00",  # nested 200,000 deep
    b"\x81\xa1x" + b"\x81\xa1x" * 100_000 + b"\x00",
    b"\x81\xa1\xff\x01",  # a key that is no UTF-8
    b"\x81\xa1x\xa2\xed\xa0",  # cut inside a character
    b"\x81\xa1x\xa3\xed\xa0\x80",  # a lone surrogate
    b"\x81\xa1x\x81\x80\x01",  # a map as a key
    b"\x81\xa1x\x81\x91\x01\x01",  # an array as a key
    b"\x81\xa1x\xc7\x0c\xff" + b"\xff" * 12,  # a timestamp far out of range
    b"\x81\xa1x\xc7\x03\xff\x00\x00\x00",  # a timestamp of 3 bytes
    b"\x81\xc0\x01",
    b"\xc1",
]

atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=6)
    | st.binary(max_size=6)
    | st.builds(msgspec.msgpack.Ext, st.integers(-128, 127).filter(lambda c: c != -1), st.binary(max_size=4))
)
values = st.recursive(
    atoms,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner, max_size=3)
    ),
    max_leaves=6,
)
field_names = st.sampled_from(
    [*ForwardPassMetrics.__struct_fields__, "num_prefill_requests", "sum_prefill_tokens", "extra"]
)


def check(data: bytes) -> None:
    """Assert the one rule for every reader of payload bytes."""
    for reader, kind in READERS:
        try:
            value = reader(data)
        except WireError:
            continue
        assert isinstance(value, kind)
        if reader is validate_payload:
            assert msgspec.json.decode(msgspec.json.encode(value)) == value
    metrics = decode(data, faults=silent)
    assert metrics is None or isinstance(metrics, ForwardPassMetrics)


@pytest.mark.parametrize("data", HOSTILE, ids=lambda d: d[:8].hex() or "nothing")
def test_hostile_bytes(data: bytes) -> None:
    """WIRE-22: huge declared lengths, deep nesting, bad text and odd keys are refused like any other."""
    check(data)


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    """WIRE-22: arbitrary bytes are a value or a declared error to every reader."""
    check(data)


@given(strategies.metrics, st.data())
@settings(max_examples=300)
def test_damaged_messages(metrics: ForwardPassMetrics, data: st.DataObject) -> None:
    """WIRE-22: a valid message with bytes flipped, cut or put in is a value or a declared error."""
    payload = bytearray(encode(metrics))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, max(0, len(payload) - 1)))
        match data.draw(st.sampled_from("fid")):
            case "f" if payload:
                payload[at] = data.draw(st.integers(0, 255))
            case "i":
                payload[at:at] = data.draw(st.binary(max_size=5))
            case _:
                del payload[at : at + data.draw(st.integers(1, 20))]
    check(bytes(payload))


@given(st.dictionaries(field_names, values, max_size=8))
@example({"scheduled_requests": {}, "queued_requests": []})
def test_known_fields_with_any_value(document: dict[str, Any]) -> None:
    """WIRE-20, WIRE-22: any value under a field's name is a value or a declared error."""
    check(msgspec.msgpack.encode(document))


@given(strategies.metrics, st.dictionaries(st.text(max_size=6), values, max_size=3))
def test_valid_messages_with_any_addition(metrics: ForwardPassMetrics, extra: dict[str, Any]) -> None:
    """WIRE-16, TRACE-22: whatever stands under an unknown name, the message is still read."""
    document = {**extra, **msgspec.to_builtins(metrics)}
    data = msgspec.msgpack.encode(document)
    check(data)

    assert decode_strict(data) == metrics


@given(
    st.lists(st.binary(max_size=12), max_size=6)
    | st.lists(st.binary(min_size=8, max_size=8), min_size=3, max_size=3)
)
def test_any_frames(parts: list[bytes]) -> None:
    """WIRE-31: any list of frames splits or is a declared error."""
    if len(parts) == 3 and len(parts[1]) == 8:
        assert split(parts).payload == parts[2]
        return
    with pytest.raises(FrameError) as caught:
        split(parts)
    assert caught.value.count == len(parts)


@given(st.text(max_size=40) | st.text("0123456789 \t\n", max_size=40))
def test_any_port_range_file(text: str) -> None:
    """WIRE-37: any content of the kernel's file is a range or nothing."""
    block = parse_port_range(text)

    assert block is None or isinstance(block, PortBlock)
