"""vLLM's own stream, which is pending upstream: the same three frames, with one field more.

No release has it, so the frames are made here as the proposal describes them: the id falls back to the
engine's instance id, ``wall_time`` may be the device's, and ``timing_scope`` says whose it is.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from relay_peers import LIMIT_SECONDS, free_url, publishing_at, relaying, subscribe, take_all, tracing, until
from trace_files import rows

from forwardpass.config.settings import CaptureMode
from forwardpass.wire.codec import decode, decode_full, encode
from forwardpass.wire.frames import join
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

INSTANCE = "vllm-3f1c-0"


def native(counter: int, **more: Any) -> bytes:
    """Return a payload of vLLM's own publisher."""
    metrics = ForwardPassMetrics(
        worker_id=INSTANCE,
        counter_id=counter,
        wall_time=0.004,
        scheduled_requests=ScheduledRequestMetrics(num_decode_requests=2, sum_decode_kv_tokens=90),
    )
    fields = msgspec.msgpack.decode(encode(metrics))
    return msgspec.msgpack.encode({**fields, "timing_scope": "device", **more})


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_the_field_more_is_relayed_and_recorded(mode: CaptureMode, tmp_path: Path) -> None:
    """ENG-16, TRAP-17, WIRE-20: In either mode the rows have the field in its place, and the plane has the
    bytes as they were sent.
    """
    sent = [native(counter) for counter in range(40)]

    async def run() -> list[bytes]:
        url, (plane, subscriber) = free_url(), await subscribe()
        with publishing_at(url) as publisher, tracing(tmp_path, mode) as trace:
            async with relaying([url], trace, plane_url=plane) as group:
                while not group.stats()[0].connected or not group.stats()[0].received:
                    publisher.send_frames(*join(0, sent[0]))
                    await asyncio.sleep(0.02)
                before = group.stats()[0].received
                for counter, payload in enumerate(sent[1:], start=1):
                    publisher.send_frames(*join(counter, payload))
                await until(lambda: group.stats()[0].received >= before + len(sent) - 1)
                await group.stop(LIMIT_SECONDS)
        return await take_all(subscriber)

    published = asyncio.run(run())
    written = [line["event"]["fpm"] for line in rows(tmp_path)]
    assert set(published) == set(sent)
    assert {json.dumps(one) for one in written} <= {
        json.dumps(msgspec.msgpack.decode(payload)) for payload in sent
    }
    assert written[-1]["counter_id"] == 39
    assert list(written[-1])[-1] == "timing_scope"
    if mode is CaptureMode.FULL:
        assert {one["counter_id"] for one in written} == set(range(40))


def test_decoding_shows_the_field() -> None:
    """ENG-16, D-8: The typed message is there as ever; the field is among the unknown ones, and encoding them
    again gives the same bytes.
    """
    payload = native(7)
    metrics, unknown = decode_full(payload)

    assert decode(payload) == metrics
    assert metrics.worker_id == INSTANCE
    assert {name: msgspec.msgpack.decode(raw) for name, raw in unknown.items()} == {"timing_scope": "device"}
    assert encode(metrics, unknown) == payload


def test_tail_shows_the_field(tmp_path: Path) -> None:
    """ENG-16: A reader of the live stream sees it as well."""
    url = free_url()
    with publishing_at(url) as publisher:
        process = subprocess.Popen(
            [sys.executable, "-m", "forwardpass", "tail", url, "--json", "--limit", "1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        try:
            while process.poll() is None:
                publisher.send_frames(*join(publisher.seq, native(publisher.seq)))
                publisher.seq += 1
                try:
                    process.wait(0.05)
                except subprocess.TimeoutExpired:
                    assert publisher.seq < 20 * LIMIT_SECONDS
            out, _ = process.communicate(timeout=LIMIT_SECONDS)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(LIMIT_SECONDS)

    assert '"timing_scope":"device"' in out
