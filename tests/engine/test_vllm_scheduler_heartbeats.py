"""What heartbeats say of the queue while vLLM's real scheduler is at work in another thread."""

from __future__ import annotations

import time

import pytest
from bare_engine import build_scheduler, make_request
from stream_subscriber import Subscriber

from forwardpass.config.settings import PublisherSettings, SourceSettings
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.testing.ports import free_port
from forwardpass.wire.schema import QueuedRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]

WAITING = 50
HEARTBEATS = 40
LIMIT_SECONDS = 60.0


def test_heartbeats_are_never_of_the_middle_of_a_step(tiny_model: str) -> None:
    """ENG-08, CASE-03, TRAP-15: While a connector answers lookup after lookup, vLLM has the requests that it
    cannot run yet in its hands, in no queue, and other threads run. No heartbeat says that nothing waits, or
    less than does (D-3).
    """
    from vllm.config import KVTransferConfig
    from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

    from forwardpass.engines.vllm.attach import record_to

    transfer = KVTransferConfig(
        kv_connector="SlowLookups", kv_connector_module_path="kv_connector_stub", kv_role="kv_both"
    )
    scheduler = build_scheduler(tiny_model, kv_transfer=transfer)
    settings = PublisherSettings(
        base_port=free_port(), bind_host="127.0.0.1", worker_id="1", heartbeat_interval_seconds=0.02
    )
    subscriber = Subscriber(settings.base_port)
    publisher = FpmPublisher(settings, dp_rank=0)
    try:
        for number in range(WAITING):
            scheduler.add_request(make_request(f"r{number}", [1] * 64, 4))
        scheduler._forwardpass = record_to(publisher, scheduler, SourceSettings())
        end = time.monotonic() + LIMIT_SECONDS
        while len(subscriber.heartbeats) < HEARTBEATS and time.monotonic() < end:
            output = scheduler.schedule()
            assert output.total_num_scheduled_tokens == 0
            scheduler.update_from_output(output, EMPTY_MODEL_RUNNER_OUTPUT)
            time.sleep(0.001)  # as vLLM's engine core does when nothing can run
    finally:
        publisher.shutdown()
        subscriber.stop()

    assert len(subscriber.heartbeats) >= HEARTBEATS
    expected = QueuedRequestMetrics(WAITING, 64 * WAITING, 0.0, 0, 0, 0.0)
    assert {heartbeat.queued_requests for heartbeat in subscriber.heartbeats} == {expected}
