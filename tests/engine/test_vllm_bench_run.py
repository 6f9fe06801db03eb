"""A whole self-benchmark on vLLM's real scheduler, without a worker: what only the real one gets wrong."""

from __future__ import annotations

import gc
import json
import threading
from collections import deque
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from bare_engine import build_scheduler, scheduler_class
from bench_rigs import made_up_output

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.content.base import ContentReason
from forwardpass.bench.engine_config import to_engine
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.sync.zmq_link import listen_on_zero
from forwardpass.config.settings import Sources
from forwardpass.errors import ContentUnavailable
from forwardpass.testing.ports import free_port

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]

BOOKKEEPING_SECONDS = 5.0
PASS_SECONDS = 0.010
KINDS: dict[str, dict[str, Any]] = {
    "sync": {"async_scheduling": False},
    "async": {"async_scheduling": True},
    "recurrent": {"async_scheduling": True, "recurrent": True},
}


@cache
def measured_scheduler() -> Any:
    """Return our scheduler with a clock of the test's, on a vLLM whose own bookkeeping takes seconds."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from forwardpass.engines.vllm.bench_rank import open_benchmark
    from forwardpass.engines.vllm.bench_scheduler import BenchForwardPassScheduler

    class SlowVllm(AsyncScheduler):  # type: ignore[misc]  # vLLM is not typed here
        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            output = super().schedule(*args, **kwargs)
            self.clock.advance(BOOKKEEPING_SECONDS)
            return output

        def update_from_output(self, *args: Any, **kwargs: Any) -> Any:
            result = super().update_from_output(*args, **kwargs)
            self.clock.advance(BOOKKEEPING_SECONDS)
            return result

    class Measured(BenchForwardPassScheduler, scheduler_class(), SlowVllm):  # type: ignore[misc]
        def measure(self, config: BenchConfig, sources: Sources) -> None:
            self.vllm_config.additional_config = {"benchmark": to_engine(config)}
            self._bench = open_benchmark(self, self.recorder, sources, self.clock)

    return Measured


def prepared(
    model: str, path: Path, kind: str, *, environment: dict[str, str] | None = None, **options: Any
) -> Any:
    """Return a scheduler that is to measure itself, and whose file will be ``path``."""
    options = {"max_seqs": 8, "max_model_len": 256, "blocks": 120} | KINDS[kind] | options
    scheduler = build_scheduler(model, cls=measured_scheduler(), **options)
    config = BenchConfig(
        BenchMode.AGG, samples=SampleLimits(3, 3, 2, 3, 3), timeout_seconds=1e6, output_path=str(path)
    )
    usual = {"DYN_BENCH_GIANT_KV_THRESHOLD": "300"}
    scheduler.measure(config, Sources(usual | (environment or {})))
    return scheduler


def run(scheduler: Any, path: Path) -> list[bool]:
    """Run the benchmark to its end; return, for each step in which the file was there, whether nothing was
    left in the scheduler.
    """
    depth = 2 if scheduler.scheduler_config.async_scheduling else 1
    flights: deque[Any] = deque()
    clean = []
    for _ in range(5000):
        while len(flights) < depth:
            flights.append(scheduler.schedule())
            if path.exists():
                clean.append(is_clean(scheduler))
        output = flights.popleft()
        scheduler.clock.advance(PASS_SECONDS if output.total_num_scheduled_tokens else 0.0)
        scheduler.update_from_output(output, made_up_output(scheduler, output))
        if path.exists():
            clean.append(is_clean(scheduler))
        if not scheduler.has_requests():
            return clean
    raise AssertionError("the benchmark has no end")


def is_clean(scheduler: Any) -> bool:
    """Say whether no request, no held block and no cached block is left."""
    pool = scheduler.kv_cache_manager.block_pool
    return not (
        scheduler.requests
        or scheduler.deferred_frees
        or any(block.block_hash is not None for block in pool.blocks)
        or pool.get_num_free_blocks() != pool.num_gpu_blocks - 1  # one is the null block
    )


Measured = Callable[[str], tuple[dict[str, Any], list[bool]]]


@pytest.fixture(scope="module")
def measured(vllm: object, tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Return what gives the file of one run of a kind, and how the scheduler was once it was there."""

    @cache
    def of(kind: str) -> tuple[dict[str, Any], list[bool]]:
        path = tmp_path_factory.mktemp("bench") / "bench.json"
        clean = run(prepared(tiny_model, path, kind), path)
        document = json.loads(path.read_bytes())
        assert document["status"] == "complete", document["error"]
        assert len(document["results"]) > 10
        return document, clean

    return of


