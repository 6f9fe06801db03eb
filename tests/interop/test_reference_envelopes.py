"""The reference's event-plane messages, read and written by us."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.plane.base import TOPIC
from forwardpass.plane.envelope import decode_envelope, encode_envelope
from forwardpass.plane.names import subject
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

GOLDEN = Path(__file__).parent.parent / "golden"
ZMQ_CAPTURES = sorted(GOLDEN.glob("*/event_plane_frames.jsonl.gz"))
NATS_CAPTURES = sorted(GOLDEN.glob("*/nats_messages.jsonl.gz"))
ZMQ_PREFIX_BYTES = 5
"""A version byte and a 4-byte length stand before the envelope in the last frame of the ZMQ plane."""


def _lines(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def _envelopes(path: Path) -> list[bytes]:
    if path in NATS_CAPTURES:
        return [bytes.fromhex(str(capture["data"])) for capture in _lines(path)]
    frames = [list(capture["frames"]) for capture in _lines(path)]  # type: ignore[call-overload]
    return [bytes.fromhex(parts[3])[ZMQ_PREFIX_BYTES:] for parts in frames]


@pytest.mark.parametrize("path", [*ZMQ_CAPTURES, *NATS_CAPTURES], ids=lambda path: path.parent.name)
def test_envelopes_round_trip(path: Path) -> None:
    """Every envelope of the reference decodes, and encoding its parts gives the same bytes again."""
    envelopes = _envelopes(path)

    assert len(envelopes) > 50
    for data in envelopes:
        envelope = decode_envelope(data)
        assert envelope.topic == TOPIC
        assert envelope.publisher_id <= MAX_PRODUCER_ID
        assert decode_strict(envelope.payload).worker_id
        again = encode_envelope(
            envelope.publisher_id, envelope.sequence, envelope.published_at_ms, envelope.payload
        )
        assert again == data


@pytest.mark.parametrize("path", ZMQ_CAPTURES, ids=lambda path: path.parent.name)
def test_frames_repeat_the_envelope(path: Path) -> None:
    """Frames 1 to 3 of the ZMQ plane are topic, publisher id and sequence of the envelope behind them."""
    for capture, data in zip(_lines(path), _envelopes(path), strict=True):
        topic, publisher_id, sequence = (bytes.fromhex(frame) for frame in list(capture["frames"])[:3])  # type: ignore[call-overload]
        envelope = decode_envelope(data)
        assert topic == TOPIC.encode()
        assert int.from_bytes(publisher_id, "big") == envelope.publisher_id
        assert int.from_bytes(sequence, "big") == envelope.sequence


@pytest.mark.parametrize("path", NATS_CAPTURES, ids=lambda path: path.parent.name)
def test_subjects(path: Path) -> None:
    """The reference publishes to the subject that we compute for the endpoint."""
    subjects = {capture["subject"] for capture in _lines(path)}

    assert subjects == {subject(Endpoint("dynamo", "backend", "generate"))}
