"""NVIDIA Dynamo's simulated engine behind its own frontend, driven over HTTP, recorded by us and by it at
once; and its own receiver, reading what we publish.

These run in the engine environment, where Dynamo's mocker finds the libraries that it needs.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from reference_deployment import DYNAMO, ReferenceDeployment, deployed

from forwardpass.config.settings import Sources, TraceSettings
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.urls import open_subscriber
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.registry import TraceRegistry
from forwardpass.wire.codec import decode
from forwardpass.wire.keys import Endpoint

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(240)]

REPOSITORY = Path(__file__).resolve().parents[2]
RANKS = (0, 1)
REQUESTS = 24
LIMIT_SECONDS = 60.0


@pytest.fixture(scope="module")
def model() -> str:
    """Return the folder of a tiny model; the mocker reads its tokenizer."""
    out = REPOSITORY / "build" / "tiny-qwen3"
    script = REPOSITORY / "scripts" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=100)
    return str(out)


def wait_for(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until ``condition`` holds; ``what`` says what was seen when it does not."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.02)


class PlaneRecorder:
    """Subscribes to an event plane on a thread of its own, and traces what arrives."""

    def __init__(self, url: str, prefix: Path) -> None:
        self.newest: dict[int, int] = {}
        """Rank -> the counter of its newest message."""
        self.publishers: set[int] = set()
        self._url, self._prefix = url, prefix
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        sources = Sources(
            {"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": "full", "DYN_FPM_OUTPUT_PATH": str(self._prefix)}
        )
        registry = TraceRegistry(TraceSettings.load(sources))
        handle = registry.acquire("ours", Endpoint())
        assert handle is not None
        subscriber = await open_subscriber(self._url, Endpoint(), context=PlaneContext(Sources({})))
        task = asyncio.get_running_loop().create_task(self._take(subscriber, handle))
        while not self._stop.is_set():
            await asyncio.sleep(0.02)
        await subscriber.close()
        await task
        handle.release(10.0)

    async def _take(self, subscriber: Any, handle: Any) -> None:
        async for message in subscriber:
            handle.offer(message.payload, message.received_at_ms)
            metrics = decode(message.payload)
            assert metrics is not None
            self.newest[metrics.dp_rank] = metrics.counter_id
            self.publishers.add(message.publisher_id)

    def stop(self) -> list[TraceRecord]:
        """Stop, and return what was recorded."""
        self._stop.set()
        self._thread.join()
        return list(read_trace(sorted(self._prefix.parent.glob(f"{self._prefix.name}.*.jsonl.gz"))))


class Run(NamedTuple):
    """What was asked of the reference's deployment, and what both sides recorded."""

    answers: list[dict[str, Any]]
    theirs: list[TraceRecord]
    ours: list[TraceRecord]
    publishers: set[int]


def ask(deployment: ReferenceDeployment, number: int) -> dict[str, Any]:
    """Ask for one completion whose size follows from its number."""
    return deployment.complete("bada kilo mufa sine " * (3 + 7 * number), 8 + 3 * number)


