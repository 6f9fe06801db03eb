"""What a few samples allow to be said, counted case by case and compared with what the module says."""

from __future__ import annotations

import statistics
from itertools import combinations, product
from math import comb

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.analyze.benchmark.intervals import (
    LEVEL,
    MOST_SAMPLES,
    by_chance,
    median_interval,
    ratio_interval,
)
from forwardpass.analyze.benchmark.spread import spread


@pytest.mark.parametrize(("one", "other"), [(1, 2), (2, 2), (2, 3), (3, 3), (4, 4), (3, 5), (5, 5)])
@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_the_level_is_the_share_of_orders_that_hold_the_truth(one: int, other: int, level: float) -> None:
    """DIFF-09: Of all orders that samples of one distribution can have, exactly the stated share has the
    factor 1 within the interval.
    """
    hits = 0
    reached = set()
    for places in combinations(range(one + other), one):
        before = [1.0 + at for at in places]
        after = [1.0 + at for at in range(one + other) if at not in places]
        interval = ratio_interval(before, after, level)
        assert interval is not None
        hits += interval.low < 1 < interval.high
        reached.add(interval.level)
    (stated,) = reached

    assert stated == pytest.approx(hits / comb(one + other, one))


def test_few_samples_reach_no_more_than_they_can() -> None:
    """DIFF-09: One sample on each side says nothing; two, three and four on each reach 67, 90 and 97 %."""
    sides = [[1.0 + at / 10 for at in range(count)] for count in range(5)]
    levels = [found.level for side in sides[2:] if (found := ratio_interval(side, side))]

    assert ratio_interval(sides[1], sides[1]) is None
    assert ratio_interval(sides[0], sides[3]) is None
    assert levels == pytest.approx([2 / 3, 0.9, 1 - 2 / 70])


def test_the_narrowest_interval_is_taken() -> None:
    """DIFF-09: Five samples on each side leave out two ratios at either end: 96.8 %, and no more would do."""
    before, after = [1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.2, 2.4, 2.6, 2.8]
    ratios = sorted(late / early for early, late in product(before, after))
    interval = ratio_interval(before, after)

    assert interval is not None
    assert (interval.low, interval.high) == (ratios[2], ratios[-3])
    assert interval.level == pytest.approx(1 - 2 * 4 / 252)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=8),
    st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=8),
    st.floats(0.01, 100),
)
def test_a_factor_moves_the_interval_by_itself(
    before: list[float], after: list[float], factor: float
) -> None:
    """DIFF-09: Times that are so much longer give an interval that is so much higher, and as sure."""
    plain = ratio_interval(before, after)
    moved = ratio_interval(before, [time * factor for time in after])

    assert plain is not None
    assert moved is not None
    assert moved.low == pytest.approx(plain.low * factor)
    assert moved.high == pytest.approx(plain.high * factor)
    assert moved.level == plain.level


def test_a_time_of_zero_has_no_ratio() -> None:
    """DIFF-09: With a time of 0 among the samples nothing is said."""
    assert ratio_interval([0.0, 1.0], [1.0, 1.0]) is None


def test_very_many_samples_are_thinned_by_position() -> None:
    """DIFF-09: Of a million samples so many are taken that counting stays possible, whatever their values."""
    interval = ratio_interval([1.0] * 1_000_000, [2.0] * (MOST_SAMPLES + 1))

    assert interval is not None
    assert (interval.low, interval.high) == (2.0, 2.0)
    assert interval.reaches(LEVEL)


@pytest.mark.parametrize("count", [2, 3, 5, 6, 9])
def test_the_interval_of_a_median_is_counted(count: int) -> None:
    """DIFF-12: Of all ways in which values can lie about a median, exactly the stated share has it inside."""
    hits = 0
    reached = set()
    for signs in product((-1, 1), repeat=count):
        interval = median_interval([sign * (1.0 + at) for at, sign in enumerate(signs)])
        assert interval is not None
        hits += interval.low < 0 < interval.high
        reached.add(interval.level)
    (stated,) = reached

    assert stated == pytest.approx(hits / 2**count)


def test_a_median_of_thousands_has_an_interval() -> None:
    """DIFF-12: Thousands of points give an interval just as sure as asked for, and one point gives none."""
    interval = median_interval([float(at) for at in range(5000)])

    assert interval is not None
    assert 0.95 <= interval.level < 0.953
    assert interval.low < 2499.5 < interval.high
    assert median_interval([1.0]) is None


@pytest.mark.parametrize(("decided", "tests"), [(0, 0), (0, 5), (1, 1), (2, 30), (30, 30)])
def test_chance_is_binomial(decided: int, tests: int) -> None:
    """DIFF-11: So many or more of so many intervals, each with its share of misses."""
    expected = sum(comb(tests, at) * 0.05**at * 0.95 ** (tests - at) for at in range(decided, tests + 1))

    assert by_chance(decided, tests, 0.05) == pytest.approx(expected)


def test_chance_of_very_many_intervals_is_a_number() -> None:
    """DIFF-11: Tens of thousands of intervals neither overflow nor vanish."""
    assert by_chance(1_000, 20_000, 0.05) == pytest.approx(0.5, abs=0.05)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(1e-6, 1e3), min_size=2, max_size=20))
def test_a_spread_is_that_of_the_textbook(times: list[float]) -> None:
    """SHOW-04: Deviation is that of a sample; the median is the upper one."""
    found = spread(times)

    assert found is not None
    assert (found.count, found.least, found.most) == (len(times), min(times), max(times))
    assert found.median == statistics.median_high(times)
    assert found.cv == pytest.approx(statistics.stdev(times) / statistics.fmean(times), abs=1e-9)


def test_a_lone_time_has_no_cv() -> None:
    """SHOW-04: One time has a value and no spread, none has nothing, times of 0 have no ratio to a mean."""
    lone, zeros = spread([0.5]), spread([0.0, 0.0])

    assert lone is not None
    assert zeros is not None
    assert (lone.cv, zeros.cv, spread([])) == (None, None, None)
