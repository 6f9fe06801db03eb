"""The tracker on event-plane messages that the reference really sent."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import msgpack
import pytest

from forwardpass.plane.base import PlaneMessage
from forwardpass.plane.envelope import decode_envelope
from forwardpass.plane.tracker import Tracker
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.keys import Endpoint

GOLDEN = Path(__file__).parent
ENVELOPE_AT = 5  # after the version byte and the length
CAPTURES = sorted(
    path.relative_to(GOLDEN).as_posix()
    for name in ("event_plane_frames.jsonl.gz", "nats_messages.jsonl.gz")
    for path in GOLDEN.glob(f"*/{name}")
)


def messages(capture: str) -> list[PlaneMessage]:
    """Return a capture's messages in the order in which they came."""
    found = []
    for line in gzip.decompress((GOLDEN / capture).read_bytes()).splitlines():
        entry = json.loads(line)
        data = bytes.fromhex(entry["data"] if "data" in entry else entry["frames"][3])
        envelope = decode_envelope(data if "data" in entry else data[ENVELOPE_AT:])
        found.append(
            PlaneMessage(
                envelope.payload,
                Endpoint(),
                envelope.publisher_id,
                envelope.sequence,
                envelope.published_at_ms,
                envelope.published_at_ms,
            )
        )
    return found


@pytest.mark.parametrize("capture", CAPTURES)
def test_captured_events(capture: str) -> None:
    """SUB-05, SUB-12, SUB-13: Of each rank the last message that came is shown, as another MessagePack reads
    it; nothing is missing of what was captured without a gap, and no restart is seen where none was.
    """
    came = messages(capture)
    tracker = Tracker(require_known=False, clock=ManualClock())
    expected = {}
    for message in came:
        tracker.note(message)
        document = msgpack.unpackb(message.payload)
        expected[document["worker_id"], document["dp_rank"]] = message
    shown = tracker.recent()

    assert len(came) > 50
    assert {key: entry.payload for key, entry in shown.items()} == {
        key: message.payload for key, message in expected.items()
    }
    for key, entry in shown.items():
        assert entry.counter_id == msgpack.unpackb(expected[key].payload)["counter_id"]
        assert (entry.epoch, entry.counters.missing, entry.counters.decreases) == (0, 0, 0)
        assert (entry.plane.missing, entry.plane.decreases) == (0, 0)
    assert tracker.counts().unkeyable == 0
    assert len(CAPTURES) == 6
