"""Random walks through all that counts a pass equal rational arithmetic (``scripts/prove_exact.py`` runs a
million steps of them).
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from exact_walk import WALKS, exact_variance, welford_variance


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.__name__)
@pytest.mark.parametrize("seed", range(6))
def test_every_step_is_exact(walk: Callable[[int, int], int], seed: int) -> None:
    """WIRE-12: whatever happened before, each pass's variances are the floats nearest to the exact values."""
    assert walk(seed, 400) > 0


def test_a_running_mean_is_not_exact() -> None:
    """The walks can tell: a running floating-point mean misses the nearest float, by little but often."""
    rng = random.Random(3)
    groups = [[rng.randrange(1, 100_000) for _ in range(50)] for _ in range(200)]
    missed = sum(welford_variance(values) != float(exact_variance(values)) for values in groups)

    assert missed > 100
