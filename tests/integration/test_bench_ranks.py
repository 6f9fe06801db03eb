"""Ranks that measure themselves together, each a process: whole runs, and runs in which one is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forwardpass.artifact.run import PathSource, examine
from forwardpass.artifact.sidecar import read_sidecar
from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.limits import GraphMode, GraphSettings
from forwardpass.cli.bench_launch import BenchResult, RankEnd, finish, run_ranks
from forwardpass.config.settings import Sources
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_worker import Job, Progress
from forwardpass.engines.mock.config import MockConfig
from forwardpass.testing.ports import free_port

RANKS = 4
ENGINE = MockBenchConfig(
    engine=MockConfig(max_num_seqs=16, max_num_batched_tokens=128, max_model_len=512, num_blocks=600),
    graph=GraphSettings("FULL", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8)),
)


def jobs(folder: Path, *, mode: BenchMode = BenchMode.AGG, samples: SampleLimits | None = None) -> list[Job]:
    """Return the jobs of four ranks that write into ``folder``."""
    config = BenchConfig(
        mode, samples=samples or SampleLimits(5, 3, 2, 4, 4), output_path=str(folder / "bench.json")
    )
    port = free_port()
    return [
        Job(
            engine=ENGINE,
            config=config,
            environment=BenchEnvironment.load(Sources({})),
            worker_id="4192",
            rank=rank,
            size=RANKS,
            port=port,
            leg_seconds=2.0,
        )
        for rank in range(RANKS)
    ]


def ran(
    some: list[Job], on_progress: Callable[[int, Progress, asyncio.Event], None] | None = None
) -> list[RankEnd]:
    """Run the jobs to their end; ``on_progress`` may ask all of them to stop."""

    async def run() -> list[RankEnd]:
        stop = asyncio.Event()

        def take(rank: int, progress: Progress) -> None:
            if on_progress is not None:
                on_progress(rank, progress, stop)

        return await run_ranks(some, take, stop)

    return asyncio.run(run())


def document(path: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(path).read_text())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[RankEnd], BenchResult]:
    """Let four ranks measure themselves, and merge what they wrote."""
    some = jobs(tmp_path_factory.mktemp("bench"))
    ends = ran(some)
    return ends, finish(some, ends)


def test_four_ranks_agree_and_their_files_merge(whole: tuple[list[RankEnd], BenchResult]) -> None:
    """RUN-02, MERGE-01: Four processes measure the same grid in step, write four files that pass every rule,
    a strict reader's too, and one merged file beside which the workers' replies are whole.
    """
    ends, result = whole
    run = examine([PathSource(Path(end.path)) for end in ends], full=True)
    merged = document(str(result.merged))

    assert [end.exit_code for end in ends] == [0] * RANKS
    assert [str(problem) for problem in run.findings.problems] == []
    assert (result.status, result.skipped, result.errors) == ("complete", 0, ())
    assert result.points > 30
    assert len(merged["results"]) == RANKS * result.points
    assert merged["dp"] == {
        "ranks": [0, 1, 2, 3],
        "source_ranks": [0, 1, 2, 3],
        "managed_size": RANKS,
        "global_size": RANKS,
    }
    sidecar = read_sidecar(Path(str(result.worker_probe)))
    assert sidecar.run_id == merged["run_id"] == document(ends[3].path)["run_id"]
    assert sidecar.merged.resolution == "worker_probe"


def test_prompts_differ_between_ranks_and_nothing_else_does(
    whole: tuple[list[RankEnd], BenchResult],
) -> None:
    """CONTENT-01, RUN-31, PIT-21: The ranks measured the same points under the same ids, each with prompts of
    its own, and the evidence of every rank is in every file as that rank wrote it.
    """
    ends, _ = whole
    files = [document(end.path) for end in ends]
    groups = [file["iteration_groups"] for file in files]

    assert groups[0] == groups[1] == groups[2] == groups[3]
    for group in groups[0]:
        hashes = [
            rank["fpms"][0]["benchmark_measurement"]["prompts"]["sha256"] for rank in group["rank_results"]
        ]
        assert len(set(hashes)) == RANKS
    for rank, file in enumerate(files):
        assert [row["fpms"][0]["dp_rank"] for row in file["results"]] == [rank] * len(file["results"])


def test_ranks_with_different_pools_measure_one_grid(tmp_path: Path) -> None:
    """PIT-11, PIT-37, SYNC-20, GRID-20: Ranks of which one has half the blocks and another a shorter model
    agree on what all can hold, measure one grid in step, and describe themselves as one engine.
    """
    some = jobs(tmp_path, samples=SampleLimits(3, 3, 2, 3, 3))
    for rank, less in ((1, {"num_blocks": 150}), (3, {"max_model_len": 400})):
        engine = msgspec.structs.replace(ENGINE, engine=msgspec.structs.replace(ENGINE.engine, **less))
        some[rank] = msgspec.structs.replace(some[rank], engine=engine)
    ends = ran(some)
    result = finish(some, ends)
    files = [document(end.path) for end in ends]

    assert [end.error for end in ends] == [""] * RANKS
    assert (result.status, result.skipped, result.errors) == ("complete", 0, ())
    assert len({file["grid_digest"] for file in files}) == 1
    assert [file["limits"]["max_model_len"] for file in files] == [512, 512, 512, 400]
    assert {file["capacity"]["common"]["max_model_len"] for file in files} == {400}
    assert {file["capacity"]["common"]["usable_blocks_with_watermark"] for file in files} == {150}


def test_a_rank_that_is_slow_shows_in_the_group(tmp_path: Path) -> None:
    """RUN-40: A group's time is that of its slowest rank, whose own rows have it."""
    some = jobs(tmp_path, mode=BenchMode.DECODE, samples=SampleLimits(2, 2, 1, 2, 2))
    some[2] = msgspec.structs.replace(some[2], slow_factor=3.0)
    ends = ran(some)
    file = document(ends[0].path)

    assert [end.error for end in ends] == [""] * RANKS
    for group in file["iteration_groups"]:
        walls = [rank["fpms"][0]["wall_time"] for rank in group["rank_results"]]
        assert walls.index(max(walls)) == 2
        assert group["wall_time"] == max(walls)