def test_vllms_own_bookkeeping_is_in_no_pass(measured: Measured) -> None:
    """PIT-10, RUN-30: A pass that runs from its schedule to its output has neither what vLLM did to schedule
    it nor what it does with the output, however long both take.
    """
    document, _ = measured("sync")
    timed = [
        fpm["wall_time"]
        for row in document["results"]
        for fpm in row["fpms"][0]["benchmark_measurement"]["raw_fpms"]
        if fpm["benchmark_sample"]["timing"]["basis"] == "schedule_to_output"
    ]

    assert len(timed) == len(document["results"])
    assert timed == pytest.approx([PASS_SECONDS] * len(timed), abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_the_file_is_there_when_everything_is_undone(measured: Measured, kind: str) -> None:
    """PIT-43, BVLLM-20, BVLLM-21: Who finds the file finds an engine with nothing in it."""
    _, clean = measured(kind)

    assert clean
    assert all(clean)


@pytest.mark.parametrize("kind", KINDS)
def test_passes_are_counted_through_the_whole_run(measured: Measured, kind: str) -> None:
    """PIT-36, RUN-31: In the order of the groups the passes' indices only grow, from prefills to decodes too,
    and the warm-ups before have theirs.
    """
    document, _ = measured(kind)
    indices = [
        fpm["benchmark_sample"]["forward_index"]
        for group in document["iteration_groups"]
        for fpm in group["rank_results"][0]["fpms"][0]["benchmark_measurement"]["raw_fpms"]
    ]

    assert all(index < following for index, following in pairwise(indices))
    assert indices[0] >= document["warmup_evidence"]["records"][0]["forward_index_end"] > 0


def test_what_differs_between_ranks_is_not_in_the_engine_block(tiny_model: str, tmp_path: Path) -> None:
    """PIT-37, MERGE-10, BVLLM-30: Two ranks of one engine, of which one has less room, describe the same
    engine.
    """
    blocks = []
    for name, room in (("one", {}), ("other", {"blocks": 90, "max_model_len": 192})):
        path = tmp_path / f"{name}.json"
        run(prepared(tiny_model, path, "sync", **room), path)
        document = json.loads(path.read_bytes())
        assert document["status"] == "complete", document["error"]
        blocks.append(document["engine"])

    assert "capture_error" not in blocks[0]
    assert blocks[0] == blocks[1]


def test_texts_that_cannot_be_had_are_missed_before_anything_runs(tiny_model: str, tmp_path: Path) -> None:
    """PIT-23, CONTENT-23: Real text is loaded while the scheduler is built, before ranks talk to each other;
    a rank that cannot have it does not begin.
    """
    missing = {
        "DYN_BENCH_PREFILL_CONTENT": "sharegpt",
        "DYN_BENCH_KV_WARMUP_DATASET": str(tmp_path / "missing"),
    }

    with pytest.raises(ContentUnavailable) as caught:
        prepared(tiny_model, tmp_path / "bench.json", "sync", environment=missing)
    assert caught.value.reason is ContentReason.UNAVAILABLE


def test_a_rank_goes_by_its_index(tiny_model: str, tmp_path: Path) -> None:
    """PIT-02, BVLLM-03: vLLM calls every child rank 0 where only the index tells them apart. The file is the
    index's, the other rank's is not touched, and the ranks meet at the port after those of both.
    """
    theirs, own, port = tmp_path / "bench.json", tmp_path / "bench_dp1.json", free_port(3)
    for path in (theirs, own):
        path.write_text("{}")
    zero = listen_on_zero("127.0.0.1", port + 2)
    environment = {"DYN_FORWARDPASS_METRIC_PORT": str(port)}
    scheduler = prepared(tiny_model, theirs, "sync", environment=environment, dp_index=1)

    assert theirs.exists()
    assert not own.exists()
    scheduler.shutdown()
    said = zero.receive(10.0)
    zero.close(0.0)
    assert said is not None
    assert (said[0], json.loads(said[1][0])["type"]) == (b"1", "abort")
    document = json.loads(own.read_bytes())
    assert (document["dp"], document["status"]) == ({"rank": 1, "size": 2}, "failed")


def test_the_schedulers_process_has_its_collector_back(tiny_model: str, tmp_path: Path) -> None:
    """BCONF-15, PIT-15: With the policy no collection of the oldest generation comes by itself while points
    are measured; when the file is there the threshold is as before, and nobody goes on freezing.
    """
    path, before = tmp_path / "bench.json", gc.get_threshold()
    scheduler = prepared(tiny_model, path, "sync", environment={"DYN_FPM_GC_POLICY": "freeze"})
    try:
        during = gc.get_threshold()
        run(scheduler, path)
        after = gc.get_threshold()
    finally:
        gc.unfreeze()

    assert during[2] > 10**6
    assert after == before
    assert not [thread for thread in threading.enumerate() if thread.name == "forwardpass-freeze"]
