"""Knows what tests do with made-up files of a benchmark: read them as runs, change them, add samples."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

from forwardpass.analyze.benchmark.run import BenchRun, run_of
from forwardpass.artifact.read import parse_artifact
from forwardpass.testing.artifacts import made_run

Document = dict[str, Any]


def read(document: Document, name: str = "results.json") -> BenchRun:
    """Return the run in a document."""
    return run_of(parse_artifact(json.dumps(document).encode(), name))


def made(change: Callable[[Document], Any] | None = None, **options: Any) -> BenchRun:
    """Return a made-up run of one rank, changed before it is read."""
    (document,) = made_run(ranks=1, **options)
    if change is not None:
        change(document)
    return read(document)


def another(change: Callable[[Document], Any] | None = None, **options: Any) -> BenchRun:
    """Return the same run as another launch."""

    def both(document: Document) -> None:
        document["run_id"] = "f" * 32
        if change is not None:
            change(document)

    return made(both, **options)


def fpm(document: Document, group: int, rank: int = 0) -> Document:
    """Return the retained pass of a group."""
    found: Document = document["iteration_groups"][group]["rank_results"][rank]["fpms"][0]
    return found


def set_wall(document: Document, group: int, seconds: float) -> None:
    """Give the only rank of a group a time."""
    document["iteration_groups"][group]["wall_time"] = seconds
    fpm(document, group)["wall_time"] = seconds


def set_samples(document: Document, group: int, seconds: list[float]) -> None:
    """Give a group steady samples, behind an admission step of ten seconds that no estimate names."""
    retained = fpm(document, group)
    raw = copy.deepcopy(retained["benchmark_measurement"]["raw_fpms"][0])
    raws = []
    for at, wall in enumerate([10.0, *seconds]):
        one = copy.deepcopy(raw)
        one["wall_time"] = wall
        one["benchmark_sample"]["sample_index"] = at
        one["benchmark_sample"]["forward_index"] = 100 + at
        raws.append(one)
    retained["benchmark_measurement"]["raw_fpms"] = raws
    retained["benchmark_measurement"]["estimate"] = {
        "method": "adjacent_upper_median",
        "raw_sample_indices": list(range(1, len(raws))),
    }
    set_wall(document, group, sorted(seconds)[len(seconds) // 2])
