"""Our publisher without a raw stream against the reference's: the same calls, the same bytes and rows."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from forwardpass.config.settings import CaptureMode, PublisherSettings, TraceSettings
from forwardpass.plane import memory
from forwardpass.plane.base import PlaneContext
from forwardpass.relay.direct import FpmDirectPublisher
from forwardpass.trace.registry import TraceRegistry
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import Endpoint

CALLS: list[dict[str, Any]] = [
    {
        "dp_rank": rank,
        "scheduled_num_prefill_requests": number % 3,
        "scheduled_sum_prefill_tokens": 300 * number,
        "scheduled_sum_prefill_kv_tokens": 64,
        "scheduled_num_decode_requests": 3,
        "scheduled_sum_decode_kv_tokens": 900_000 * number,
        "queued_num_prefill_requests": 2,
        "queued_sum_prefill_tokens": 70_000,
        "queued_num_decode_requests": number,
        "queued_sum_decode_kv_tokens": 5_000_000_000,
        "wall_time_secs": 0.0125 * number,
    }
    for number, rank in enumerate((0, 1, 1, 0, 1, 0), start=1)
]

REFERENCE = textwrap.dedent(
    """
    import asyncio, glob, gzip, json, os, sys, time
    from dynamo._core import DistributedRuntime, FpmDirectPublisher, FpmEventSubscriber

    ZERO = b"wall_time\\xcb" + bytes(8)

    def written():
        paths = glob.glob(os.environ["DYN_FPM_OUTPUT_PATH"] + ".*.jsonl.gz")
        lines = [line for path in paths for line in gzip.open(path, "rt")]
        return len([line for line in lines if '"wall_time":0.0,' not in line])

    async def main():
        runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
        endpoint = runtime.endpoint("ns.part.gen")
        publisher = await asyncio.to_thread(FpmDirectPublisher, endpoint, "4192", 2)
        subscriber = await asyncio.to_thread(FpmEventSubscriber, endpoint)
        # The subscription takes a moment: heartbeats tell when it stands.
        payloads = [await asyncio.to_thread(subscriber.recv)]
        calls = json.loads(sys.argv[1])
        for call in calls:
            publisher.publish(**call)
        while len([one for one in payloads if ZERO not in one]) < len(calls):
            payloads.append(await asyncio.to_thread(subscriber.recv))
        print("ANSWER", json.dumps([payload.hex() for payload in payloads]))
        try:
            publisher.publish(**{**calls[0], "dp_rank": 2})
        except Exception as error:
            print("REFUSED", type(error).__name__)
        deadline = time.monotonic() + 20
        while written() < len(calls) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        subscriber.shutdown()
        publisher.shutdown()
        runtime.shutdown()

    asyncio.run(main())
    """
)


def of_the_reference(folder: Path) -> tuple[list[bytes], list[dict[str, Any]], str]:
    """Return the payloads that the reference published for the calls, its rows, and its error."""
    environment = {
        **os.environ,
        "DYN_FILE_KV": str(folder / "kv"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_MODE": "full",
        "DYN_FPM_OUTPUT_PATH": str(folder / "reference"),
    }
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, json.dumps(CALLS)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = [line.partition(" ")[::2] for line in done.stdout.splitlines()]
    answer = next(text for word, text in lines if word == "ANSWER")
    refused = next(text for word, text in lines if word == "REFUSED")
    return [bytes.fromhex(text) for text in json.loads(answer)], rows(folder, "reference"), refused


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return the messages of a trace that are no heartbeats."""
    texts = [
        line
        for path in folder.glob(f"{name}.*.jsonl.gz")
        for line in gzip.open(path, "rt")  # noqa: SIM115
    ]
    messages = [json.loads(text)["event"]["fpm"] for text in texts]
    return [message for message in messages if message["wall_time"] > 0]


def of_ours(
    folder: Path, before: tuple[int, ...]
) -> tuple[list[bytes], list[dict[str, Any]], type[Exception]]:
    """Return the same of ours; of each rank so many heartbeats as ``before`` says went first."""

    async def run() -> list[bytes]:
        url, endpoint = "memory:reference-direct", Endpoint("ns", "part", "gen")
        subscriber = await memory.open_subscriber(url, endpoint, PlaneContext())
        settings = TraceSettings(output_prefix=str(folder / "ours"), mode=CaptureMode.FULL)
        trace = TraceRegistry(settings).acquire("77", endpoint)
        assert trace is not None
        publisher = FpmDirectPublisher(
            endpoint, "4192", 2, trace=trace, plane_url=url,
            settings=PublisherSettings(heartbeat_interval_seconds=300.0),
        )  # fmt: skip
        await publisher.start()
        for rank, beats in enumerate(before):
            for _ in range(beats):
                publisher.publish(**{**dict.fromkeys(CALLS[0], 0), "dp_rank": rank})
        for call in CALLS:
            publisher.publish(**call)
        with pytest.raises(RuntimeError) as caught:
            publisher.publish(**{**CALLS[0], "dp_rank": 2})
        refused.append(type(caught.value))
        await publisher.stop(20.0)
        trace.release(20.0)
        await subscriber.close()
        return [message.payload async for message in subscriber]

    refused: list[type[Exception]] = []
    payloads = asyncio.run(run())
    return payloads, rows(folder, "ours"), refused[0]


def by_rank(payloads: list[bytes]) -> list[bytes]:
    """Return payloads in the order of the ranks, those of one in their own order."""
    return sorted(payloads, key=lambda payload: decode_strict(payload).dp_rank)


def rank_of(row: dict[str, Any]) -> int:
    """Return whose row it is."""
    rank: int = row["dp_rank"]
    return rank


def test_the_same_calls_give_the_same_bytes_and_rows(tmp_path: Path) -> None:
    """TRT-06, TRT-07: Payloads on the plane are the reference's byte for byte, and so are the rows of the
    trace; the counters begin at 1, and a rank too many is the same error.
    """
    pytest.importorskip("dynamo._core")
    theirs, their_rows, their_error = of_the_reference(tmp_path)
    theirs = [payload for payload in theirs if decode_strict(payload).wall_time > 0]
    beats = tuple(
        min(row["counter_id"] for row in their_rows if row["dp_rank"] == rank) - 1 for rank in (0, 1)
    )
    ours, our_rows, our_error = of_ours(tmp_path, beats)

    # The reference has a queue per rank, so only the order within one is its.
    assert by_rank(ours[-len(CALLS) :]) == by_rank(theirs)
    assert sorted(our_rows, key=rank_of) == sorted(their_rows, key=rank_of)
    assert our_error.__name__ == their_error
