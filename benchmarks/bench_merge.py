"""Knows how long the merge of a benchmark's ranks takes, how much memory, and how both grow.

Every rank's file holds the passes of all ranks, so the bytes to read grow with the square of the ranks. Two
ways merge the same files: the plain one parses every file with the standard library, compares and writes the
whole; ours reads the groups once and compares the others' bytes. The files of the largest size are 22 GB: a
file is written just before it is read, which is not counted, and read from the page cache. Each size of the
growth runs in a process of its own, whose peak memory is the figure.

``--large`` adds 64 ranks of 5,000 points without evidence, whose goals are 30 s and 1 GiB, and of 1,250
points with evidence: such files are several times as large, and one of them has to be in memory.
"""

from __future__ import annotations

import copy
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.read import ArtifactFile, read_artifact
from forwardpass.testing.artifacts import made_run
from harness import Result, compare, from_rounds, is_large, is_quick, run_script

SIZES = [(8, 200), (8, 400), (8, 800)]
QUICK = [(2, 20), (2, 40)]
LARGE = [(64, 5000, False), (64, 1250, True)]
SECONDS_GOAL = 30.0
MIB_GOAL = 1024.0
LINEAR_GOAL = 1.3
"""Largest growth of the time per pass when there are twice as many points."""
PLAIN_GOAL = 0.5


class MadeRank:
    """The file of one rank, written when it is asked for."""

    def __init__(
        self, rank: int, head: dict[str, Any], row: dict[str, Any], groups: Path, points: int
    ) -> None:
        self.name = f"rank{rank}.json"
        self.excluded = 0.0
        """Seconds that were spent on writing it."""
        self._rank, self._head, self._groups = rank, head, groups
        self._row, self._points = row, points

    def hint(self) -> int:
        """Return its rank."""
        return self._rank

    def written(self) -> Path:
        """Write it, indented as the reference does, and return its path."""
        begin = time.perf_counter()
        path = self._groups.with_name(self.name)
        head = msgspec.json.format(msgspec.json.encode(self._head), indent=2).removesuffix(b"\n}")
        with path.open("wb") as file:
            file.write(head + b',\n  "results": ' + numbered_list(self._row, self._points))
            file.write(b',\n  "iteration_groups": ')
            with self._groups.open("rb") as groups:
                shutil.copyfileobj(groups, file, 1 << 20)
            file.write(b"\n}")
        self.excluded += time.perf_counter() - begin
        return path

    def load(self, beside: ArtifactFile | None) -> ArtifactFile:
        """Read it."""
        path = self.written()
        try:
            return read_artifact(path, beside=beside)
        finally:
            path.unlink()


def made_ranks(
    ranks: int, points: int, folder: Path, *, evidence: bool = False, write: bool = True
) -> list[MadeRank]:
    """Return the files of a run, made of one point's: without evidence they are like ai-dynamo 1.6.1's."""
    documents = made_run(ranks=ranks, points=1, protocol=evidence)
    group = documents[0]["iteration_groups"][0]
    groups = folder / "groups"
    if write:
        groups.write_bytes(numbered_list(group, points))
    made = []
    for rank, document in enumerate(documents):
        del document["iteration_groups"]
        row = document.pop("results")[0]
        document["coverage"] = {"expected_points": points, "completed_points": points, "skipped_points": 0}
        wall = sum(group["wall_time"] for _ in range(points))
        document["timing"]["measured_iteration_seconds"] = wall
        document["timing"]["benchmark_elapsed_seconds"] = wall + 1 + rank
        made.append(MadeRank(rank, document, row, groups, points))
    return made


def numbered_list(row: dict[str, Any], points: int) -> bytes:
    """Return a list of ``row`` under the ids 1 … ``points``, indented as a part of a document."""
    text = json.dumps(row, indent=2).replace("\n", "\n    ")
    numbers = r'(?<="benchmark_id": )1\b|(?<="counter_id": )1\b|(?<="forward_index": )1(?=0\b)'
    parts = re.split(numbers, text)
    rows = [str(number).join(parts) for number in range(1, points + 1)]
    return ("[\n    " + ",\n    ".join(rows) + "\n  ]").encode()


