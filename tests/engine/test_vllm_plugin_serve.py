"""vLLM's own server with nothing but variables: recorded whole, however it ends and however many it is."""

from __future__ import annotations

import json
import math
import os
import signal
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from plain_vllm import COMMAND, PlainVllm, clean, none_left, plain, recorders
from served_vllm import called_vllm

from forwardpass.config.handover import process_start
from forwardpass.pump import TICK_SECONDS
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.usefixtures("vllm"),
]


def traced(environment: dict[str, str], folder: Path, ports: int = 1, **more: str) -> dict[str, str]:
    """Return an environment in which one variable asks for a trace, and others say where and at what port."""
    return clean(
        environment,
        DYN_FPM_TRACE="1",
        DYN_FPM_MODE="full",
        DYN_FPM_OUTPUT_PATH=str(folder / "fpm"),
        DYN_FORWARDPASS_METRIC_PORT=str(free_port(ports)),
        **more,
    )


def rows_in(folder: Path) -> list[TraceRecord]:
    return list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))


def complete(server: PlainVllm, number: int) -> dict[str, Any]:
    """Ask for one completion and return what it counts."""
    answer = server.post(
        "/v1/completions", prompt=f"{number} bebo " * (9 + number), max_tokens=20, ignore_eos=True
    )
    usage: dict[str, Any] = answer["usage"]
    return usage


def check_counters(rows: list[TraceRecord]) -> None:
    """Assert that each rank's counters have no gap."""
    for rank in {row.metrics.dp_rank for row in rows}:
        counters = [row.metrics.counter_id for row in rows if row.metrics.dp_rank == rank]
        assert counters == list(range(counters[0], counters[0] + len(counters)))


def unsent(rows: list[TraceRecord]) -> int:
    """Return how many passes an engine core that is killed may lose: what fits between two looks of its
    publisher, and the one under way. A server whose engine core does not end in time kills it after SIGTERM.
    """
    walls = [row.metrics.wall_time for row in rows if row.metrics.scheduled_requests.num_decode_requests]
    return 1 + math.ceil(TICK_SECONDS / statistics.median(walls))


def stream_until(server: PlainVllm, chunks: int, number: signal.Signals) -> int:
    """Send a signal in the middle of a long answer; return how many tokens had come, or still came."""
    seen = 0
    body = {"prompt": "a b c", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}
    with server.stream(**body) as stream:
        try:
            for _ in stream:
                seen += 1
                if seen == chunks:
                    server.process.send_signal(number)
        except OSError:  # the server is gone
            pass
    return seen


def gone(server: PlainVllm, seconds: float = 60.0) -> int:
    """Return the server's exit status once it has ended."""
    return server.process.wait(seconds)


def test_one_variable_records_a_server(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-42, ENG-44, ENG-46, D-28: Every token that the API counted is in the trace; SIGTERM in the middle
    of an answer loses nothing that was sent, and when the server is gone the trace is complete.
    """
    environment = traced(vllm_environment, tmp_path)
    with plain(tiny_model, ["--enable-prompt-tokens-details"], tmp_path, environment) as server:
        with ThreadPoolExecutor(4) as pool:
            usages = list(pool.map(lambda number: complete(server, number), range(8)))
        time.sleep(1.0)
        middle = time.time() * 1000  # divides the two parts of the trace
        time.sleep(0.5)
        running = recorders(tmp_path / "fpm")
        streamed = stream_until(server, 40, signal.SIGTERM)
        gone(server)
        left, rows = recorders(tmp_path / "fpm"), rows_in(tmp_path)
        said = server.ours()

    assert len(running) == 1
    assert left == []
    counted = [row.metrics.scheduled_requests for row in rows if row.observed_at_unix_ms < middle]
    cached = sum((usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0 for usage in usages)
    prompt = sum(usage["prompt_tokens"] for usage in usages)
    assert sum(one.sum_prefill_tokens for one in counted) == prompt - cached
    assert sum(one.num_decode_requests for one in counted) == 8 * 19
    later = [
        row
        for row in rows
        if row.observed_at_unix_ms >= middle and row.metrics.scheduled_requests.num_decode_requests
    ]
    assert streamed >= 40
    assert len(later) >= streamed - unsent(rows)
    check_counters(rows)
    assert len(said) == 3


def test_a_killed_server_leaves_its_trace_and_no_process(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-46: SIGKILL in the middle of an answer: the tokens that reached the client are in the trace."""
    environment = traced(vllm_environment, tmp_path)
    with plain(tiny_model, [], tmp_path, environment) as server:
        streamed = stream_until(server, 60, signal.SIGKILL)
        assert gone(server) == -signal.SIGKILL
        assert none_left(tmp_path / "fpm")
        rows = rows_in(tmp_path)

    assert streamed >= 60
    assert sum(row.metrics.scheduled_requests.num_decode_requests for row in rows) >= streamed - unsent(rows)
    check_counters(rows)


def test_ranks_and_api_servers_share_one_recorder(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-34, ENG-45, D-18: ``vllm serve`` with two ranks and two API servers has one recorder, which reads
    both ranks; an endpoint plugin's warning does not appear.
    """
    environment = traced(
        vllm_environment,
        tmp_path,
        ports=3,
        VLLM_CPU_OMP_THREADS_BIND="0|1",
        PYTHONPATH=called_vllm(tmp_path / "site"),
    )
    arguments = ["--data-parallel-size", "2", "--api-server-count", "2"]
    with plain(tiny_model, arguments, tmp_path, environment, program=COMMAND) as server:
        with ThreadPoolExecutor(8) as pool:
            usages = list(pool.map(lambda number: complete(server, number), range(16)))
        running = recorders(tmp_path / "fpm")
        server.process.send_signal(signal.SIGTERM)
        gone(server)
        assert none_left(tmp_path / "fpm")
        rows, said = rows_in(tmp_path), server.ours()
        words = (tmp_path / "stderr.txt").read_text() + (tmp_path / "stdout.txt").read_text()

    assert len(running) == 1
    assert {row.metrics.dp_rank for row in rows} == {0, 1}
    assert len({row.metrics.worker_id for row in rows}) == 1
    decodes = sum(row.metrics.scheduled_requests.num_decode_requests for row in rows)
    assert decodes == sum(usage["completion_tokens"] - 1 for usage in usages)
    check_counters(rows)
    assert len([line for line in said if line.startswith("forwardpass:")]) == 3
    assert "endpoint plugin" not in words.lower()


def test_what_goes_wrong_with_the_recording_does_not_stop_the_server(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-47: A recorder that is killed costs what it would have recorded, and one line, while it serves."""
    environment = traced(vllm_environment, tmp_path)
    with plain(tiny_model, [], tmp_path, environment) as server:
        complete(server, 1)
        (pid,) = recorders(tmp_path / "fpm")
        os.kill(pid, signal.SIGKILL)
        told = server.hears("ended before the engine", seconds=10)
        usage = complete(server, 2)
        server.process.send_signal(signal.SIGTERM)
        gone(server)
        said = server.ours()

    assert told
    assert usage["completion_tokens"] == 20
    assert process_start(pid) is None
    assert len([line for line in said if "ended before the engine" in line]) == 1
    assert json.dumps(said).count("Traceback") == 0
