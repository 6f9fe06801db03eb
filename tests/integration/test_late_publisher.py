"""A source that waited long for its publisher joins it at once."""

from __future__ import annotations

import time

import pytest

from forwardpass.config.settings import PublisherSettings
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.relay.zmq_source import ZmqSource
from forwardpass.testing.ports import free_port


@pytest.mark.slow
def test_a_publisher_that_comes_late_is_joined_within_half_a_second() -> None:
    """However long the engine took to start, its first passes are not lost to a relay's patience."""
    port = free_port()
    source = ZmqSource(f"tcp://127.0.0.1:{port}")
    time.sleep(4.0)  # many refused connections
    publisher = FpmPublisher(PublisherSettings(base_port=port, heartbeat_interval_seconds=0.02), dp_rank=0)
    try:
        began = time.monotonic()
        while not len(source.receive_many(1)):
            assert time.monotonic() < began + 2.0  # time for a busy machine; a patient relay takes longer
            time.sleep(0.005)
    finally:
        publisher.shutdown()
        source.close()
