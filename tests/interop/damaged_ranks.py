"""Knows how the reference's files of two ranks are cut to four points and damaged in one place."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden" / "vllm-cpu-moe-dp2-bench-agg"
POINTS = 4


def _cut(document: dict[str, Any]) -> dict[str, Any]:
    groups = document["iteration_groups"][:POINTS]
    return {
        **document,
        "results": document["results"][:POINTS],
        "iteration_groups": groups,
        "coverage": {"expected_points": POINTS, "completed_points": POINTS, "skipped_points": 0},
        "timing": {
            **document["timing"],
            "measured_iteration_seconds": sum(group["wall_time"] for group in groups),
        },
    }


RANKS = [
    _cut(json.loads((FOLDER / name).read_bytes()))
    for name in ("benchmark_results.json", "benchmark_results_dp1.json")
]


def damaged(case: dict[str, Any]) -> list[dict[str, Any]]:
    """Return both ranks' documents with one change in one or both: ``ranks``, ``path``, ``change``."""
    documents = copy.deepcopy(RANKS)
    for rank in case["ranks"]:
        here: Any = documents[rank]
        for step in case["path"][:-1]:
            here = here[step]
        last = case["path"][-1]
        match case["change"]:
            case ["delete"]:
                del here[last]
            case ["double"]:
                here.append(copy.deepcopy(here[last]))
            case ["set", value]:
                here[last] = copy.deepcopy(value)
    return documents
