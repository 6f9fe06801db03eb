"""Laws of what several recorders of one stream miss together."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.analyze.coverage import Coverage, Hole, HoleKind, StreamId, Stretch
from forwardpass.analyze.missing import missing_of

STREAM = StreamId("ns", "backend", "7", 0)
recordings = st.lists(st.sets(st.integers(0, 60), min_size=1), min_size=1, max_size=4)


def coverage(counters: set[int]) -> Coverage:
    """Return what a recorder of these counters has, all of it within one second."""
    stretches: list[Stretch] = []
    for counter in sorted(counters):
        if stretches and counter == stretches[-1].last + 1:
            stretches[-1] = stretches[-1]._replace(last=counter)
        else:
            stretches.append(Stretch(counter, counter, 0, 1000))
    holes = [
        Hole(HoleKind.JUMP, one.last + 1, other.first - 1, 0, 1000) for one, other in pairwise(stretches)
    ]
    return Coverage(STREAM, len(counters), last_ms=1000, holes=holes, stretches=stretches)


@given(recordings)
def test_a_counter_is_missing_once_if_nobody_has_it(recorded: list[set[int]]) -> None:
    """What lies between the first and the last row of all and that nobody has is missing, and named once."""
    found = [
        counter
        for each in missing_of([coverage(counters) for counters in recorded])
        for counter in range(each.hole.first, each.hole.last + 1)
    ]

    everything = set().union(*recorded)
    assert sorted(found) == sorted(set(range(min(everything), max(everything))) - everything)
