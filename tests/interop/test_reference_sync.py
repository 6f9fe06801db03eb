"""Ranks of ours and of NVIDIA Dynamo's own synchroniser in one group, over real sockets.

These run where Dynamo's scheduler can be imported: ``make test-reference``.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forwardpass.testing.ports import free_port


def has_reference() -> bool:
    """Say whether Dynamo's scheduler is installed, without importing it."""
    try:
        return importlib.util.find_spec("dynamo.vllm.instrumented_scheduler") is not None
    except ImportError:
        return False


pytestmark = [
    pytest.mark.reference,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not has_reference(), reason="Dynamo's scheduler is not installed"),
]
SCRIPT = Path(__file__).parent / "reference_ranks.py"
GROUPS = ("doo", "odd", "dod", "odo", "do", "od")
"""Who is who in a group: a letter a rank, ``d`` for Dynamo's, ``o`` for ours."""
PAIRS = ("doo", "odd")
FAILURES = {
    "capacity": ("rank 2", "invariants"),
    "grid": ("rank 2", "grid"),
    "invalid": ("rank 2", "255 tokens"),
    "step": ("rank 2", "3"),
    "abort": ("rank 2", "it broke"),
}
"""What rank 2 does, and what rank 0 says about it; Dynamo's does not name the rank for the first."""


@pytest.fixture(scope="module")
def ends() -> dict[str, list[Any]]:
    """Return what each rank of each group saw."""
    found = [{"name": f"whole {roles}", "roles": roles} for roles in GROUPS]
    for how in ("late", "late result"):
        found += [
            {"name": f"{how} {roles} {odd}", "roles": roles, "how": how, "odd": odd}
            for roles in PAIRS
            for odd in (0, 2)
        ]
    found += [
        {"name": f"{how} {roles}", "roles": roles, "how": how, "odd": 2}
        for how in (*FAILURES, "absent")
        for roles in PAIRS
    ]
    first = free_port(len(found))
    for place, one in enumerate(found):
        one["port"] = str(first + place)
    scenarios = json.dumps([{**one, "port": int(one["port"])} for one in found])
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=scenarios, stdout=subprocess.PIPE, text=True, timeout=220,
        check=True,
    )  # fmt: skip
    read: dict[str, list[Any]] = json.loads(done.stdout.splitlines()[-1])
    return read


@pytest.mark.parametrize("roles", GROUPS)
def test_a_mixed_group_decides_alike(ends: dict[str, list[Any]], roles: str) -> None:
    """SYNC-01, SYNC-03, SYNC-20, SYNC-22, SYNC-23, SYNC-25, SYNC-26: With either as rank 0, ranks of ours and
    of Dynamo go through a run together and hold the same capacity, verdicts, run id and results.
    """
    ranks = ends[f"whole {roles}"]
    size = len(roles)

    assert [end["error"] for end in ranks] == [None] * size
    assert all(end["done"] == ranks[0]["done"] for end in ranks)
    capacity, _, building, done, stop, run_id, results, *_ = ranks[0]["done"]
    assert (capacity["max_model_len"], capacity["usable_blocks_without_watermark"]) == (1000, 501 - size)
    assert (building, done, stop) == ([False, None], [True, False], False)
    assert len(run_id) == 32
    assert [one["dp_rank"] for one in results[0]] == list(range(size))
    assert len(ranks[0]["done"]) == 11


@pytest.mark.parametrize("odd", [0, 2])
@pytest.mark.parametrize("roles", PAIRS)
def test_a_mixed_group_stops_together(ends: dict[str, list[Any]], roles: str, odd: int) -> None:
    """SYNC-24: A late wish to stop, of either, stops ranks of both before the same point or after it."""
    for how, length in (("late", 9), ("late result", 8)):
        ranks = ends[f"{how} {roles} {odd}"]

        assert [end["error"] for end in ranks] == [None] * 3
        assert all(end["done"] == ranks[0]["done"] for end in ranks)
        assert len(ranks[0]["done"]) == length


@pytest.mark.parametrize("how", FAILURES)
@pytest.mark.parametrize("roles", PAIRS)
def test_a_mixed_group_fails_together(ends: dict[str, list[Any]], roles: str, how: str) -> None:
    """SYNC-06: Where one rank is wrong or gives up, ranks of both end, and rank 0 says why."""
    zero, one, two = ends[f"{how} {roles}"]
    rank, why = FAILURES[how]

    assert why in zero["error"]
    assert rank in zero["error"] or (roles, how) == ("doo", "capacity")
    assert one["error"] is not None
    assert (two["error"] is None) == (how == "abort")
    assert len({len(end["done"]) for end in (zero, one, two)}) == 1


@pytest.mark.parametrize("roles", PAIRS)
def test_a_missing_rank_ends_a_mixed_group(ends: dict[str, list[Any]], roles: str) -> None:
    """SYNC-07: Where a rank never comes, the ranks of both that did end in time."""
    zero, one, _ = ends[f"absent {roles}"]

    assert zero["done"] == one["done"] == []
    assert zero["error"] is not None
    assert one["error"] is not None