def children_of(pid: int) -> dict[int, str]:
    """Return the processes that ``pid`` has started, with their environment's own names."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid:
                found[int(stat.parent.name)] = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
    return found


@pytest.mark.parametrize("lost", [0, 2])
def test_a_rank_that_is_killed_ends_all_with_its_name(tmp_path: Path, lost: int) -> None:
    """RUN-47, SYNC-01: When a rank is killed in the middle the others do not wait for ever: each ends with an
    error that names the phase, and leaves a readable file that says so, with what was measured until then;
    nothing is merged.
    """
    some = jobs(tmp_path, samples=SampleLimits(20, 8, 3, 40, 16))
    killed: list[int] = []

    def kill(rank: int, progress: Progress, stop: asyncio.Event) -> None:
        if rank == lost and progress.settled >= 5 and not killed:
            # the ranks were started in order, so that their ids ascend
            workers = sorted(pid for pid, line in children_of(os.getpid()).items() if "bench_worker" in line)
            killed.append(workers[lost])
            os.kill(workers[lost], signal.SIGKILL)

    ends = ran(some, kill)
    result = finish(some, ends)

    assert ends[lost].exit_code == -signal.SIGKILL
    assert (result.status, result.merged) == ("failed", None)
    for end in ends:
        if end.rank == lost:
            assert not Path(end.path).exists()
            continue
        file = document(end.path)
        assert end.exit_code == 1
        assert "agreement on" in end.error
        assert (file["status"], file["valid"], file["usable"]) == ("failed", False, False)
        assert end.error in file["error"]
        assert file["coverage"]["completed_points"] >= 5
    assert not (tmp_path / "bench_merged.json").exists()


def test_a_run_that_is_interrupted_leaves_files_that_say_so(tmp_path: Path) -> None:
    """RUN-47: Asked to end, every rank aborts what it had begun, writes what it had measured and why it
    ended.
    """
    some = jobs(tmp_path, samples=SampleLimits(20, 8, 3, 40, 16))

    def ask(rank: int, progress: Progress, stop: asyncio.Event) -> None:
        if progress.settled >= 5:
            stop.set()

    ends = ran(some, ask)

    assert {end.exit_code for end in ends} == {1}
    for end in ends:
        file = document(end.path)
        assert file["status"] == "failed"
        assert file["coverage"]["completed_points"] >= 4


def test_what_an_earlier_run_left_is_gone(tmp_path: Path) -> None:
    """RUN-02, PIT-11, PIT-41: A merged file, a sidecar and rank files of an earlier run do not survive into
    one that fails at once.
    """
    names = [
        "bench_merged.json",
        "bench_merged_worker_probe.json",
        "bench.json",
        *(f"bench_dp{rank}.json" for rank in (1, 2, 3)),
    ]
    for name in names:
        (tmp_path / name).write_text("{}")
    some = jobs(tmp_path)
    some[3] = msgspec.structs.replace(
        some[3], engine=msgspec.structs.replace(ENGINE, watermark_blocks=7, graph=GraphSettings())
    )
    ends = ran(some)

    assert {end.exit_code for end in ends} == {1}
    assert all("capacity" in end.error for end in ends)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[2:])
    assert all(document(end.path)["status"] == "failed" for end in ends)
    assert all(document(end.path)["warmup_evidence"]["records"] == [] for end in ends)
