"""Ranks as processes over loopback sockets: runs that succeed, and ranks that are killed or stopped.

All of them run once, side by side, when the first test asks.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sync_ranks import Scenario

from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.decisions import SPECS
from forwardpass.bench.sync.rounds import Legs
from forwardpass.testing.ports import free_port

SCRIPT = Path(__file__).parent / "sync_ranks.py"
CALM = Legs(leg=20.0, grace=1.0, first=20.0, linger=2.0)
HASTY = Legs(leg=1.5, grace=0.3, first=4.0, linger=0.5)

ANSWERS = [(str(spec.kind), m.type_of(step.answer)) for spec in SPECS for step in spec.passes] + [
    (str(spec.kind), m.type_of(spec.commit)) for spec in SPECS
]
REPORTS = [(str(spec.kind), m.type_of(spec.report)) for spec in SPECS]
ROUNDS_OF_A_RUN = 10
"""Capacity, grid, stage, thrice two points, clean-up."""


def scenarios() -> list[Scenario]:
    """Return every group that is run, each on a port of its own."""
    found = [
        Scenario("whole", 4, 0, CALM),
        Scenario("differs", 4, 0, CALM, differs=2),
        Scenario("late stop", 4, 0, CALM, stops=3),
        Scenario("late stop of rank 0", 3, 0, CALM, stops=0),
    ]
    for rank in (0, 1):
        found += [
            Scenario(f"kill {rank} at {kind}", 3, 0, HASTY, rank, kind, int(rank == 0), "SIGKILL")
            for _, kind in ANSWERS
        ]
    found += [Scenario(f"kill 1 at {kind}", 3, 0, HASTY, 1, kind, 0, "SIGKILL") for _, kind in REPORTS]
    found += [Scenario(f"stop {rank}", 3, 0, HASTY, rank, "ready", 0, "SIGSTOP") for rank in (0, 2)]
    first = free_port(len(found))
    return [msgspec.structs.replace(one, port=first + place) for place, one in enumerate(found)]


@pytest.fixture(scope="module")
def ends() -> dict[str, list[Any]]:
    """Return how the ranks of every scenario ended."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], input=msgspec.json.encode(scenarios()), stdout=subprocess.PIPE,
        timeout=110, check=True,
    )  # fmt: skip
    found: dict[str, list[Any]] = msgspec.json.decode(done.stdout)
    return found


def test_four_ranks_decide_alike(ends: dict[str, list[Any]]) -> None:
    """SYNC-20, SYNC-22, SYNC-23, SYNC-26: Four ranks go through a run and hold the same capacity, verdicts,
    run id and results.
    """
    ranks = ends["whole"]

    assert [end["error"] for end in ranks] == [None] * 4
    assert all(end["done"] == ranks[0]["done"] for end in ranks)
    capacity, _, verdict, _, run_id, (results, stop), *_ = ranks[0]["done"]
    assert (capacity["max_model_len"], capacity["usable_blocks_with_watermark"]) == (1000, 397)
    assert verdict == [True, False]
    assert len(run_id) == 32
    assert results == [{"dp_rank": rank, "fpms": [{"wall_time": rank + 0.25}]} for rank in range(4)]
    assert stop is False
    assert len(ranks[0]["done"]) == ROUNDS_OF_A_RUN


def test_another_grid_is_named_by_all(ends: dict[str, list[Any]]) -> None:
    """SYNC-06, SYNC-21, PIT-11: Where one rank built another grid, all ranks end, and say which rank it
    was.
    """
    for end in ends["differs"]:
        assert end["error"] in ("OutOfLockstep", "PeerAborted")
        assert end["round"] == "grid"
        assert "rank 2: expected rank 0's grid" in end["text"]


@pytest.mark.parametrize("name", ["late stop", "late stop of rank 0"])
def test_a_late_stop_stops_all(ends: dict[str, list[Any]], name: str) -> None:
    """SYNC-24: A rank that wants to stop only when it is asked again stops all before the same point."""
    for end in ends[name]:
        assert end["error"] is None
        assert end["done"][3:] == [True, "cleanup"]


@pytest.mark.parametrize(("agreed", "kind"), ANSWERS + REPORTS)
def test_a_rank_that_is_killed_ends_all(ends: dict[str, list[Any]], agreed: str, kind: str) -> None:
    """SYNC-01, SYNC-07: Where a rank is killed at any message, the others end in that round or the next, and
    rank 0 names it; at the very last message all have finished.
    """
    zero, killed, two = ends[f"kill 1 at {kind}"]

    assert killed is None
    if kind == "cleanup_complete":
        assert zero["error"] is two["error"] is None
        return
    assert zero["names"] == [1]
    assert zero["error"] in ("SyncTimeout", "PeerAborted")
    assert two["names"] == [0]
    assert two["error"] in ("SyncTimeout", "PeerAborted")
    last = kind in {m.type_of(one.commit) for one in SPECS}
    assert last or zero["round"] == two["round"] == agreed
    assert abs(len(zero["done"]) - len(two["done"])) <= 1


@pytest.mark.parametrize(("agreed", "kind"), ANSWERS)
def test_all_end_where_rank_0_is_killed(ends: dict[str, list[Any]], agreed: str, kind: str) -> None:
    """SYNC-01, SYNC-07: Where rank 0 is killed after it has answered one rank and not yet the other, both end
    and name rank 0.
    """
    killed, one, two = ends[f"kill 0 at {kind}"]

    assert killed is None
    for end in (one, two):
        if end is one and kind == "cleanup_complete" and end["error"] is None:
            continue  # it got the very last answer, if that had left rank 0
        assert end["error"] == "SyncTimeout"
        assert end["names"] == [0]
    assert two["round"] == agreed
    assert len(one["done"]) - len(two["done"]) in (0, 1)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_is_stopped_is_named(ends: dict[str, list[Any]], rank: int) -> None:
    """SYNC-05, SYNC-07: A rank that is stopped and stays connected is missed after the deadline, by name."""
    others = [end for end in ends[f"stop {rank}"] if end is not None]

    assert len(others) == 2
    for end in others:
        assert end["round"] == "go"
        assert end["names"] == ([2] if rank and end["rank"] == 0 else [0])
    assert any(end["error"] == "SyncTimeout" for end in others)
