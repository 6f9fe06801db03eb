"""What was captured on the wire is what stands in the trace beside it, field for field."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwardpass.trace.reader import read_trace
from forwardpass.wire.codec import decode_full, decode_strict
from forwardpass.wire.frames import split
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

GOLDEN = Path(__file__).parent
KINDS = ("raw_zmq_frames", "event_plane_frames", "nats_messages", "recv_out")
CAPTURES = sorted(
    path.relative_to(GOLDEN).as_posix() for kind in KINDS for path in GOLDEN.glob(f"*/{kind}.jsonl.gz")
)
BESIDE_A_TRACE = [name for name in CAPTURES if list((GOLDEN / name).parent.glob("fpm.*"))]
RAW = [name for name in CAPTURES if "raw_zmq_frames" in name]

Key = tuple[str, int, int]


def messages(name: str) -> Iterator[dict[str, Any]]:
    """Yield the messages of a capture."""
    with gzip.open(GOLDEN / name, "rt", encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def payloads(name: str) -> Iterator[bytes]:
    """Yield the MessagePack payloads of a capture of messages."""
    for message in messages(name):
        if "raw_zmq_frames" in name:
            yield split([bytes.fromhex(frame) for frame in message["frames"]]).payload
        elif "nats_messages" in name:
            yield msgspec.msgpack.decode(bytes.fromhex(message["data"]))["payload"]
        else:  # the reference's ZMQ plane puts five bytes, a version and a length, before its envelope
            yield msgspec.msgpack.decode(bytes.fromhex(message["frames"][3])[5:])["payload"]


def captured(name: str) -> list[tuple[ForwardPassMetrics, dict[str, Any]]]:
    """Return each captured message, typed and as the map that it is."""
    if "recv_out" in name:
        documents = [message["metrics"] for message in messages(name)]
        return [(msgspec.convert(document, ForwardPassMetrics), document) for document in documents]
    return [(decode_strict(payload), validate_payload(payload)) for payload in payloads(name)]


def key(metrics: ForwardPassMetrics) -> Key:
    """Return what names one message of one run."""
    return metrics.worker_id, metrics.dp_rank, metrics.counter_id


def test_all_captures_are_here() -> None:
    """The list of captures does not shrink unnoticed."""
    assert (len(CAPTURES), len(BESIDE_A_TRACE), len(RAW)) == (17, 16, 5)


@pytest.mark.parametrize("name", BESIDE_A_TRACE)
def test_every_captured_message_is_a_row(name: str) -> None:
    """Each message is in the trace once, with the same fields in the same order and the same values."""
    rows = {key(record.metrics): record for record in read_trace((GOLDEN / name).parent)}
    found = captured(name)

    assert len({key(metrics) for metrics, _ in found}) == len(found) > 0
    for metrics, document in found:
        record = rows[key(metrics)]
        assert record.metrics == metrics
        assert repr(record.fpm) == repr(document)


@pytest.mark.parametrize("name", RAW)
def test_raw_frames_carry_their_counter(name: str) -> None:
    """SGLang's and the reference's raw frames decode, hold nothing unknown, and are numbered twice alike."""
    for message in messages(name):
        frames = split([bytes.fromhex(frame) for frame in message["frames"]])
        decoded = decode_full(frames.payload)

        assert frames.topic == b""
        assert decoded.metrics.counter_id == frames.seq
        assert decoded.unknown == {}
