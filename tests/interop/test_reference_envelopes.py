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
from forwardpass.plane.zmq.frames import join, split
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

GOLDEN = Path(__file__).parent.parent / "golden"
ZMQ_CAPTURES = sorted(GOLDEN.glob("*/event_plane_frames.jsonl.gz"))
NATS_CAPTURES = sorted(GOLDEN.glob("*/nats_messages.jsonl.gz"))


def _lines(path: Path) -> Iterator[dict[str, object]]:
    with gzip.open(path, "rt") as file:
        for line in file:
            yield json.loads(line)


def _envelopes(path: Path) -> list[bytes]:
    if path in NATS_CAPTURES:
        return [bytes.fromhex(str(capture["data"])) for capture in _lines(path)]
    return [split(parts) for parts in _frames(path)]


def _frames(path: Path) -> list[list[bytes]]:
    frames = [list(capture["frames"]) for capture in _lines(path)]  # type: ignore[call-overload]
    return [[bytes.fromhex(frame) for frame in parts] for parts in frames]


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
def test_zmq_frames_round_trip(path: Path) -> None:
    """PLANE-03: Every message of the reference's ZMQ plane is, frame for frame, what we would send."""
    messages = _frames(path)

    assert len(messages) > 50
    for parts in messages:
        data = split(parts)
        envelope = decode_envelope(data)
        assert tuple(parts) == join(TOPIC.encode(), envelope.publisher_id, envelope.sequence, data)


@pytest.mark.parametrize("path", NATS_CAPTURES, ids=lambda path: path.parent.name)
def test_subjects(path: Path) -> None:
    """The reference publishes to the subject that we compute for the endpoint."""
    subjects = {capture["subject"] for capture in _lines(path)}

    assert subjects == {subject(Endpoint("dynamo", "backend", "generate"))}
