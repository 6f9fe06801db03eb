"""Two mixture-of-experts ranks behind a real server measure themselves in lock-step; one is killed midway."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served_vllm import ServedVllm, called_vllm, served

from forwardpass.artifact.validate import validate
from forwardpass.cli.main import Exit
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = (
    *("--prefill-max-new-token-samples", "2", "--prefill-max-kv-read-token-samples", "2"),
    *("--decode-max-kv-read-token-samples", "2", "--decode-max-batch-size-samples", "3"),
    *("--prefix-max-batch-size-samples", "2", "--benchmark-warmup-iterations", "2"),
)
END_SECONDS = 200.0
ASKED = 12


class Run(NamedTuple):
    """What a server with two ranks and two API servers did."""

    folder: Path
    metrics: list[tuple[int, str]]
    first: dict[int, int]
    """Rank -> counter of its first recorded pass."""
    status: int


def two_ranks(folder: Path, environment: dict[str, str], *more: str) -> tuple[list[str], dict[str, str]]:
    """Return the arguments and the environment of a server with two ranks that measure themselves."""
    given = [
        *("--data-parallel-size", "2", "--max-num-seqs", "4", "--max-num-batched-tokens", "128"),
        *("--worker-cls", "lockstep_worker.LockstepWorker", "--benchmark-mode", "agg"),
        *("--benchmark-output-path", str(folder / "bench.json"), "--fpm-port", str(free_port(5)), *more),
    ]
    notes = folder / "notes"
    notes.mkdir()
    paths = [called_vllm(folder / "site"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    return given, environment | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "LOCKSTEP_NOTES": str(notes),
    }


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_experts: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Measure two ranks, ask both API servers for the result, let each rank answer, stop."""
    folder = tmp_path_factory.mktemp("ranks")
    recorded = ("--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(folder / "fpm"))
    given, environment = two_ranks(folder, vllm_environment, *SMALL, *recorded, "--api-server-count", "2")
    with served(tiny_experts, given, folder, environment) as server:
        metrics = [server.request("GET", "/fpm/perf_metrics") for _ in range(ASKED)]
        for rank in (0, 1):
            server.post("/v1/completions", rank=rank, prompt="bada kilo " * 9, max_tokens=4, ignore_eos=True)
        status = server.stop()
    first: dict[int, int] = {}
    for row in read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))):
        first.setdefault(row.metrics.dp_rank, row.metrics.counter_id)
    return Run(folder, metrics, first, status)


def test_both_ranks_were_measured_together(run: Run) -> None:
    """BVLLM-42, SYNC-01, PIT-21: Each rank's file has the passes of both, point by point; the files merge."""
    names = ("bench.json", "bench_dp1.json", "bench_merged.json", "bench_merged_worker_probe.json")
    found = validate([run.folder / name for name in names], strict=True)
    merged: dict[str, Any] = json.loads((run.folder / "bench_merged.json").read_bytes())

    assert [problem.text() for problem in found.problems] == []
    assert (merged["status"], merged["dp"]["ranks"]) == ("complete", [0, 1])
    points = {row["point"]["benchmark_id"] for row in merged["results"]}
    assert len(points) >= 10
    assert len(merged["results"]) == 2 * len(points)
    prompts = {
        rank: [
            row["fpms"][0]["benchmark_measurement"]["prompts"]["sha256"]
            for row in merged["results"]
            if row["point"]["dp_rank"] == rank
        ]
        for rank in (0, 1)
    }
    assert not set(prompts[0]) & set(prompts[1])  # prompts that are alike meet the same experts


def test_every_api_server_has_the_result(run: Run) -> None:
    """BVLLM-42, BVLLM-43: Two processes share the port; whichever answers, it is the same document."""
    assert {status for status, _ in run.metrics} == {200}
    assert len({text for _, text in run.metrics}) == 1
    document = json.loads(run.metrics[0][1])
    assert document["engine"]["resolution"] == "worker_probe_partial"  # vLLM returns one engine's replies
    assert document["engine"]["worker_probe"]["coverage"]["missing_dp_ranks"] == [1]


def test_both_streams_begin_afterwards(run: Run) -> None:
    """BVLLM-44, BVLLM-20: Each rank's first recorded pass is its counter 0."""
    assert run.first == {0: 0, 1: 0}
    assert run.status == 0


def test_a_killed_rank_ends_it(
    vllm: object, tiny_experts: str, vllm_environment: dict[str, str], tmp_path: Path
) -> None:
    """BVLLM-45: A rank that is killed midway ends the server within bounds; it says how far each rank was.

    vLLM kills the other ranks at once. The one that is left may just have had the time to write its file,
    which then says ``failed``, and the reason is the file's.
    """
    given, environment = two_ranks(tmp_path, vllm_environment, "--api-server-count", "1")
    server = ServedVllm(tiny_experts, given, tmp_path, environment)
    try:
        wait_for_points(server)
        os.kill(server.engine_cores()["EngineCore_DP1"], signal.SIGKILL)
        status = server.ended(END_SECONDS)
    finally:
        server.kill()

    said = [line for line in server.words.splitlines() if line.startswith("forwardpass: ")]
    assert status == Exit.PARTIAL
    written = tmp_path / "bench.json"
    assert list(tmp_path.glob("bench*.json")) in ([], [written])
    if "the engine ended before every rank had written its file" in said[-1]:
        assert re.search(r"rank 0: [\d,]+ of 159 points; rank 1: [\d,]+ of 159 points", said[-1])
    else:
        assert f"(in {written})" in said[-1]
    if written.exists():
        assert json.loads(written.read_bytes())["status"] == "failed"
    assert not any("no forward pass arrived" in line for line in said)


def wait_for_points(server: ServedVllm) -> None:
    """Wait until points are measured."""
    deadline = time.monotonic() + END_SECONDS
    while "self-benchmark: " not in server.so_far():
        assert time.monotonic() < deadline, server.so_far()[-3000:]
        assert server.process.poll() is None, server.so_far()[-3000:]
        time.sleep(0.05)
