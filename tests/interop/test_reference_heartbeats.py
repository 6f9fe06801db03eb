"""Our heartbeats against those that the reference's and SGLang's publishers sent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from forwardpass.config.settings import HeartbeatMode
from forwardpass.publish.heartbeat import heartbeat_message
from forwardpass.wire.codec import decode_strict, encode, stamp
from forwardpass.wire.frames import join, split
from forwardpass.wire.schema import QueuedRequestMetrics

GOLDEN = Path(__file__).parent.parent / "golden"
CAPTURES = sorted(GOLDEN.glob("*/raw_zmq_frames.jsonl.gz"))


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("mode", list(HeartbeatMode))
def test_an_idle_heartbeat_is_the_references_byte_for_byte(capture: Path, mode: HeartbeatMode) -> None:
    """WIRE-43, D-3: with nothing waiting both modes give the captured frames, given their identity and
    number.
    """
    with gzip.open(capture, "rt") as lines:
        messages = [[bytes.fromhex(frame) for frame in json.loads(line)["frames"]] for line in lines]
    heartbeats = 0
    for frames in messages:
        _, seq, payload = split(frames)
        original = decode_strict(payload)
        if original.wall_time == 0.0:
            message = heartbeat_message(mode, QueuedRequestMetrics())
            ours = encode(stamp(message, seq, original.worker_id, original.dp_rank))
            assert list(join(seq, ours)) == frames
            heartbeats += 1

    assert heartbeats > 0
