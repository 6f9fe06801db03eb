"""Laws of the tallies, against exact rational arithmetic and against Welford's running mean."""

from __future__ import annotations

import math
from fractions import Fraction
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.wire.tally import Tally, sum_and_variance

lengths = st.lists(st.integers(0, 2**40), max_size=60)
prompts = st.lists(st.integers(0, 200_000), max_size=300)


def exact_variance(values: list[int]) -> Fraction:
    """Return the population variance as a fraction."""
    mean = Fraction(sum(values), len(values))
    return sum(((value - mean) ** 2 for value in values), Fraction(0)) / len(values)


def welford(values: list[int]) -> float:
    """Return the population variance by Welford's single pass, as the reference computes it."""
    mean = m2 = 0.0
    for count, value in enumerate(values, start=1):
        delta = value - mean
        mean += delta / count
        m2 += delta * (value - mean)
    return m2 / len(values) if len(values) > 1 else 0.0


@given(lengths)
def test_variance_is_the_rounded_exact_value(values: list[int]) -> None:
    """WIRE-12: the variance is the float nearest to the exact rational one; the sum is exact."""
    total, variance = sum_and_variance(values)

    assert total == sum(values)
    assert variance == (float(exact_variance(values)) if len(values) > 1 else 0.0)
    assert Tally.of(values).variance == variance


@given(prompts)
def test_agrees_with_welford(values: list[int]) -> None:
    """WIRE-12: the reference's running mean gives the same to 1e-9 relative."""
    assert math.isclose(sum_and_variance(values)[1], welford(values), rel_tol=1e-9, abs_tol=1e-9)


@given(lengths, st.integers(0, 2**40))
def test_remove_undoes_add(values: list[int], value: int) -> None:
    """A value that enters and leaves changes nothing, not even in the last bit."""
    tally = Tally.of(values)
    tally.add(value)
    tally.remove(value)

    assert tally == Tally.of(values)


@given(lengths, st.randoms(use_true_random=False))
def test_order_of_coming_and_going_does_not_matter(values: list[int], random: Random) -> None:
    """Whatever leaves in whatever order, what remains is tallied exactly."""
    tally = Tally()
    for value in values:
        tally.add(value)
    leaving = values[: len(values) // 2]
    random.shuffle(leaving)
    for value in leaving:
        tally.remove(value)

    assert tally == Tally.of(values[len(values) // 2 :])


@given(lengths, lengths)
def test_merge_is_concatenation(left: list[int], right: list[int]) -> None:
    """Merging tallies equals tallying everything at once, and does not depend on the order."""
    one, other = Tally.of(left), Tally.of(right)
    one.merge(Tally.of(right))
    other.merge(Tally.of(left))

    assert one == other == Tally.of(left + right)


@given(lengths)
def test_variance_is_never_negative(values: list[int]) -> None:
    """WIRE-13: rounding cannot make a variance negative."""
    assert sum_and_variance(values)[1] >= 0.0
