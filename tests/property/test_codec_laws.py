"""Laws of the codec, for any message."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.testing import strategies
from forwardpass.wire.codec import decode, decode_full, decode_strict, encode, stamp
from forwardpass.wire.frames import join, split
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import CanonicalMetrics, validate_payload

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | strategies.finite | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
names = st.text(max_size=12).filter(lambda n: n not in KNOWN)
extras = st.dictionaries(names, json_values, max_size=3)
KNOWN = {name for name, _ in msgspec.to_builtins(ForwardPassMetrics()).items()} | {
    inner
    for value in msgspec.to_builtins(ForwardPassMetrics()).values()
    if isinstance(value, dict)
    for inner in value
}


def with_extras(metrics: ForwardPassMetrics, top: dict[str, Any], nested: dict[str, Any]) -> dict[str, Any]:
    """Return the message's map with fields of a newer schema in it."""
    document: dict[str, Any] = {**msgspec.to_builtins(metrics), **top}
    document["scheduled_requests"].update(nested)
    return document


@given(strategies.metrics)
def test_decode_undoes_encode(metrics: ForwardPassMetrics) -> None:
    """WIRE-22: decode after encode is the identity, for each of the readers."""
    data = encode(metrics)

    assert decode(data) == decode_strict(data) == metrics
    assert decode_full(data) == (metrics, {})


@given(strategies.metrics)
def test_encode_undoes_decode(metrics: ForwardPassMetrics) -> None:
    """WIRE-04: a message has one encoding, so decoding and encoding again gives the same bytes."""
    data = encode(metrics)

    assert encode(decode_strict(data)) == data


@given(strategies.metrics, strategies.counts)
def test_stamping_commutes_with_the_codec(metrics: ForwardPassMetrics, counter: int) -> None:
    """WIRE-08: a stamped message arrives with that counter and otherwise as it was."""
    assert decode_strict(encode(stamp(metrics, counter))) == msgspec.structs.replace(
        metrics, counter_id=counter
    )


@given(strategies.metrics)
def test_what_we_encode_is_canonical(metrics: ForwardPassMetrics) -> None:
    """WIRE-02, WIRE-13: every message within the ranges is fit for a trace, and its map is the same."""
    assert validate_payload(encode(metrics)) == msgspec.to_builtins(metrics)


@given(strategies.metrics, extras, extras)
def test_newer_messages_keep_everything(
    metrics: ForwardPassMetrics, top: dict[str, Any], nested: dict[str, Any]
) -> None:
    """WIRE-24, WIRE-16, WIRE-23, TRACE-22, D-8: unknown fields are ignored, kept on request, and kept in the
    trace.
    """
    document = with_extras(metrics, top, nested)
    data = msgspec.msgpack.encode(document)
    full = decode_full(data)

    assert decode(data) == full.metrics == metrics
    assert msgspec.msgpack.decode(encode(*full)) == document
    assert list(validate_payload(data).items()) == list(document.items())


@given(strategies.metrics, st.randoms(use_true_random=False))
def test_key_order_does_not_matter(metrics: ForwardPassMetrics, random: Any) -> None:
    """WIRE-03: a reader takes the keys in any order; the trace keeps the order it was given."""
    items = list(msgspec.to_builtins(metrics).items())
    random.shuffle(items)
    data = msgspec.msgpack.encode(dict(items))

    assert decode_strict(data) == metrics
    assert list(validate_payload(data)) == [name for name, _ in items]


@given(strategies.metrics)
def test_the_typed_and_the_generic_form_write_one_row(metrics: ForwardPassMetrics) -> None:
    """TRACE-20: the canonical struct and the validated map have the same JSON text."""
    data = encode(metrics)
    typed = msgspec.msgpack.decode(data, type=CanonicalMetrics)

    assert msgspec.json.encode(typed) == msgspec.json.encode(validate_payload(data))


@given(st.integers(0, 2**64 - 1), st.binary(max_size=64), st.binary(max_size=8))
def test_frames_come_apart_as_they_were(seq: int, payload: bytes, topic: bytes) -> None:
    """WIRE-31: split after join is the identity for every sequence, payload and topic."""
    assert split(join(seq, payload, topic)) == (topic, seq, payload)
