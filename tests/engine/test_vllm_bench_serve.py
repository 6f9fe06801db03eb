"""A real vLLM server measures its engine before it serves: ``forwardpass vllm serve --benchmark-mode``."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from served_vllm import ServedVllm, served

from forwardpass.artifact.validate import validate
from forwardpass.cli.main import Exit
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

SMALL = (
    *("--prefill-max-new-token-samples", "3", "--prefill-max-kv-read-token-samples", "3"),
    *("--decode-max-kv-read-token-samples", "3", "--decode-max-batch-size-samples", "4"),
    *("--prefix-max-batch-size-samples", "2", "--benchmark-warmup-iterations", "2"),
)
ENGINE = ("--max-num-seqs", "8", "--max-num-batched-tokens", "128", "--enable-prompt-tokens-details")
PROMPT = "bada kilo mufa " * 30
TOO_LONG = {"batch_size": 1, "total_prefill_tokens": 4000, "total_kv_read_tokens": 0}
END_SECONDS = 200.0


class Run(NamedTuple):
    """What one server did after it had measured its engine."""

    folder: Path
    metrics: tuple[int, str]
    other_path: tuple[int, str]
    posted: tuple[int, str]
    usage: dict[str, Any]
    rows: list[TraceRecord]
    status: int
    words: str


def arguments(folder: Path, *more: str, mode: str = "agg") -> list[str]:
    """Return the arguments of a server that measures its engine."""
    return [
        *(*ENGINE, "--benchmark-mode", mode, *SMALL),
        *("--benchmark-output-path", str(folder / "bench.json"), *more),
    ]


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Measure, ask for the result in every way, complete one request, stop."""
    folder, port = tmp_path_factory.mktemp("measured"), free_port(3)
    (folder / "bench_merged.json").write_text("of an earlier run")
    given = arguments(
        folder,
        *("--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(folder / "fpm"), "--fpm-port", str(port)),
    )
    environment = vllm_environment | {
        "DYN_FPM_GC_POLICY": "freeze"
    }  # a worker that kept it would end the server
    with served(tiny_model, given, folder, environment) as server:
        metrics = server.request("GET", "/fpm/perf_metrics")
        other, posted = (
            server.request("GET", "/get_perf_metrics"),
            server.request("POST", "/fpm/perf_metrics"),
        )
        answer = server.post("/v1/completions", prompt=PROMPT, max_tokens=5, ignore_eos=True, temperature=0)
        status = server.stop()
        rows = list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))
        yield Run(folder, metrics, other, posted, answer["usage"], rows, status, server.words)


def test_the_files_are_valid_to_a_strict_reader(run: Run) -> None:
    """BVLLM-40, BVLLM-42: Rank file, merged file and sidecar, of one run, with nothing wrong."""
    names = ("bench.json", "bench_merged.json", "bench_merged_worker_probe.json")
    found = validate([run.folder / name for name in names], strict=True)

    assert [problem.text() for problem in found.problems] == []
    merged = json.loads((run.folder / "bench_merged.json").read_bytes())
    assert (merged["status"], merged["usable"]) == ("complete", True)
    assert merged["coverage"]["completed_points"] == merged["coverage"]["expected_points"] >= 20


def test_passes_say_which_graph_they_ran_in(run: Run) -> None:
    """BVLLM-40, BVLLM-31: Graph statistics were on while it was measured: without a graph they say NONE."""
    rank = json.loads((run.folder / "bench.json").read_bytes())
    samples = [
        sample["benchmark_sample"]["cudagraph"]
        for row in rank["results"]
        for sample in row["fpms"][0]["benchmark_measurement"]["raw_fpms"]
    ]

    assert {(sample["status"], sample["runtime_mode"]) for sample in samples} == {("observed", "NONE")}


def test_the_result_is_served(run: Run) -> None:
    """BVLLM-43: The merged document with what the workers said; both paths; nothing but GET."""
    status, text = run.metrics
    document = json.loads(text)
    sidecar = json.loads((run.folder / "bench_merged_worker_probe.json").read_bytes())
    on_disk = json.loads((run.folder / "bench_merged.json").read_bytes())

    assert (status, run.other_path) == (200, (200, text))
    assert document["engine"]["worker_probe"] == sidecar["merged"]["worker_probe"]
    assert document["engine"]["attention"]["backend_resolved"] == "CPU_ATTN"
    assert on_disk["engine"]["resolution"] == "pending_worker_probe"
    assert document["results"] == on_disk["results"]
    assert run.posted[0] == 405


def test_nothing_is_left_of_it(run: Run) -> None:
    """BVLLM-44, BVLLM-20, BVLLM-21, PIT-43: The first request is served from an empty cache, in passes 0 and
    on; every worker has said that its collector is as before.
    """
    cached = (run.usage["prompt_tokens_details"] or {}).get("cached_tokens") or 0
    prefills = sum(row.metrics.scheduled_requests.sum_prefill_tokens for row in run.rows)

    assert cached == 0
    assert prefills == run.usage["prompt_tokens"]
    assert run.rows[0].metrics.counter_id == 0
    assert "may go on recording" not in run.words
    assert run.status == 0


