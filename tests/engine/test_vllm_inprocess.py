"""The source inside a real vLLM engine: what a plain subscriber gets is what the engine did."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stream_subscriber import Subscriber

from forwardpass.testing.ports import free_port
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parent / "inprocess_run.py"
LIMIT_SECONDS = 350
IDLE_SECONDS = 2.4


class Run:
    """What the cases said and what their streams carried."""

    def __init__(self, said: dict[str, dict[str, Any]], streams: dict[str, Subscriber], log: str) -> None:
        self.said = said
        self.streams = streams
        self.log = log


@pytest.fixture(scope="module")
def run(vllm: object, tiny_model: str, vllm_environment: dict[str, str]) -> Run:
    """Serve the same prompts in every case, one engine after the other in one process."""
    ours = free_port(3)
    overlapped, taken = ours + 1, ours + 2

    def case(name: str, port: int = 0, **more: Any) -> dict[str, Any]:
        env = {"DYN_FORWARDPASS_METRIC_PORT": str(port or ""), "FORWARDPASS_STRICT": ""}
        return {"name": name, "scheduler": "ours", "env": env | more.pop("env", {}), **more}

    cases = [
        case("stock", scheduler="stock"),
        case("ours", ours, settle_seconds=1.0, idle_seconds=IDLE_SECONDS, env={"DYN_FPM_WORKER_ID": "4711"}),
        case("failing", scheduler="failing"),
        case("taken", taken),
        case("strict", taken, env={"FORWARDPASS_STRICT": "1"}),
        case("async", overlapped, settle_seconds=1.0, leave_running=True, **{"async": True}),
    ]
    streams = {"ours": Subscriber(ours), "async": Subscriber(overlapped)}
    with socket.create_server(("127.0.0.1", taken)):
        done = subprocess.run(
            [sys.executable, str(SCRIPT), tiny_model, *map(json.dumps, cases)],
            env=vllm_environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
            capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
        )  # fmt: skip
    for stream in streams.values():
        stream.stop()
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    said = {each["name"]: each for each in map(json.loads, lines)}
    assert done.returncode == 0, done.stderr[-3000:]
    return Run(said, streams, done.stderr)


STREAMED = pytest.mark.parametrize("name", ["ours", "async"])


@pytest.mark.parametrize("name", ["ours", "failing", "taken", "async"])
def test_the_tokens_are_those_of_stock_vllm(run: Run, name: str) -> None:
    """TRAP-01: Watched or not, with a publisher that fails at every call, or with the port taken (D-13): the
    engine serves, and serves the same.
    """
    assert run.said[name]["outputs"] == run.said["stock"]["outputs"]
    assert len(run.said["stock"]["outputs"]) == 27


@STREAMED
def test_passes_add_up_to_prompts_and_outputs(run: Run, name: str) -> None:
    """Prefill tokens and prefix hits are the prompts; every generated token is a decode, but for the one
    that each prompt's last pass gives.
    """
    said, scheduled = run.said[name], [each.scheduled_requests for each in run.streams[name].passes]
    prompts, cached = sum(said["prompts"]), sum(said["cached"])
    outputs = sum(map(len, said["outputs"]))

    assert cached > 0
    assert sum(each.sum_prefill_tokens for each in scheduled) == prompts - cached
    assert sum(each.num_decode_requests for each in scheduled) == outputs - len(said["outputs"])
    assert sum(each.num_prefill_requests for each in scheduled) > len(said["prompts"])  # chunks


def test_the_stream_is_sync_or_async_as_the_case_says(run: Run) -> None:
    """The asynchronous case really had two batches in flight."""
    assert (run.said["ours"]["async"], run.said["async"]["async"]) == (False, True)
    assert run.said["ours"]["scheduler"] == "ForwardPassScheduler"
    assert run.said["stock"]["scheduler"] == "Scheduler"


@STREAMED
def test_sequence_and_counter_agree_and_have_no_gap(run: Run, name: str) -> None:
    """ENG-14: Every number from the first message seen is there, and frame 2 says what the payload says; so
    the last passes arrived too, although the asynchronous engine's process ended without a shutdown.
    """
    numbers = [seq for seq, _ in run.streams[name].messages]

    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers == [metrics.counter_id for _, metrics in run.streams[name].messages]


@STREAMED
def test_every_message_satisfies_the_strict_rules(run: Run, name: str) -> None:
    """What the engine emits passes the checks of the trace; times are those of passes, not of idling."""
    assert run.streams[name].refused == []
    times = sorted(metrics.wall_time for metrics in run.streams[name].passes)
    assert 0 < times[0] <= times[len(times) // 2] < 0.5


def test_prompts_that_wait_are_queued(run: Run) -> None:
    """Twelve prompts for eight slots: at first some wait, at the end none does."""
    queued = [metrics.queued_requests for metrics in run.streams["ours"].passes]

    assert max(each.num_prefill_requests for each in queued) >= 4
    assert queued[-1] == QueuedRequestMetrics()


def test_an_idle_engine_sends_heartbeats_of_an_empty_queue(run: Run) -> None:
    """After the last request the stream speaks once a second, with nothing scheduled and nothing queued."""
    after = run.streams["ours"].messages[-2:]

    assert [metrics.wall_time for _, metrics in after] == [0.0, 0.0]
    for metrics in run.streams["ours"].heartbeats:
        assert metrics.scheduled_requests == ScheduledRequestMetrics()
    assert after[-1][1].queued_requests == QueuedRequestMetrics()


def test_messages_carry_the_worker_id(run: Run) -> None:
    """The launcher's variable is in passes and heartbeats alike."""
    assert {metrics.worker_id for _, metrics in run.streams["ours"].messages} == {"4711"}


def test_failures_are_counted_and_said_once(run: Run) -> None:
    """A publisher that fails at every pass costs a count per pass and a line per kind."""
    assert run.said["failing"]["failures"] > 100
    assert run.log.count("internal error in finished") == 1


def test_a_taken_port_is_said_in_one_line(run: Run) -> None:
    """The line names the port, the variable and the foreign process that has the port: this one; the engine
    has a recorder that does nothing (D-13).
    """
    lines = [line for line in run.log.splitlines() if "Forward Pass Metrics are off for rank 0: port" in line]

    assert run.said["taken"]["failures"] is None
    assert len(lines) == 1
    assert "DYN_FORWARDPASS_METRIC_PORT" in lines[0]
    assert f"(pid {os.getpid()})" in lines[0]


def test_strict_makes_a_taken_port_fatal(run: Run) -> None:
    """With FORWARDPASS_STRICT the engine does not start."""
    assert run.said["strict"]["error"].startswith("PortUnavailable")
