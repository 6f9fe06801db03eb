"""Processes in which sets go round in other orders plan and digest a benchmark alike."""

from __future__ import annotations

import os
import subprocess
import sys

PLAN = """
from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings, KvGroup
from forwardpass.bench.plan import plan_grid, rank_invariants_digest

graph = GraphSettings("FULL", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8, 16, 24, 32))
layout = EngineLayout((KvGroup(16), KvGroup(32, admission_cap=9)), 16, 16, graph=graph)
config = BenchConfig(BenchMode.AGG)
grid = plan_grid(config, layout, CapacityEnvelope(2048, 256, 16, 1000, 1000)).grid
print(grid.digest, [phase.value for phase in grid.missing_phases])
print(rank_invariants_digest(config, layout, {"b": 1, "a": 2}, prefill_real_seed=False))
"""


def test_hash_seeds_of_processes_change_nothing() -> None:
    """PIT-38, GRID-33, BCONF-40: The grid and the digest of what must be alike are the same for every seed of
    Python's hashes.
    """
    said = {
        subprocess.run(
            [sys.executable, "-c", PLAN],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("0", "1", "2")
    }

    assert len(said) == 1
    assert len(said.pop().split()[0]) == 64
