"""A relay of a server that we started passes on that server's messages, and nobody else's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from forwardpass.config.settings import PublisherSettings
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.relay.own_source import OwnSource
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics

OURS = encode(ForwardPassMetrics(worker_id="4192", dp_rank=3, counter_id=5))
OTHER = encode(ForwardPassMetrics(worker_id="41922", dp_rank=3))
NOBODY = encode(ForwardPassMetrics(dp_rank=3))
GARBAGE = b"\xc1 no message"


class Wire:
    """A plain publisher of whatever bytes, and a source that has joined it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        port = free_port()
        self._socket.bind(f"tcp://127.0.0.1:{port}")
        self.source = OwnSource(f"tcp://127.0.0.1:{port}", worker_id="4192")
        deadline = time.monotonic() + 30
        while not self._receive():
            assert time.monotonic() < deadline, "the subscription did not arrive"
            self._send([OURS])
            time.sleep(0.02)
        self._send([GARBAGE])
        while GARBAGE not in self._receive():  # then nothing is under way any more
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _send(self, payloads: list[bytes]) -> None:
        for number, payload in enumerate(payloads):
            self._socket.send_multipart([b"", number.to_bytes(8, "big"), payload])

    def send_frames(self, *frames: bytes) -> None:
        """Send any frames as one message."""
        self._socket.send_multipart(frames)

    def _receive(self) -> list[bytes]:
        return list(self.source.receive_many(100).payloads)

    def pass_through(self, payloads: list[bytes]) -> list[tuple[int, bytes]]:
        """Send ``payloads`` and then one of ours; return (sequence, payload) of what came before that."""
        self._send([*payloads, OURS])
        received: list[tuple[int, bytes]] = []
        deadline = time.monotonic() + 10
        while not received or received[-1] != (len(payloads), OURS):
            assert time.monotonic() < deadline
            batch = self.source.receive_many(100)
            received += zip(batch.sequences(), batch.payloads, strict=True)
            time.sleep(0.005)
        return received[:-1]

    def close(self) -> None:
        """Close both ends."""
        self.source.close()
        self._socket.close()
        self._context.term()


@pytest.fixture
def wire() -> Iterator[Wire]:
    """Return a joined pair."""
    pair = Wire()
    yield pair
    pair.close()


def test_messages_of_other_workers_are_left_out_and_counted(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    """Another id, one that merely begins like ours, or none: not ours. Said once, with the remedy."""
    assert wire.pass_through([OTHER, OURS, NOBODY, OTHER]) == [(1, OURS)]
    assert wire.source.foreign == 3
    (record,) = caplog.records
    assert "'41922'" in record.getMessage()
    assert "DYN_FORWARDPASS_METRIC_PORT" in record.getMessage()


def test_what_cannot_be_read_is_not_called_foreign(wire: Wire) -> None:
    """Malformed payloads reach the trace, which counts them as what they are."""
    assert wire.pass_through([GARBAGE, OURS]) == [(0, GARBAGE), (1, OURS)]
    assert wire.source.foreign == 0


def test_wrong_frames_among_foreign_messages_are_still_counted(wire: Wire) -> None:
    """What has not the frames of the stream is nobody's, and is reported as without strangers around."""
    wire.send_frames(b"one frame")
    wire.send_frames(b"", bytes(8), OTHER)
    time.sleep(0.3)  # so that they come in one batch
    batch = wire.source.receive_many(100)

    assert [error.count for error in batch.bad] == [1]
    assert (batch.payloads, wire.source.foreign) == ([], 1)


def test_a_message_of_ours_in_another_encoding_is_ours(wire: Wire) -> None:
    """A worker id that is written longer than necessary is compared after decoding."""
    plain = b"\xa9worker_id\xa44192"
    longer = OURS.replace(plain, b"\xa9worker_id\xd9\x044192")
    assert longer != OURS

    assert wire.pass_through([longer, OTHER]) == [(0, longer)]


def test_a_stranger_at_our_port_is_not_recorded_under_our_name(tmp_path: Path) -> None:
    """Two servers started at once on one port: the second records nothing of the first."""
    port = free_port()
    stranger = FpmPublisher(
        PublisherSettings(base_port=port, worker_id="7", heartbeat_interval_seconds=0.02), dp_rank=0
    )
    source = OwnSource(f"tcp://127.0.0.1:{port}", worker_id="4192")
    try:
        deadline = time.monotonic() + 10
        while source.foreign < 3:
            assert len(source.receive_many(100)) == 0
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        stranger.shutdown()
        source.close()
