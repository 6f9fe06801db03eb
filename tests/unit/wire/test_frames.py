"""The three frames of the raw stream."""

from __future__ import annotations

import pytest

from forwardpass.errors import FrameError
from forwardpass.wire.frames import Frames, join, split


@pytest.mark.parametrize(
    ("seq", "frame"),
    [(0, bytes(8)), (300, bytes(6) + b"\x01\x2c"), (2**64 - 1, b"\xff" * 8)],
)
def test_join_writes_a_big_endian_sequence(seq: int, frame: bytes) -> None:
    """WIRE-31: an empty topic, eight big-endian bytes of sequence, then the payload untouched."""
    assert join(seq, b"payload") == (b"", frame, b"payload")


@pytest.mark.parametrize("seq", [0, 1, 2**32, 2**64 - 1])
def test_split_undoes_join(seq: int) -> None:
    """WIRE-31: what was joined comes apart into the same three values."""
    assert split(join(seq, b"\xc1", b"topic")) == Frames(b"topic", seq, b"\xc1")


@pytest.mark.parametrize("count", [0, 1, 2, 4, 9])
def test_other_frame_counts(count: int) -> None:
    """WIRE-31: any other number of frames is refused, and the error tells how many there were."""
    with pytest.raises(FrameError) as caught:
        split([bytes(8)] * count)

    assert caught.value.count == count


@pytest.mark.parametrize("length", [0, 4, 7, 9, 16])
def test_other_sequence_lengths(length: int) -> None:
    """WIRE-31: a sequence frame that is not eight bytes long is refused."""
    with pytest.raises(FrameError):
        split([b"", bytes(length), b"payload"])
