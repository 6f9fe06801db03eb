"""``forwardpass bench run --fault``: what each fault does to a run, from the command line to the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forwardpass.testing.ports import free_port

FEW = [
    *("--prefill-max-new-token-samples", "2", "--prefill-max-kv-read-token-samples", "2"),
    *("--decode-max-kv-read-token-samples", "2", "--decode-max-batch-size-samples", "2"),
    *("--prefix-max-batch-size-samples", "1"),
]
"""Eight points: four of prefill, then four of decode."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    result: dict[str, Any]
    words: str
    files: list[dict[str, Any] | None]
    """Of each rank; ``None`` where there is none."""
    merged: bool


def run(folder: Path, *arguments: str, ranks: int = 1) -> Ended:
    """Run the command with files of an earlier run in the place of its own."""
    paths = [folder / "bench.json", *(folder / f"bench_dp{rank}.json" for rank in range(1, ranks))]
    merged = folder / "bench_merged.json"
    for path in (*paths, merged, folder / "bench_merged_worker_probe.json"):
        path.write_text('{"stale": true}')
    done = subprocess.run(
        [
            *(sys.executable, "-m", "forwardpass", "bench", "run", "--json", *FEW, "--dp", str(ranks)),
            *("--benchmark-output-path", str(paths[0]), *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
        env={name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
        | {"DYN_FORWARDPASS_METRIC_PORT": str(free_port(4))},
    )
    files = [json.loads(path.read_text()) if path.exists() else None for path in paths]
    whole = merged.exists() and (folder / "bench_merged_worker_probe.json").exists()
    return Ended(done.returncode, json.loads(done.stdout), done.stderr, files, whole)


def skips(file: dict[str, Any] | None) -> list[tuple[int, str]]:
    """Return the skipped points of a rank's file."""
    assert file is not None
    return [(row["point"]["benchmark_id"], row["reason"]) for row in file["skipped_points"]]


def test_a_slow_rank_is_the_time_of_its_groups(tmp_path: Path) -> None:
    """RUN-40: From point 3 on rank 1 takes five times as long; the run is complete, exit code 0, and each
    group's time is the slow rank's from there.
    """
    ended = run(tmp_path, "--fault", "slow-rank=1:5@3", "--noise", "0", ranks=2)
    assert ended.files[0] is not None
    walls = [
        [rank["fpms"][0]["wall_time"] for rank in group["rank_results"]]
        for group in ended.files[0]["iteration_groups"]
    ]

    groups = [group["wall_time"] for group in ended.files[0]["iteration_groups"]]

    assert (ended.code, ended.result["status"], ended.merged) == (0, "complete", True)
    assert [slow / fast > 4 for fast, slow in walls] == [False] * 2 + [True] * 6
    assert groups == [max(each) for each in walls]


def test_a_wrong_shape_on_one_rank_is_a_skip_on_all(tmp_path: Path) -> None:
    """RUN-40: A rank that ran three tokens less makes every rank skip the point; exit code 1, the line names
    it, and neither this run's nor an earlier merged file is there.
    """
    ended = run(tmp_path, "--fault", "wrong-shape=1:3@2", ranks=2)
    reason = "measured_prefill_tokens_mismatch"

    assert (ended.code, ended.result["skipped"], ended.merged) == (1, 1, False)
    assert f"skipped: point 2 (prefill): {reason}" in ended.words
    for file in ended.files:
        assert file is not None
        assert skips(file) == [(2, reason)]
        assert (file["status"], file["valid"], file["usable"]) == ("complete", False, False)
        assert len(file["results"]) == 7


@pytest.mark.parametrize(
    ("fault", "skipped"),
    [
        ("refused-allocation=0@3", (3, "prefill_injection_failed")),
        ("refused-allocation=0@6", (6, "decode_injection_failed")),
        ("late-output=0@6", (6, "measured_decode_context_mismatch")),
        ("wrong-shape=0@7", (7, "measured_decode_context_mismatch")),
    ],
)
def test_a_point_that_goes_wrong_is_skipped(tmp_path: Path, fault: str, skipped: tuple[int, str]) -> None:
    """RUN-01, RUN-40, RUN-44: A refused batch, an output that comes after the deadline and another shape cost
    that point; the points after it are measured as always.
    """
    ended = run(tmp_path, "--fault", fault, "--noise", "0")
    assert ended.files[0] is not None

    assert (ended.code, ended.result["status"], ended.merged) == (1, "complete", False)
    assert skips(ended.files[0]) == [skipped]
    assert len(ended.files[0]["results"]) == 7
    assert max(group["wall_time"] for group in ended.files[0]["iteration_groups"]) < 2


def test_a_late_prefill_is_an_outlier(tmp_path: Path) -> None:
    """RUN-44: A late prefill has a pass all the same: it is measured, as slow as it was."""
    ended = run(tmp_path, "--fault", "late-output=0:30@2")
    assert ended.files[0] is not None
    late = [group["wall_time"] > 30 for group in ended.files[0]["iteration_groups"]]

    assert (ended.code, ended.merged) == (0, True)
    assert late == [False, True] + [False] * 6


def test_a_prefill_in_chunks_ends_all_ranks(tmp_path: Path) -> None:
    """RUN-10, RUN-47: A rank that computes a prefill in two passes ends the run; exit code 4, every rank's
    file says failed, names the rank and the point, and keeps the point before.
    """
    ended = run(tmp_path, "--fault", "chunked-prefill=1@2", ranks=2)

    assert (ended.code, ended.result["status"], ended.merged) == (4, "failed", False)
    assert "rank 1" in ended.words
    for file in ended.files:
        assert file is not None
        assert file["status"] == "failed"
        assert "point 2 was scheduled with sum_prefill_tokens" in file["error"]
        assert [row["point"]["benchmark_id"] for row in file["results"]] == [1]


def test_a_batch_that_one_rank_refuses_ends_all_ranks(tmp_path: Path) -> None:
    """SYNC-07, RUN-47: Ranks that wait for one which has skipped the point give up after the time of one
    agreement; exit code 4, and every file says failed.
    """
    ended = run(tmp_path, "--fault", "refused-allocation=1@3", "--sync-seconds", "3", ranks=2)

    assert (ended.code, ended.merged) == (4, False)
    assert [file and file["status"] for file in ended.files] == ["failed", "failed"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_dies_leaves_no_file(tmp_path: Path, rank: int) -> None:
    """RUN-47: A rank that dies without a word has no file, the earlier run's is gone as well; the other gives
    up and says so in its own; exit code 4.
    """
    ended = run(tmp_path, "--fault", f"crash={rank}@5", "--sync-seconds", "3", ranks=2)
    other = ended.files[1 - rank]

    assert (ended.code, ended.merged) == (4, False)
    assert f"rank {rank}: exit status -9" in ended.words
    assert ended.files[rank] is None
    assert other is not None
    assert (other["status"], len(other["results"])) == ("failed", 4)
    assert "agreement on" in other["error"]


@pytest.mark.parametrize(("fault", "has_file"), [("missing-rank=1@5", True), ("missing-rank=1", False)])
def test_a_missing_rank_is_named_and_ended(tmp_path: Path, fault: str, has_file: bool) -> None:
    """SYNC-07, RUN-47: A rank that stops taking part is named by the other, which gives up, and is then
    ended; one that never took part leaves no file, nor does an earlier run in its name. Exit code 4.
    """
    seconds = "3" if has_file else "0.5"  # the first agreement waits thirty times as long
    ended = run(tmp_path, "--fault", fault, "--sync-seconds", seconds, ranks=2)
    first = ended.files[0]

    assert (ended.code, ended.merged) == (4, False)
    assert first is not None
    assert (first["status"], len(first["results"])) == ("failed", 4 if has_file else 0)
    assert "from rank 1 within" in first["error"]
    assert "rank 1: ended by SIGTERM" in ended.words
    assert (ended.files[1] is not None) == has_file


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fault", "nonsense"], "--fault='nonsense': expected KIND=RANK[:VALUE][@POINT]"),
        (["--fault", "explode=0"], "--fault='explode=0': expected a kind of fault: slow-rank, missing-rank"),
        (["--fault", "crash=0:3"], "expected for crash (to die without a word) no VALUE"),
        (["--fault", "slow-rank=0:0"], "as VALUE a number from 0.01 to 1000"),
        (["--fault", "wrong-shape=0:1.5"], "as VALUE a whole number from 1"),
        (["--fault", "crash=0@0"], "--fault='crash=0@0': expected KIND=RANK"),
        (["--fault", "crash=2", "--dp", "2"], "--fault='crash=2': expected a rank from 0 to 1"),
        (["--fault", "missing-rank=0"], "expected another rank that misses it (--dp 2)"),
        (["--sync-seconds", "0"], "--sync-seconds='0': expected a number from 0.01 to 3600"),
    ],
)
def test_wrong_faults_are_refused(arguments: list[str], words: str) -> None:
    """A fault that is none, takes no such value or has no such rank is one line, exit code 2, and starts
    nothing.
    """
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "bench", "run", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
