"""Splits and axes of the grid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.bench.axes import graph_axis, graph_cap, ladder, powers_of_two, uniform_cap
from forwardpass.bench.partition import (
    Unsplittable,
    even_pairs,
    even_split,
    joined,
    runs_of,
    uneven_split,
    values,
)

SIZES = st.lists(st.integers(1, 600), max_size=60, unique=True).map(sorted)


def test_the_examples_of_the_axes() -> None:
    """GRID-10, GRID-11: The worked examples: captures 1, 2, 4, 8 up to 32, and ten values thinned to four."""
    assert graph_axis([1, 2, 4, 8], 32) == [1, 2, 3, 4, 5, 8, 9, 16, 32]
    assert uniform_cap(range(10), 4) == [0, 3, 6, 9]
    assert graph_axis([], 100) == [1, 2, 4, 8, 16, 32, 64, 100]
    assert graph_axis([8], 0) == []
    assert graph_axis([8, 512], 300) == [8, 9, 300]  # a capture beyond the limit: no doublings
    assert ladder(9, 63) == [9, 16, 32, 63]
    assert powers_of_two(3, 3) == []


def test_a_short_tail_beyond_the_captures_stays_whole() -> None:
    """GRID-11: Two of twenty values beyond the captures are kept, and only the others thinned; eight of
    twenty are not; a room of one for what is covered takes its first value.
    """
    covered, tail = list(range(1, 19)), [100, 200]

    assert graph_cap(covered + tail, [18], 5) == [1, 10, 18, 100, 200]
    assert graph_cap(covered + tail, [18], 3) == [1, 100, 200]
    assert graph_cap(covered + tail, [18], 2) == uniform_cap(covered + tail, 2)
    assert graph_cap(list(range(20)), [11], 6) == uniform_cap(list(range(20)), 6)
    assert graph_cap(list(range(20)), [], 6) == uniform_cap(list(range(20)), 6)
    assert graph_cap([1, 2], [1], 2) == [1, 2]


@given(SIZES, st.integers(1, 5000))
def test_an_axis_is_ascending_and_ends_at_its_limit(captures: list[int], limit: int) -> None:
    """GRID-10: Whatever is captured, an axis is ascending without repetition, ends at the limit, and has each
    captured size and the one after it.
    """
    axis = graph_axis(captures, limit)

    assert axis == sorted(set(axis))
    assert axis[-1] == limit
    assert axis[0] >= 1
    for size in captures:
        if size < limit:
            assert {size, size + 1} <= set(axis)


@given(SIZES, SIZES, st.integers(2, 20))
def test_thinning_keeps_both_ends(axis: list[int], captures: list[int], most: int) -> None:
    """GRID-11: A thinned axis is a part of the whole one, no longer than asked; evenly thinned it has both
    ends.
    """
    thinned, even = graph_cap(axis, captures, most), uniform_cap(axis, most)

    assert len(thinned) <= most
    assert set(thinned) <= set(axis)
    assert thinned == sorted(set(thinned))
    assert thinned[-1:] == axis[-1:]
    assert (even[:1], even[-1:], len(even)) == (axis[:1], axis[-1:], min(most, len(axis)))


@given(st.integers(0, 10_000), st.integers(1, 300), st.integers(1, 64), st.integers(0, 3))
def test_an_even_split_conserves_the_total(total: int, parts: int, unit: int, minimum: int) -> None:
    """GRID-02: An even split has a part for each request, which differ by one unit at most, the larger first;
    or it says that there is none, when a part would be below the minimum or a unit would be cut.
    """
    try:
        runs = even_split(total, parts, unit=unit, minimum=minimum)
    except Unsplittable:
        assert total % unit or total // unit < parts * minimum
        return
    parts_found = list(values(runs))

    assert sum(parts_found) == total
    assert len(parts_found) == parts
    assert parts_found == sorted(parts_found, reverse=True)
    assert parts_found[0] - parts_found[-1] in (0, unit)
    assert all(part % unit == 0 and part >= minimum * unit for part in parts_found)


@given(st.integers(1, 5000), st.integers(2, 100), st.data(), st.floats(0.01, 0.99), st.sampled_from([1, 16]))
def test_an_uneven_split_conserves_the_total(
    units: int, parts: int, data: st.DataObject, fraction: float, unit: int
) -> None:
    """GRID-02: An uneven split conserves the total, has ``high_count`` equal parts first, above the mean by
    the fraction, and the rest evenly.
    """
    high_count = data.draw(st.integers(1, parts - 1))
    total = units * unit
    try:
        found = list(values(uneven_split(total, parts, high_count=high_count, fraction=fraction, unit=unit)))
    except Unsplittable:
        rest = units - high_count * max(1, round(units / parts * (1 + fraction)))
        assert rest < parts - high_count
        return

    assert sum(found) == total
    assert len(found) == parts
    assert len(set(found[:high_count])) == 1
    assert found[0] == unit * max(1, round(units / parts * (1 + fraction)))
    assert max(found[high_count:]) - min(found[high_count:]) <= unit


@pytest.mark.parametrize("high_count", [0, 4, 5])
def test_not_all_can_be_above_the_mean(high_count: int) -> None:
    """GRID-02: An uneven split needs at least one request above and one below."""
    with pytest.raises(Unsplittable):
        uneven_split(100, 4, high_count=high_count, fraction=0.5)


@given(st.lists(st.integers(0, 3), min_size=1), st.data())
def test_runs_are_joined_request_by_request(first: list[int], data: st.DataObject) -> None:
    """GRID-02: Joined runs have the pair of every request, in order."""
    second = data.draw(st.lists(st.integers(0, 3), min_size=len(first), max_size=len(first)))
    pairs = [pair for a, b, count in joined(runs_of(first), runs_of(second)) for pair in [(a, b)] * count]

    assert pairs == list(zip(first, second, strict=True))


@given(st.integers(-3, 300), st.integers(-3, 400), st.integers(1, 20), st.sampled_from([1, 16]))
def test_two_even_splits_at_once(first: int, second: int, parts: int, unit: int) -> None:
    """GRID-02: The fast way gives what two splits give, request by request, or nothing if one fails."""

    def split(total: int, size: int) -> list[int] | None:
        try:
            return list(values(even_split(total, parts, unit=size)))
        except Unsplittable:
            return None

    new = split(first, 1)
    read = split(second, unit) if second else [0] * parts
    found = even_pairs(first, second, parts, unit)
    if new is None or read is None:
        assert found is None
        return

    assert found is not None
    assert all(count > 0 for _, _, count in found)
    assert [pair for a, b, count in found for pair in [(a, b)] * count] == list(zip(new, read, strict=True))