@pytest.fixture(scope="module")
def run(model: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Let two simulated ranks of the reference answer requests while both sides record."""
    folder = tmp_path_factory.mktemp("deployed")
    options = ("--data-parallel-size", "2", "--max-num-seqs", "4", "--num-gpu-blocks-override", "256")
    with deployed(
        folder, model, *options, "--block-size", "16", "--max-num-batched-tokens", "256"
    ) as deployment:
        recorder = PlaneRecorder(f"zmq+file:{folder / 'kv'}", folder / "ours")
        try:
            wait_for(lambda: len(recorder.newest) == 2, deployment.words)  # each rank's first heartbeat
            with ThreadPoolExecutor(REQUESTS) as pool:
                answers = list(pool.map(lambda number: ask(deployment, number), range(REQUESTS)))
            after = dict(recorder.newest)
            wait_for(lambda: all(recorder.newest[rank] > after[rank] + 1 for rank in RANKS), deployment.words)
        finally:
            ours = recorder.stop()
    return Run(answers, deployment.rows(), ours, recorder.publishers)


def of_rank(rows: list[TraceRecord], rank: int) -> list[TraceRecord]:
    return [row for row in rows if row.metrics.dp_rank == rank]


@pytest.mark.parametrize("rank", RANKS)
def test_both_sides_record_the_same_rows(run: Run, rank: int) -> None:
    """From the first message that reached us on, our trace has the reference's rows, each with
    every field of it and in its order, and none besides.
    """
    ours = of_rank(run.ours, rank)
    first, last = ours[0].metrics.counter_id, ours[-1].metrics.counter_id
    theirs = [row for row in of_rank(run.theirs, rank) if first <= row.metrics.counter_id <= last]

    assert len(theirs) > 30
    assert [row.metrics for row in ours] == [row.metrics for row in theirs]
    assert {row.metrics.worker_id for row in ours} == {row.source.producer_id for row in theirs}


def test_the_rows_are_those_of_the_requests(run: Run) -> None:
    """What both sides recorded has every prompt token that the frontend counted in its answers and did not
    find in the cache, and a decode for every token but the first of each answer.
    """
    scheduled = [row.metrics.scheduled_requests for row in run.ours]
    usage = [answer["usage"] for answer in run.answers]
    computed = sum(each["prompt_tokens"] - each["prompt_tokens_details"]["cached_tokens"] for each in usage)
    generated = sum(each["completion_tokens"] - 1 for each in usage)

    assert len(run.answers) == REQUESTS
    assert sum(each.sum_prefill_tokens for each in scheduled) == computed
    assert sum(each.num_decode_requests for each in scheduled) == generated
    assert len(run.publishers) >= 1


@pytest.fixture(scope="module")
def received(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[list[dict[str, Any]], list[TraceRecord]]:
    """Let our simulated engine be recorded to a trace and to a plane that the reference's receiver reads."""
    folder = tmp_path_factory.mktemp("received")
    port, kv = free_port(3), folder / "kv"
    deployment = ReferenceDeployment(folder, "", {}, {})
    plane = {"DYN_FILE_KV": str(kv), "DYN_EVENT_PLANE_HOST": "127.0.0.1"}
    ours = [
        [*("forwardpass", "mock", "--ranks", "2", "--port", str(port), "--rate", "20")],
        [
            *("forwardpass", "record", f"tcp://127.0.0.1:{port}", "--ranks", "2", "--quiet"),
            *("--output", str(folder / "ours"), "--plane", f"zmq+file:{kv}"),
        ],
    ]
    receiver = deployment.start(
        *("dynamo.common.recv_forward_pass_metrics", "--discovery-backend", "file", "--request-plane", "tcp"),
        *("--output", str(folder / "received.jsonl")),
    )
    started = [
        subprocess.Popen(
            [sys.executable, "-m", *command], env=deployment.base | plane, stdout=subprocess.DEVNULL
        )
        for command in ours
    ]

    def lines() -> list[str]:
        path = folder / "received.jsonl"
        return path.read_text().splitlines() if path.exists() else []

    try:
        wait_for(lambda: len(lines()) > 300, deployment.words)
    finally:
        for process in reversed(started):  # the recorder before the engine: nothing may be lost between them
            process.send_signal(signal.SIGTERM)
            process.wait(30)
        receiver.send_signal(signal.SIGINT)
        receiver.wait(30)
        deployment.stop()
    return (
        [json.loads(line)["metrics"] for line in lines()],
        list(read_trace(sorted(folder.glob("ours.*.jsonl.gz")))),
    )


@pytest.mark.parametrize("rank", RANKS)
def test_the_references_receiver_gets_what_we_traced(
    received: tuple[list[dict[str, Any]], list[TraceRecord]], rank: int
) -> None:
    """A receiver of the reference that finds our publishers by its own discovery writes down the rows that
    our trace has, without a hole and field by field.
    """
    theirs = [metrics for metrics in received[0] if metrics["dp_rank"] == rank]
    ours = {row.metrics.counter_id: row.metrics for row in of_rank(received[1], rank)}
    counters = [metrics["counter_id"] for metrics in theirs]

    assert len(counters) > 100
    assert counters == list(range(counters[0], counters[0] + len(counters)))
    for metrics in theirs:
        row = ours[metrics["counter_id"]]
        assert metrics["wall_time"] == row.wall_time
        assert metrics["worker_id"] == row.worker_id
        for name in ("scheduled_requests", "queued_requests"):
            fields = getattr(row, name)
            assert metrics[name] == {field: getattr(fields, field) for field in fields.__struct_fields__}


def test_the_reference_is_the_real_one() -> None:
    """The folder that these tests run is Dynamo's release, with its own runtime inside."""
    assert (DYNAMO / "ai_dynamo_runtime-1.6.1.dist-info").is_dir()
    assert list((DYNAMO / "dynamo").glob("_core*.so"))