def merge_ours(ranks: list[MadeRank], folder: Path) -> float:
    """Merge and write; return the seconds that it took, without those of making the files."""
    begin, excluded = time.perf_counter(), sum(rank.excluded for rank in ranks)
    merge_ranks(ranks, output=folder / "ours.json", sidecar=folder / "probe.json").write()
    return time.perf_counter() - begin - (sum(rank.excluded for rank in ranks) - excluded)


def merge_plainly(ranks: list[MadeRank], folder: Path) -> float:
    """Merge as anybody would first: everything parsed, compared, put together, written at once."""
    paths = [rank.written() for rank in ranks]
    begin = time.perf_counter()
    documents = [json.loads(path.read_bytes()) for path in paths]
    first = documents[0]
    for document in documents:
        assert document["run_id"] == first["run_id"]
        assert document["iteration_groups"] == first["iteration_groups"]
        for row, group in zip(document["results"], first["iteration_groups"], strict=True):
            assert row["fpms"] == group["rank_results"][document["dp"]["rank"]]["fpms"]
    merged = copy.deepcopy(first)
    merged["results"] = [
        {"point": {**group["point"], "dp_rank": result["dp_rank"]}, "fpms": result["fpms"]}
        for group in first["iteration_groups"]
        for result in group["rank_results"]
    ]
    (folder / "plain.json").write_text(json.dumps(merged, indent=2))
    return time.perf_counter() - begin


def measured(ranks: int, points: int, *, evidence: bool = False) -> tuple[float, float]:
    """Merge in a process of its own; return its seconds and its peak memory in MiB."""
    command = [sys.executable, __file__, "child", str(ranks), str(points), "evidence" if evidence else ""]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, mib = map(float, done.stdout.split())
    return seconds, mib


def child(ranks: int, points: int, evidence: bool) -> None:
    """Merge once and print seconds and peak memory."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = ["groups", str(ranks), str(points), "evidence" if evidence else "", name]
        subprocess.run([sys.executable, __file__, *words], check=True)  # its memory is not the merge's
        seconds = merge_ours(made_ranks(ranks, points, folder, evidence=evidence, write=False), folder)
    print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def main() -> list[Result]:
    """Compare both ways on small runs, then see how ours grows."""
    sizes = QUICK if is_quick() else SIZES
    ranks, points = sizes[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        made = made_ranks(ranks, points, folder)
        results = [
            compare(
                f"merge {ranks} ranks x {points} points",
                {"json": lambda: merge_plainly(made, folder), "ours": lambda: merge_ours(made, folder)},
                items=ranks * points,
                rounds=5,
                goal=PLAIN_GOAL,
                note="us per pass of a rank; the plain way checks far less",
            )
        ]
    return [*results, *_growth(sizes), *(_large() if is_large() else [])]


def _growth(sizes: list[tuple[int, int]]) -> Iterator[Result]:
    """Compare the time per pass of each size with the one before: 1 is linear in the points."""
    rounds = 2 if is_quick() else 5
    figures = {
        size: [measured(*size)[0] / (size[0] * size[1]) * 1e6 for _ in range(rounds)] for size in sizes
    }
    for small, big in pairwise(sizes):
        yield from_rounds(
            f"growth of a merge of {small[0]} ranks",
            {f"{small[1]} points": figures[small], f"{big[1]} points": figures[big]},
            goal=LINEAR_GOAL,
            note="us per pass of a rank",
        )


def _large() -> Iterator[Result]:
    for ranks, points, evidence in LARGE:
        seconds, mib = measured(ranks, points, evidence=evidence)
        name = f"merge {ranks} ranks x {points} points{' with evidence' if evidence else ''}"
        yield from_rounds(name, {"allowed": [SECONDS_GOAL], "ours": [seconds]}, unit="s", goal=1.0)
        yield from_rounds(f"{name}, memory", {"allowed": [MIB_GOAL], "ours": [mib]}, unit="MiB", goal=1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        child(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["evidence"])
    elif sys.argv[1:2] == ["groups"]:
        made_ranks(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[5]), evidence=sys.argv[4] == "evidence")
    else:
        run_script(main)
