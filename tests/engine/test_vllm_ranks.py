"""Several data-parallel ranks behind one real server: a stream, a trace and a rank number for each."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from served_vllm import STOP_SECONDS, ServedVllm, called_vllm, served

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(500)]

REQUESTS = 16
FLUSH_SECONDS = 2.5
"""The trace is written once a second."""


class Killed(NamedTuple):
    """What was there when a rank was killed in the middle of its work, and what at the end."""

    before: list[TraceRecord]
    rows: list[TraceRecord]
    status: int
    words: str


class Run(NamedTuple):
    """What a server with two ranks did."""

    rows: list[TraceRecord]
    usage: list[dict[str, int]]
    killed: Killed | None = None


def rows_in(folder: Path) -> list[TraceRecord]:
    return list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))


def complete(server: ServedVllm, number: int, tokens: int) -> dict[str, int]:
    """Return the usage block of one completion."""
    answer = server.post(
        "/v1/completions",
        prompt=f"{number} bada kilo mufa " * (3 + number),
        max_tokens=tokens,
        ignore_eos=True,
        temperature=0,
    )
    usage: dict[str, int] = answer["usage"]
    return usage


def two_ranks(folder: Path, environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a server with two ranks, each on a core of its own."""
    given = [
        *("--data-parallel-size", "2", "--max-num-seqs", "4", "--no-enable-prefix-caching"),
        *("--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(folder / "fpm")),
        *("--fpm-port", str(free_port(4))),
    ]
    paths = [called_vllm(folder / "site"), os.environ.get("PYTHONPATH", "")]
    return given, environment | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }


@pytest.fixture(scope="module")
def dense(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Serve with two dense ranks through ``vllm serve``; then kill rank 1 in the middle of its work."""
    folder = tmp_path_factory.mktemp("dense")
    arguments, environment = two_ranks(folder, vllm_environment)
    with served(tiny_model, arguments, folder, environment) as server, ThreadPoolExecutor(REQUESTS) as pool:
        usage = list(pool.map(lambda number: complete(server, number, 20 + number), range(REQUESTS)))
        time.sleep(FLUSH_SECONDS)
        rows = rows_in(folder)
        yield Run(rows, usage, kill_rank_1(server, folder, pool))


def kill_rank_1(server: ServedVllm, folder: Path, pool: ThreadPoolExecutor) -> Killed:
    """Kill an engine core with SIGKILL while both ranks work, and wait for the server to give up."""
    for number in range(REQUESTS):
        pool.submit(complete, server, number, 1500)
    time.sleep(FLUSH_SECONDS)
    before = rows_in(folder)
    (victim,) = (pid for name, pid in server.engine_cores().items() if "DP1" in name)
    os.kill(victim, signal.SIGKILL)
    status = server.ended(STOP_SECONDS)
    return Killed(before, rows_in(folder), status, server.words)


def counters(rows: list[TraceRecord], rank: int) -> list[int]:
    """Return the counters of a rank's rows."""
    return [row.metrics.counter_id for row in rows if row.metrics.dp_rank == rank]


def passes(rows: list[TraceRecord], rank: int) -> list[TraceRecord]:
    """Return the rows of a rank that are forward passes."""
    return [row for row in rows if row.metrics.dp_rank == rank and row.metrics.wall_time > 0]


def test_each_dense_rank_has_a_stream_of_its_own(dense: Run) -> None:
    """ENG-10, TRAP-04: vLLM calls every dense rank 0; the index gives each its own port and number, and each
    counts for itself, without a gap.
    """
    assert {row.metrics.dp_rank for row in dense.rows} == {0, 1}
    assert len({row.metrics.worker_id for row in dense.rows}) == 1
    for rank in (0, 1):
        found = counters(dense.rows, rank)
        assert found == list(range(found[0], found[0] + len(found)))
        assert len(passes(dense.rows, rank)) > 10


def test_dense_ranks_add_up(dense: Run) -> None:
    """What both ranks computed together is what the clients sent and got."""
    scheduled = [row.metrics.scheduled_requests for row in dense.rows]
    prompts = sum(usage["prompt_tokens"] for usage in dense.usage)
    completions = sum(usage["completion_tokens"] for usage in dense.usage)

    assert sum(each.sum_prefill_tokens for each in scheduled) == prompts
    assert sum(each.num_decode_requests for each in scheduled) == completions - len(dense.usage)


def test_what_a_killed_engine_had_sent_is_recorded(dense: Run) -> None:
    """ENG-15: Nothing that was in the trace is lost, both ranks' rows stay whole, and the launcher ends with
    an error of the server's and its summary.
    """
    killed = dense.killed
    assert killed is not None

    for rank in (0, 1):
        found = counters(killed.rows, rank)
        assert found == list(range(found[0], found[0] + len(found)))
        assert len(found) >= len(counters(killed.before, rank)) > len(counters(dense.rows, rank))
    assert killed.status != 0
    assert "kind of pass" in killed.words
