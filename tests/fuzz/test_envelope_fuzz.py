"""Any bytes give an envelope or the declared error."""

from __future__ import annotations

import contextlib

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from forwardpass.errors import WireError
from forwardpass.plane.envelope import Envelope, decode_envelope, encode_envelope

U64 = st.integers(0, 2**64 - 1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=8,
)


def _value_or_declared_error(data: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode_envelope(data), Envelope)


@given(st.binary(max_size=400))
@example(b"\x91" * 2000)
@example(b"\x81\xa1a" * 2000)
@example(b"\xdf\xff\xff\xff\xff")
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x85" + b"\xa7payload" + b"\xc6\xff\xff\xff\xff")
def test_arbitrary_bytes(data: bytes) -> None:
    """Arbitrary bytes never raise anything but a WireError."""
    _value_or_declared_error(data)


@given(
    st.dictionaries(
        st.sampled_from(["publisher_id", "sequence", "published_at", "topic", "payload", "x"]), VALUES
    ),
    st.binary(max_size=6),
)
def test_maps_with_wrong_values(fields: dict[str, object], tail: bytes) -> None:
    """Maps with the right keys and any values never raise anything but a WireError."""
    _value_or_declared_error(msgpack.packb(fields) + tail)


@given(st.lists(VALUES, max_size=7), st.binary(max_size=6))
def test_arrays_with_wrong_values(values: list[object], tail: bytes) -> None:
    """Arrays of any values never raise anything but a WireError."""
    _value_or_declared_error(msgpack.packb(values) + tail)


@given(U64, U64, U64, st.binary(max_size=300), st.binary(max_size=8), st.data())
def test_cut_and_flipped(
    publisher_id: int, sequence: int, at: int, payload: bytes, tail: bytes, data: st.DataObject
) -> None:
    """A true envelope decodes, with any tail; cut or with a flipped byte it gives a value or the error."""
    envelope = encode_envelope(publisher_id, sequence, at, payload)

    assert decode_envelope(envelope + tail) == Envelope(
        publisher_id, sequence, at, "forward-pass-metrics", payload
    )
    cut = data.draw(st.integers(0, len(envelope) - 1))
    _value_or_declared_error(envelope[:cut])
    flipped = bytearray(envelope)
    flipped[cut] ^= data.draw(st.integers(1, 255))
    _value_or_declared_error(bytes(flipped))
