"""What a publisher's sequence numbers say."""

from __future__ import annotations

import random

import pytest

from forwardpass.wire.sequence import SequenceWatch


@pytest.mark.parametrize(
    ("numbers", "gaps", "lost", "restarts"),
    [
        ([], 0, 0, 0),
        ([0], 0, 0, 0),
        ([41], 0, 0, 0),  # the reader came late: nothing was missed
        ([0, 1, 2, 3], 0, 0, 0),
        ([5, 6, 9], 1, 2, 0),
        ([0, 2, 4, 6], 3, 3, 0),
        ([7, 8, 0, 1], 0, 0, 1),
        ([7, 8, 3, 4], 0, 0, 1),  # a restart whose first messages nobody saw
        ([7, 7], 0, 0, 1),
        ([7, 0, 2], 1, 1, 1),
        ([2**64 - 2, 2**64 - 1, 0], 0, 0, 1),
    ],
)
def test_counts(numbers: list[int], gaps: int, lost: int, restarts: int) -> None:
    """RELAY-07: Skipped numbers are gaps and losses, numbers that do not grow are restarts."""
    watch = SequenceWatch()
    watch.note_many(numbers)

    assert (watch.gaps, watch.lost, watch.restarts) == (gaps, lost, restarts)


def test_batches_do_not_matter() -> None:
    """However the numbers are cut into batches, the counts are those of one by one."""
    randomness = random.Random(7)
    number, numbers = 0, []
    for _ in range(2000):
        number = randomness.choice([number + 1] * 20 + [number + 3, 0, number])
        numbers.append(number)
    one_by_one, in_batches = SequenceWatch(), SequenceWatch()
    for number in numbers:
        one_by_one.note_many([number])
    position = 0
    while position < len(numbers):
        size = randomness.randrange(1, 50)
        in_batches.note_many(tuple(numbers[position : position + size]))
        position += size

    assert one_by_one.lost > 0
    assert (in_batches.gaps, in_batches.lost, in_batches.restarts) == (
        one_by_one.gaps,
        one_by_one.lost,
        one_by_one.restarts,
    )


def test_a_gap_and_a_restart_that_cancel_out() -> None:
    """A batch whose ends fit together is still looked at inside."""
    watch = SequenceWatch()
    watch.note_many([1])
    watch.note_many([2, 9, 3, 5])

    assert (watch.gaps, watch.restarts) == (2, 1)
