"""Count, sum and variance of integers."""

from __future__ import annotations

import pytest

from forwardpass.wire.tally import Tally, sum_and_variance


@pytest.mark.parametrize(
    ("values", "total", "variance"),
    [
        ([], 0, 0.0),
        ([7], 7, 0.0),
        ([0, 0], 0, 0.0),
        ([1, 2], 3, 0.25),
        ([1, 1, 2], 4, 2 / 9),
        ([2**62, 2**62 + 2], 2**63 + 2, 1.0),
    ],
)
def test_known_values(values: list[int], total: int, variance: float) -> None:
    """WIRE-12: population variance, 0.0 below two values, exact where a naive float formula loses it."""
    assert sum_and_variance(values) == (total, variance)
    tally = Tally.of(values)
    assert (tally.n, tally.total, tally.variance) == (len(values), total, variance)


def test_merge_is_the_union() -> None:
    """Merging two tallies is tallying both multisets."""
    left = Tally.of([1, 2])
    left.merge(Tally.of([5]))

    assert left == Tally.of([5, 2, 1])


def test_an_empty_tally_is_zero() -> None:
    """Everything removed leaves what there was at the start."""
    tally = Tally()
    tally.add(9)
    tally.remove(9)

    assert tally == Tally()
    assert tally.variance == 0.0


def test_a_tally_is_only_equal_to_a_tally() -> None:
    """Comparing with another type is no error and not equal."""
    assert Tally() != 0
    assert repr(Tally.of([3])) == "Tally(n=1, total=3, squares=9)"
