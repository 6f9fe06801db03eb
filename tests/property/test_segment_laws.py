"""Laws of segments, for any sizes and names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.trace.segments import Entry, Fill, SegmentNames, prunable

NAMES = SegmentNames.of("/d/fpm", "7")


@given(st.integers(0, 2**64 - 1), st.text(max_size=20))
def test_names_and_numbers_are_the_same_thing(index: int, producer: str) -> None:
    """TRACE-05: the number is found in every name that was made from it, for any producer."""
    names = SegmentNames.of("/d/fpm", producer)
    name = names.path(index).rpartition("/")[2]

    assert names.index_of(name) == index


@given(st.text(max_size=30))
def test_no_other_name_is_ours(name: str) -> None:
    """TRACE-43: whatever is taken for a segment is written exactly as we would write it."""
    index = NAMES.index_of(name)

    assert index is None or NAMES.path(index) == f"/d/{name}"


@given(st.lists(st.integers(1, 5000)), st.integers(1, 4000))
def test_segments_never_exceed_the_limit(sizes: list[int], limit: int) -> None:
    """TRACE-42: a segment holds at most the limit, except a single row that is larger."""
    segments = [Fill()]
    for size in sizes:
        if segments[-1].rolls_before(size, limit):
            segments.append(Fill())
        segments[-1].add(1, size)

    assert all(fill.bytes <= limit or fill.rows == 1 for fill in segments)
    assert sum(fill.bytes for fill in segments) == sum(sizes)


@given(st.sets(st.integers(0, 2_000_000)), st.integers(1, 6), st.integers(0, 2_000_000))
def test_pruning_leaves_the_highest(indices: set[int], limit: int, active: int) -> None:
    """TRACE-43: the limit holds afterwards, the highest stay, and the active one is never deleted."""
    present = indices | {active}
    entries = [Entry(NAMES.path(index).rpartition("/")[2], True) for index in present]
    gone = prunable(NAMES, entries, limit, active)

    assert len(present) - len(gone) == min(len(present), limit)
    assert active not in gone
    assert gone == sorted(gone)
    assert not gone or max(gone) < min(present - set(gone) - {active}, default=2_000_001)
