"""What the counters of one stream say, whichever publisher carries it."""

from __future__ import annotations

import pytest

from forwardpass.plane.losses import MAX_PUBLISHERS_OF_A_STREAM, CounterLosses, StreamLosses


def losses_of(messages: list[tuple[int, int | None]]) -> tuple[CounterLosses, int]:
    """Return what is said of messages, each a publisher and a counter, one every 10 ms; and the epoch."""
    losses = StreamLosses()
    for at, (publisher, counter) in enumerate(messages):
        losses.note(publisher, counter, 10 * at)
    return losses.result(), losses.epoch


@pytest.mark.parametrize(
    ("messages", "expected", "epoch"),
    [
        ([], CounterLosses(0, 0, 0, 0, 0), 0),
        ([(1, 7)], CounterLosses(0, 0, 0, 0, 0), 0),
        ([(1, 7), (1, 8), (1, 9)], CounterLosses(0, 0, 0, 0, 0), 0),
        ([(1, 7), (1, 10), (1, 12)], CounterLosses(3, 2, 0, 0, 0), 0),
        ([(1, 7), (1, 7)], CounterLosses(0, 0, 1, 0, 0), 0),
        ([(1, 7), (1, None), (1, 8)], CounterLosses(0, 0, 0, 0, 0), 0),
        # the counter goes back behind the same publisher: a decrease, and no proof of a restart
        ([(1, 70), (1, 0), (1, 1)], CounterLosses(0, 0, 0, 1, 0), 0),
        # another publisher: a restart, whatever its counter, and nothing is missing between the two
        ([(1, 70), (2, 0), (2, 1)], CounterLosses(0, 0, 0, 0, 0), 1),
        ([(1, 70), (2, 900), (2, 901)], CounterLosses(0, 0, 0, 0, 0), 1),
        ([(1, 70), (2, None)], CounterLosses(0, 0, 0, 0, 0), 1),
        # two publishers at once are one change and then turns, not a restart each time
        ([(1, 70), (2, 0), (1, 71), (2, 1), (1, 72)], CounterLosses(0, 0, 0, 0, 3), 1),
        # two numberings behind one publisher: the counters of neither are missing
        ([(1, 70), (1, 0), (1, 71), (1, 1), (1, 72)], CounterLosses(0, 0, 0, 1, 3), 0),
    ],
)
def test_losses(messages: list[tuple[int, int | None]], expected: CounterLosses, epoch: int) -> None:
    """SUB-13: Jumps, repetitions, decreases and turns are told apart, and only a publisher that is new to the
    stream is evidence of a restart.
    """
    assert losses_of(messages) == (expected, epoch)


def test_publishers_are_bounded() -> None:
    """SUB-14: A stream remembers a few publishers; one that comes back after more than those is new again."""
    many = [(publisher, 0) for publisher in range(MAX_PUBLISHERS_OF_A_STREAM + 1)]
    _, epoch = losses_of([*many, (0, 1)])

    assert epoch == MAX_PUBLISHERS_OF_A_STREAM + 1
