"""The frames of the ZMQ event plane."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.errors import FrameError
from forwardpass.plane.base import TOPIC
from forwardpass.plane.envelope import decode_envelope, encode_envelope
from forwardpass.plane.zmq.frames import OVERHEAD_BYTES, join, split

ENVELOPE = encode_envelope(1000, 7, 1_700_000_000_000, b"payload")
GOOD = join(TOPIC.encode(), 1000, 7, ENVELOPE)


def test_frames() -> None:
    """PLANE-03: Topic, id and sequence of 8 bytes, and the envelope after a version byte and its length."""
    name, publisher_id, sequence, wrapped = GOOD

    assert name == b"forward-pass-metrics"
    assert (publisher_id.hex(), sequence.hex()) == ("00000000000003e8", "0000000000000007")
    assert wrapped == b"\x01" + len(ENVELOPE).to_bytes(4, "big") + ENVELOPE


@given(st.binary(max_size=2000), st.integers(0, 2**53 - 1), st.integers(0, 2**64 - 1))
def test_round_trip(payload: bytes, publisher_id: int, sequence: int) -> None:
    """PLANE-03: What is joined is split into the same, and the frames add less than is allowed for."""
    parts = join(b"name", publisher_id, sequence, encode_envelope(publisher_id, sequence, 2**64 - 1, payload))

    assert decode_envelope(split(parts)).payload == payload
    assert len(parts[3]) <= len(payload) + OVERHEAD_BYTES


def test_what_follows_the_envelope_is_ignored() -> None:
    """PLANE-04: Bytes beyond the length that the wrapper says are no part of the envelope."""
    assert split((*GOOD[:3], GOOD[3] + b"later")) == ENVELOPE


def test_ids_are_not_compared() -> None:
    """PLANE-04: Frames whose ids differ from the envelope's are taken, as the reference takes them."""
    assert split((b"", b"\xff" * 8, b"\xff" * 8, GOOD[3])) == ENVELOPE


@pytest.mark.parametrize(
    "parts",
    [
        (),
        GOOD[:3],
        (*GOOD, b""),
        (GOOD[0], b"", GOOD[2], GOOD[3]),
        (GOOD[0], b"x" * 1_000_000, GOOD[2], GOOD[3]),
        (GOOD[0], GOOD[1], b"1234567", GOOD[3]),
        (*GOOD[:3], b""),
        (*GOOD[:3], b"\x01\x00\x00"),
        (*GOOD[:3], b"\x02" + GOOD[3][1:]),
        (*GOOD[:3], b"\x01\xff\xff\xff\xff" + ENVELOPE),
        (*GOOD[:3], GOOD[3][:-1]),
    ],
    ids=range(11),
)
def test_what_is_no_message(parts: tuple[bytes, ...]) -> None:
    """PLANE-04: Another number of frames, ids of another size, another version and a length beyond the frame
    are refused, in a short sentence.
    """
    with pytest.raises(FrameError) as caught:
        split(parts)

    assert caught.value.count == len(parts)
    assert len(str(caught.value)) < 120


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_any_frames(parts: list[bytes]) -> None:
    """PLANE-04: Any frames give an envelope or our declared error."""
    try:
        split(parts)
    except FrameError:
        return

    assert len(parts) == 4