def test_it_says_what_it_did(run: Run) -> None:
    """One line on how it ended and where the result is."""
    said = [line for line in run.words.splitlines() if line.startswith("self-benchmark complete: ")]

    assert len(said) == 1
    assert str(run.folder / "bench_merged.json") in said[0]
    assert "/fpm/perf_metrics" in said[0]


def started(model: str, given: list[str], folder: Path, environment: dict[str, str]) -> ServedVllm:
    return ServedVllm(model, given, folder, environment)


def last_words(server: ServedVllm) -> str:
    """Return the last thing that the launcher said."""
    said = [line for line in server.words.splitlines() if line.startswith("forwardpass: ")]
    return said[-1].removeprefix("forwardpass: ")


def still_there(server: ServedVllm) -> dict[int, int]:
    """Return what is left of the session; Python's own helper processes end a moment after their parent."""
    deadline = time.monotonic() + 10
    while server.session() and time.monotonic() < deadline:
        time.sleep(0.1)
    return server.session()


@pytest.fixture(scope="module")
def useless(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[ServedVllm, Path, ServedVllm, Path]]:
    """Start two servers at once with a point that no engine of theirs takes; the second may serve anyway."""
    folders = (tmp_path_factory.mktemp("stops"), tmp_path_factory.mktemp("serves"))
    points = {"schema_version": 1, "prefill": [TOO_LONG], "decode": []}
    servers = []
    try:
        for folder, on_failure in zip(folders, ("stop", "serve"), strict=True):
            (folder / "points.json").write_text(json.dumps(points))
            more = ("--benchmark-points-file", str(folder / "points.json"))
            more += ("--benchmark-on-failure", on_failure, "--fpm-port", str(free_port(3)))
            given = arguments(folder, *more, mode="prefill")
            servers.append(started(tiny_model, given, folder, vllm_environment))
        yield servers[0], folders[0], servers[1], folders[1]
    finally:
        for server in servers:
            server.kill()


def test_a_run_without_a_result_is_not_served(useless: tuple[ServedVllm, Path, ServedVllm, Path]) -> None:
    """BVLLM-45, BVLLM-22: A point that cannot be measured ends the server, which says which point and why."""
    server, folder, _, _ = useless
    status = server.ended(END_SECONDS)
    last = last_words(server)

    assert status == Exit.PARTIAL
    assert last.startswith("the engine was not measured, so the server did not start: ")
    assert "prefill[0]" in last
    assert "4000" in last
    assert "Traceback" not in server.words
    assert json.loads((folder / "bench.json").read_bytes())["status"] == "failed"
    assert not (folder / "bench_merged.json").exists()
    assert not still_there(server)


def test_it_may_be_served_all_the_same(useless: tuple[ServedVllm, Path, ServedVllm, Path]) -> None:
    """BVLLM-45, BVLLM-43: With --benchmark-on-failure=serve requests are answered; the result is an error."""
    _, _, server, folder = useless
    server.wait_until_up()
    status, text = server.request("GET", "/fpm/perf_metrics")
    answer = server.post("/v1/completions", prompt=PROMPT, max_tokens=5, ignore_eos=True, temperature=0)
    stopped = server.stop()

    assert (status, json.loads(text)["status"]) == (404, "error")
    assert "prefill[0]" in json.loads(text)["message"]
    assert answer["usage"]["completion_tokens"] == 5
    assert "serving all the same" in server.words
    assert stopped == 0
    assert json.loads((folder / "bench.json").read_bytes())["status"] == "failed"


def test_an_interrupted_run_keeps_what_it_has(
    vllm: object, tiny_model: str, vllm_environment: dict[str, str], tmp_path: Path
) -> None:
    """BVLLM-46: SIGINT in the middle: a partial file, status 130, nobody left, and never an open port."""
    long = ("--decode-max-kv-read-token-samples", "128", "--decode-max-batch-size-samples", "128")
    given = [*arguments(tmp_path), *long]
    server = started(tiny_model, given, tmp_path, vllm_environment)
    try:
        deadline = time.monotonic() + END_SECONDS
        while "self-benchmark: " not in server.so_far() and time.monotonic() < deadline:
            time.sleep(0.05)
        with socket.socket() as probe:
            open_port = probe.connect_ex(("127.0.0.1", server.http_port)) == 0
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        status = server.ended(END_SECONDS)
        took = time.monotonic() - began
        left = still_there(server)
    finally:
        server.kill()

    document = json.loads((tmp_path / "bench.json").read_bytes())
    coverage = document["coverage"]
    assert not open_port
    assert status == Exit.INTERRUPTED
    assert took < 60
    assert not left
    assert document["status"] == "partial"
    assert 0 < coverage["completed_points"] < coverage["expected_points"]
    assert last_words(server).startswith("interrupted: ")


def test_what_cannot_be_measured_is_refused_before_the_engine(
    vllm: object, tiny_model: str, vllm_environment: dict[str, str], tmp_path: Path
) -> None:
    """BVLLM-41: One line that names what is in the way, status 2, and no engine core was there."""
    given = arguments(tmp_path, "--data-parallel-size", "2")
    server = started(tiny_model, given, tmp_path, vllm_environment)
    try:
        status = server.ended(END_SECONDS)
    finally:
        server.kill()

    assert status == Exit.USAGE
    assert last_words(server).startswith("the engine cannot be measured: --data-parallel-size=2")
    assert "Traceback" not in server.words
    assert "EngineCore" not in server.words
