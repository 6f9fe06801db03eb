"""The real ``forwardpass vllm serve``, end to end: HTTP completions in, trace rows out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served_vllm import ServedVllm, served

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord
from forwardpass.wire.keys import MAX_PRODUCER_ID

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

SHARED = "bada kilo mufa sine " * 40
REQUESTS = 12


class Run(NamedTuple):
    """What one server did, from its start to its end."""

    status: int
    words: str
    rows: list[TraceRecord]
    answers: list[dict[str, Any]]
    doctor: dict[str, Any]
    http_port: int
    fpm_port: int


def complete(server: ServedVllm, number: int) -> dict[str, Any]:
    """Ask for one completion: a shared prefix, a tail of its own, a length of its own."""
    return server.post(
        "/v1/completions",
        prompt=SHARED + f"{number} bebo " * (5 + 20 * number),
        max_tokens=150 + 3 * number,  # so long that they overlap, however late each one comes
        ignore_eos=True,
        temperature=0,
    )


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Serve, complete one request and then many at once, ask the doctor, stop with SIGTERM."""
    folder, fpm_port = tmp_path_factory.mktemp("serve"), free_port(3)
    arguments = [
        *("--max-num-seqs", "16", "--max-num-batched-tokens", "256", "--enable-prompt-tokens-details"),
        *(
            "--fpm-trace",
            "--fpm-mode",
            "full",
            "--fpm-output",
            str(folder / "fpm"),
            "--fpm-port",
            str(fpm_port),
        ),
    ]
    with served(tiny_model, arguments, folder, vllm_environment) as server:
        answers = [complete(server, 0)]
        with ThreadPoolExecutor(REQUESTS) as pool:
            answers += pool.map(lambda number: complete(server, number), range(1, REQUESTS))
        doctor = subprocess.run(
            [sys.executable, "-m", "forwardpass", "doctor", "--port", str(fpm_port), "--json"],
            capture_output=True,
            timeout=60,
            check=False,
        )
        status = server.stop()
        rows = list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))
        yield Run(status, server.words, rows, answers, json.loads(doctor.stdout), server.http_port, fpm_port)


def usage(run: Run, read: Callable[[dict[str, Any]], int]) -> int:
    """Add up a number over the usage blocks of all answers."""
    return sum(read(answer["usage"]) for answer in run.answers)


def test_the_server_stops_with_its_own_status(run: Run) -> None:
    """SIGTERM to the launcher stops vLLM in its own way, and its status is the launcher's."""
    assert run.status == 0


def test_every_token_that_the_api_counts_is_in_the_trace(run: Run) -> None:
    """ENG-02: Prefill tokens are prompt tokens without cache hits; each later token of an answer is one
    decode.
    """
    scheduled = [row.metrics.scheduled_requests for row in run.rows]
    prompt = usage(run, lambda block: block["prompt_tokens"])
    cached = usage(run, lambda block: (block["prompt_tokens_details"] or {}).get("cached_tokens") or 0)
    completion = usage(run, lambda block: block["completion_tokens"])

    assert sum(pass_.sum_prefill_tokens for pass_ in scheduled) == prompt - cached
    assert sum(pass_.num_decode_requests for pass_ in scheduled) == completion - REQUESTS
    assert cached > 0


def test_the_counters_have_no_gap(run: Run) -> None:
    """From the first row to the last, the stream is whole."""
    counters = [row.metrics.counter_id for row in run.rows]

    assert counters == list(range(counters[0], counters[0] + len(counters)))


def test_rows_say_who_they_are_from(run: Run) -> None:
    """ENG-35, TRACE-13, TRAP-07, D-29: One drawn id is the worker's and the producer's; rank 0; passes took
    time.
    """
    (worker,) = {row.metrics.worker_id for row in run.rows}
    passes = [row for row in run.rows if row.metrics.wall_time > 0]

    assert 0 < int(worker) <= MAX_PRODUCER_ID
    assert {row.source.producer_id for row in run.rows} == {worker}
    assert {row.metrics.dp_rank for row in run.rows} == {0}
    assert len(passes) >= 40
    assert f"worker id {worker}" in run.words


def test_long_prompts_came_in_chunks_beside_decodes(run: Run) -> None:
    """The load made passes of every kind, so the totals above prove something."""
    scheduled = [row.metrics.scheduled_requests for row in run.rows]

    assert max(pass_.sum_prefill_tokens for pass_ in scheduled) <= 256
    assert any(pass_.num_prefill_requests and pass_.num_decode_requests for pass_ in scheduled)
    assert any(pass_.num_decode_requests > 1 for pass_ in scheduled)
    assert any(row.metrics.queued_requests.num_prefill_requests for row in run.rows)


def test_the_doctor_finds_the_stream_healthy(run: Run) -> None:
    """Beside a running server every check of the stream is ok, and the rank is the one expected."""
    assert run.doctor["ok"] is True
    ours = [stream for stream in run.doctor["streams"] if stream["port"] == run.fpm_port]
    assert [stream["dp_rank"] for stream in ours] == [0]


def test_the_launcher_says_what_it_does_and_sums_up(run: Run) -> None:
    """RELAY-05: One line on the port and the plane (D-31) at the start, the summary at the end."""
    assert f"port {run.fpm_port}" in run.words
    assert "no event plane" in run.words
    assert "kind of pass" in run.words
    assert "forwardpass: warning" not in run.words


def test_an_embedding_server_with_a_scheduler_of_its_own_serves_without_forward_passes(
    vllm: object, tiny_model: str, vllm_environment: dict[str, str], tmp_path: Path
) -> None:
    """An unsupported role and a foreign scheduler are each named once; nothing of ours is put in; it embeds,
    and stops on SIGINT with its own status (D-17).
    """
    arguments = [
        *("--runner", "pooling", "--convert", "embed"),
        *("--scheduler-cls", "vllm.v1.core.sched.scheduler.Scheduler"),
        *("--fpm-trace", "--fpm-output", str(tmp_path / "fpm"), "--fpm-port", str(free_port())),
    ]
    with served(tiny_model, arguments, tmp_path, vllm_environment) as server:
        answer = server.post("/v1/embeddings", input="bada kilo")
        status = server.stop(signal.SIGINT)
    ours = [line for line in server.words.splitlines() if line.startswith("forwardpass: ")]

    assert len(answer["data"][0]["embedding"]) == 64
    assert status == 0
    assert ["vllm.v1.core.sched.scheduler.Scheduler is kept" in line for line in ours] == [True, False]
    assert ["role 'embedding' has no relay" in line for line in ours] == [False, True]
    assert list(tmp_path.glob("fpm*")) == []
