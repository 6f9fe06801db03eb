"""The reference's own raw frames through our relay and trace: the rows that it wrote beside them."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from relay_peers import LIMIT_SECONDS, PlainPublisher, free_url, relaying, until, until_connected
from trace_files import PRODUCER, rows, trace_settings

from forwardpass.plane import memory
from forwardpass.plane.base import PlaneContext
from forwardpass.relay.targets import rank_url
from forwardpass.trace.registry import TraceRegistry
from forwardpass.wire.keys import Endpoint

GOLDEN = Path(__file__).parent.parent / "golden"
NEWER = ("version", "counter_id")
"""Fields that the earliest publishers did not have."""
_planes = itertools.count()
WITH_RAW_FRAMES = ["vllm-cpu-full", "vllm-cpu-full-dp2", "vllm-cpu-full-preempt", "vllm-cpu-async-full"]


def lines(path: Path) -> list[str]:
    """Return the lines of a compressed file."""
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def captured(folder: str) -> dict[object, list[list[bytes]]]:
    """Return the captured messages of each port or endpoint, in order."""
    streams: dict[object, list[list[bytes]]] = {}
    for line in lines(GOLDEN / folder / "raw_zmq_frames.jsonl.gz"):
        capture = json.loads(line)
        source = capture.get("port", capture.get("endpoint"))
        streams.setdefault(source, []).append([bytes.fromhex(frame) for frame in capture["frames"]])
    return streams


def reference_rows(folder: str) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Return the reference's rows by worker, rank and counter."""
    written = {}
    for path in (GOLDEN / folder).glob("fpm.*.jsonl.gz"):
        for line in lines(path):
            fpm = json.loads(line)["event"]["fpm"]
            written[(fpm["worker_id"], fpm["dp_rank"], fpm["counter_id"])] = fpm
    return written


def replay(folder: str, into: Path) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Send each captured stream from a socket; return rows, the plane's payloads, frames sent."""
    return replay_messages(list(captured(folder).values()), None, into)


def replay_messages(
    streams: list[list[list[bytes]]], base: str | None, into: Path
) -> tuple[list[dict[str, Any]], list[bytes], int]:
    """Send streams from sockets at ``base`` and their number, or at free ports; as ``replay``."""
    endpoint = Endpoint("golden", "c", "e")
    plane = f"memory:golden-{next(_planes)}"

    async def run() -> list[bytes]:
        urls = [free_url() if base is None else rank_url(base, rank) for rank in range(len(streams))]
        subscriber = await memory.open_subscriber(plane, endpoint, PlaneContext())
        publishers = [PlainPublisher(url) for url in urls]
        trace = TraceRegistry(trace_settings(into)).acquire(PRODUCER, endpoint)
        async with relaying(urls, trace, plane_url=plane, endpoint=endpoint) as group:
            await until_connected(group, publishers)
            before = [stats.received for stats in group.stats()]
            for publisher, messages in zip(publishers, streams, strict=True):
                for frames in messages:
                    publisher.send_frames(*frames)
            expected = [count + len(messages) for count, messages in zip(before, streams, strict=True)]
            await until(lambda: [stats.received for stats in group.stats()] == expected)
            await group.stop(LIMIT_SECONDS)
            assert [stats.bad_frames for stats in group.stats()] == [0] * len(streams)
        assert trace is not None
        trace.release(LIMIT_SECONDS)
        for publisher in publishers:
            publisher.close()
        await subscriber.close()
        return [message.payload async for message in subscriber]

    published = asyncio.run(run())
    made = [row["event"]["fpm"] for row in rows(into) if row["event"]["fpm"]["worker_id"] != "w"]
    return made, published, sum(map(len, streams))


@pytest.mark.parametrize("folder", WITH_RAW_FRAMES)
def test_same_rows_as_the_reference(folder: str, tmp_path: Path) -> None:
    """TRACE-10, TRACE-20: Each captured frame becomes the row that the reference wrote for it: fields, order
    and values.
    """
    made, published, sent = replay(folder, tmp_path)
    reference = reference_rows(folder)

    assert len(made) == sent > 100
    for fpm in made:
        expected = reference[(fpm["worker_id"], fpm["dp_rank"], fpm["counter_id"])]
        assert json.dumps(fpm) == json.dumps(expected)  # as text: key order, and 1 is not 1.0
    payloads = [frames[2] for messages in captured(folder).values() for frames in messages]
    assert sorted(payloads) == sorted(payload for payload in published if payload in set(payloads))


def test_sglang_frames(tmp_path: Path) -> None:
    """Frames of SGLang's own publisher, which no reference recorded, become one row each."""
    made, _, sent = replay("sglang-cpu-raw", tmp_path)

    assert len(made) == sent > 100
    assert {fpm["worker_id"] for fpm in made} == {"w-sgl"}
    assert [fpm["counter_id"] for fpm in made] == sorted(fpm["counter_id"] for fpm in made)


def test_frames_of_a_publisher_without_version_and_counter(tmp_path: Path) -> None:
    """SGL-05, RELAY-02: Of SGLang's frames without the two fields the trace has the same rows, numbered by
    the sequence frames, and the plane has the bytes as they were sent.
    """
    sent = [frames for messages in captured("sglang-cpu-raw").values() for frames in messages]
    fields = [msgspec.msgpack.decode(frames[2]) for frames in sent]
    old = [
        [b"", frames[1], msgspec.msgpack.encode({k: v for k, v in one.items() if k not in NEWER})]
        for frames, one in zip(sent, fields, strict=True)
    ]
    made, published, _ = replay_messages([old], f"ipc://{tmp_path}/s", tmp_path)

    assert json.dumps(made) == json.dumps(fields)
    assert published[-len(old) :] == [frames[2] for frames in old]


def test_the_array_form_is_no_message(tmp_path: Path) -> None:
    """SGL-06: An array is relayed like any bytes, and refused by the trace."""
    array = msgspec.msgpack.encode([1, "w-sgl", 0, 5, 0.1, [0] * 7, [0] * 6])
    made, published, _ = replay_messages([[[b"", bytes(8), array]]], f"ipc://{tmp_path}/s", tmp_path)

    assert made == []
    assert published[-1] == array


def test_recorder_output_and_trace_of_sglang_agree_with_ours(tmp_path: Path) -> None:
    """TRACE-10: What the reference's recorder got of SGLang, sent over an IPC socket, becomes the rows that
    the reference's trace has.
    """
    recorded = [
        json.loads(line)["metrics"] for line in lines(GOLDEN / "sglang-cpu-dynamo-full" / "recv_out.jsonl.gz")
    ]
    messages = [[b"", fpm["counter_id"].to_bytes(8, "big"), msgspec.msgpack.encode(fpm)] for fpm in recorded]
    made, _, sent = replay_messages([messages], f"ipc://{tmp_path}/s", tmp_path)
    reference = reference_rows("sglang-cpu-dynamo-full")

    assert len(made) == sent > 1000
    for fpm in made:
        assert json.dumps(fpm) == json.dumps(reference[(fpm["worker_id"], fpm["dp_rank"], fpm["counter_id"])])
