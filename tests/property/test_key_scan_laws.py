"""Laws of finding the key of a payload, against an independent MessagePack."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.errors import MalformedPayload
from forwardpass.testing.strategies import metrics
from forwardpass.wire.codec import encode
from forwardpass.wire.key_scan import scan_key
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.schema import ForwardPassMetrics

ranks = st.integers(min_value=-(2**63), max_value=2**63 - 1)
values = st.recursive(
    st.none() | st.booleans() | ranks | st.just(2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)
pairs = st.lists(st.tuples(st.text(max_size=9), values), max_size=6)


@given(metrics)
def test_the_key_is_the_decoded_one(message: ForwardPassMetrics) -> None:
    """SUB-08: For any message the scan finds what decoding it finds."""
    assert scan_key(encode(message)) == StreamKey(message.worker_id, message.dp_rank)


def packed(fields: list[tuple[str, Any]]) -> bytes:
    """Return a map with these pairs in order, equal keys included."""
    packer = msgpack.Packer()
    return bytes(
        packer.pack_map_header(len(fields)) + b"".join(packer.pack(k) + packer.pack(v) for k, v in fields)
    )


@given(pairs, pairs, pairs, st.text(), ranks, st.booleans(), st.binary(max_size=20))
def test_whatever_else_a_map_holds(
    before: list[tuple[str, Any]],
    between: list[tuple[str, Any]],
    after: list[tuple[str, Any]],
    worker: str,
    rank: int,
    rank_first: bool,
    trailing: bytes,
) -> None:
    """SUB-08: The first worker_id and the first dp_rank of the top level are found among any other values."""
    ours = ("worker_id", "dp_rank")
    others = [[pair for pair in some if pair[0] not in ours] for some in (before, between)]
    one, two = ("worker_id", worker), ("dp_rank", rank)
    if rank_first:
        one, two = two, one
    payload = packed([*others[0], one, *others[1], two, *after]) + trailing

    assert scan_key(payload) == StreamKey(worker, rank)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_key_or_the_declared_error(data: bytes) -> None:
    """SUB-08: Garbage is refused with MalformedPayload and nothing else."""
    with suppress(MalformedPayload):
        assert isinstance(scan_key(data), StreamKey)


@given(values.filter(lambda value: not isinstance(value, dict)))
def test_what_is_no_map_has_no_key(value: Any) -> None:
    """SUB-08: No value but a map has a key."""
    with pytest.raises(MalformedPayload):
        scan_key(msgpack.packb(value))


@given(metrics, st.integers(min_value=0, max_value=80), st.binary(min_size=1, max_size=1))
def test_the_usual_form_is_no_exception(message: ForwardPassMetrics, at: int, other: bytes) -> None:
    """SUB-08: The usual beginning, with any byte changed or cut after it, is read as any other form is."""

    def key(payload: bytes) -> StreamKey | str:
        try:
            return scan_key(payload)
        except MalformedPayload as error:
            return error.args[0]

    whole = encode(message)
    usual = b"\xa7version\x01"
    begin = whole.index(usual) + len(usual)
    rest = bytearray(whole[begin:])
    rest[at : at + 1] = other
    for end in (at, len(rest)):
        wider = whole[: begin - 1] + b"\xcc\x01" + rest[:end]  # the same version in two bytes

        assert key(whole[:begin] + rest[:end]) == key(wider)
