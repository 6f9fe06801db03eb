"""The reference's own relay and trace writer beside our recorder, on one raw stream: the same rows in the
same segments, and the same messages refused.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from dynamo_zmq_peer import INSTALLED, Peer

from forwardpass.testing.ports import free_port

pytestmark = pytest.mark.skipif(not INSTALLED, reason="ai-dynamo-runtime is not installed")

LIMIT_SECONDS = 30.0
ROLL_BYTES, SEGMENTS = 3000, 3
"""Four rows of about 670 bytes fit into a segment, whatever the lengths of ids and times."""
GOOD_AFTER = 9
"""Good messages that close the stream, so that both writers have rolled past all that is odd."""


def message(counter: int, **changes: Any) -> dict[str, Any]:
    """Return a good message, every field there, but for ``changes``."""
    scheduled = {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 100 + counter,
        "var_prefill_length": 0.25,
        "sum_prefill_kv_tokens": 7,
        "num_decode_requests": 3,
        "sum_decode_kv_tokens": 9000,
        "var_decode_kv_tokens": 2 / 9,
    }
    queued = {
        "num_prefill_requests": 0,
        "sum_prefill_tokens": 0,
        "var_prefill_length": 0.0,
        "num_decode_requests": 1,
        "sum_decode_kv_tokens": 12,
        "var_decode_kv_tokens": 1e-7,
    }
    whole: dict[str, Any] = {
        "version": 1,
        "worker_id": "4192",
        "dp_rank": 0,
        "counter_id": counter,
        "wall_time": 0.0625,
        "scheduled_requests": scheduled,
        "queued_requests": queued,
    }
    for path, value in changes.items():
        parent, _, name = path.rpartition("__")
        (whole[parent] if parent else whole)[name] = value
    return whole


def without(counter: int, *names: str) -> dict[str, Any]:
    whole = message(counter)
    for path in names:
        parent, _, name = path.rpartition("__")
        del (whole[parent] if parent else whole)[name]
    return whole


MESSAGES: list[Any] = [
    message(1),
    message(2, extra={"deep": [1, "two", None, True, 1.5]}, note="ünï\u2028code \x1b[31m"),
    message(3, scheduled_requests__per_request=[[1, 2], [3, 4]]),
    message(4, wall_time=1),
    message(5, version=2),
    message(6, version=True),
    message(7, wall_time=-0.5),
    message(8, wall_time=math.nan),
    message(9, wall_time=math.inf),
    message(10, worker_id=4192),
    message(11, worker_id=""),
    message(12, dp_rank=-1),
    message(13, dp_rank=2**63),
    message(14, dp_rank=2**63 - 1),
    message(15, counter_id=1.0),
    message(16, scheduled_requests__num_decode_requests=1.0),
    message(17, scheduled_requests__sum_prefill_tokens=-1),
    message(18, scheduled_requests__var_prefill_length=3),
    message(19, scheduled_requests__var_prefill_length="0"),
    message(20, queued_requests__var_decode_kv_tokens=-1.0),
    message(21, queued_requests=None),
    message(22, scheduled_requests=[1, 2, 3]),
    without(23, "version"),
    without(24, "queued_requests__var_decode_kv_tokens"),
    without(25, "scheduled_requests"),
    message(26, blob=b"\x00\xff"),
    message(27, scheduled_requests__sum_decode_kv_tokens=2**64 - 1),
    message(28, note="x" * 5000),
    list(message(29).values()),
    b"",
    b"\xc1",
    b"\x81",
    msgpack.packb(message(30)) + b"\x00",
    "a string",
    *(message(100 + number) for number in range(GOOD_AFTER)),
]


def payloads() -> list[bytes]:
    return [each if isinstance(each, bytes) else msgpack.packb(each) for each in MESSAGES]


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def segments(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Return the rows of each segment, by its index, without what differs between two writers."""
    found = {}
    for path in folder.glob("fpm.*.jsonl.gz"):
        rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for row in rows:
            del row["timestamp"], row["event"]["observed_at_unix_ms"], row["event"]["source"]["producer_id"]
        found[int(path.name.split(".")[-3])] = rows
    return found


@pytest.fixture(scope="module", params=[SEGMENTS, 100], ids=["few segments", "all segments"])
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Path, Path]:
    """Send every message to both writers at once; return how many segments they keep, and their folders."""
    folder = tmp_path_factory.mktemp("writers")
    theirs, ours = folder / "theirs", folder / "ours"
    address = f"tcp://127.0.0.1:{free_port()}"
    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    publisher.setsockopt(zmq.XPUB_VERBOSE, 1)
    publisher.bind(address)
    settings = {
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_MODE": "full",
        "DYN_FPM_JSONL_GZ_ROLL_BYTES": str(ROLL_BYTES),
        "DYN_FPM_MAX_SEGMENTS": str(request.param),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    recorder = subprocess.Popen(
        [sys.executable, "-m", "forwardpass", "record", address, "--quiet"],
        env=kept | settings | {"DYN_FPM_OUTPUT_PATH": str(ours / "fpm")},
        stdout=subprocess.DEVNULL,
    )
    env = settings | {"DYN_FPM_OUTPUT_PATH": str(theirs / "fpm"), "DYN_FILE_KV": str(folder / "kv")}
    try:
        with Peer("file", "relay", address, env=env, endpoint="dynamo.backend.generate"):
            for _ in range(2):  # both have subscribed
                assert publisher.poll(LIMIT_SECONDS * 1000)
                assert publisher.recv()[:1] == b"\x01"
            for number, payload in enumerate(payloads()):
                publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
            last = MESSAGES[-1]
            for side in (theirs, ours):
                wait_for(lambda side=side: any(last in map(fpm, rows) for rows in segments(side).values()))  # type: ignore[misc]
        recorder.send_signal(signal.SIGTERM)
        recorder.wait(LIMIT_SECONDS)
    finally:
        if recorder.poll() is None:
            recorder.kill()
        publisher.close(0)
        context.term()
    return request.param, theirs, ours


def fpm(row: dict[str, Any]) -> Any:
    return row["event"]["fpm"]


def test_both_write_the_same_rows_into_the_same_segments(written: tuple[int, Path, Path]) -> None:
    """TRACE-10, TRACE-21, TRACE-31: Of good, odd and oversized messages both writers keep the same, every
    field in its place; they roll at the same rows, and keep the same last segments.
    """
    kept, *folders = written
    theirs, ours = map(segments, folders)
    counters = [fpm(row)["counter_id"] for _, rows in sorted(ours.items()) for row in rows]

    assert {index: [fpm(row)["counter_id"] for row in rows] for index, rows in ours.items()} == {
        index: [fpm(row)["counter_id"] for row in rows] for index, rows in theirs.items()
    }
    assert ours == theirs
    assert counters[-1] == MESSAGES[-1]["counter_id"]
    if kept == SEGMENTS:
        assert len(ours) == SEGMENTS
        assert min(ours) > 0  # some were deleted
    else:
        assert counters == [1, 2, 3, 4, 11, 14, 18, 27, 28, 30, *range(100, 100 + GOOD_AFTER)]
