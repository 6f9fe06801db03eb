"""Whose life a counter continues."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.wire.epochs import LIVE_MS, Epochs, StepKind

FIRST, NEXT, JUMP, AGAIN, RESTART, OTHER = (
    StepKind.FIRST, StepKind.NEXT, StepKind.JUMP, StepKind.AGAIN, StepKind.RESTART, StepKind.OTHER,
)  # fmt: skip


def kinds(counters: list[int], every_ms: int = 20) -> list[StepKind]:
    """Return what each row is, one every so many milliseconds."""
    epochs = Epochs()
    return [epochs.step(counter, at * every_ms).kind for at, counter in enumerate(counters)]


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ([5, 6, 7], [FIRST, NEXT, NEXT]),
        ([5, 9, 10], [FIRST, JUMP, NEXT]),
        ([5, 5, 6], [FIRST, AGAIN, NEXT]),
        ([5, 6, 0, 1], [FIRST, NEXT, RESTART, NEXT]),
        ([5, 6, 2, 3], [FIRST, NEXT, RESTART, NEXT]),
        ([100, 0, 101, 1, 102, 2], [FIRST, RESTART, OTHER, OTHER, OTHER, OTHER]),
        ([100, 0, 1, 103, 2], [FIRST, RESTART, NEXT, JUMP, OTHER]),
    ],
)
def test_each_row_continues_the_life_it_is_nearest_to(counters: list[int], expected: list[StepKind]) -> None:
    """Steps, jumps, repeats, restarts, and two publishers that take turns, each with its own jumps."""
    assert kinds(counters) == expected


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 2 * LIVE_MS)), max_size=40))
def test_the_short_way_for_the_next_row_leads_to_the_same(rows: list[tuple[int, int]]) -> None:
    """Asking first whether a row simply follows changes nothing about that row or those after it."""
    plain, short = Epochs(), Epochs()
    for counter, at in rows:
        step = plain.step(counter, at)
        if short.follows(counter, at):
            assert step.kind is NEXT
        else:
            assert short.step(counter, at) == step

    assert (short.restarts, short.turns) == (plain.restarts, plain.turns)


def test_a_jump_says_what_was_skipped_and_since_when() -> None:
    """The counters between two rows of one life are counted, and the time is that of the row before."""
    epochs = Epochs()
    epochs.step(100, 1_000)
    epochs.step(0, 1_010)
    jump = epochs.step(105, 1_500)

    assert (jump.kind, jump.last, jump.last_ms, jump.skipped) == (JUMP, 100, 1_000, 4)
    assert (epochs.restarts, epochs.turns) == (1, 1)


def test_a_life_that_fell_silent_is_over() -> None:
    """Counters that a restarted publisher reaches again are its own, though the former life had them too."""
    epochs = Epochs()
    epochs.step(50, 0)
    epochs.step(0, 100)
    steps = [epochs.step(counter, LIVE_MS + counter) for counter in range(1, 60)]
    jump = epochs.step(70, LIVE_MS + 100)

    assert {step.kind for step in steps} == {NEXT}
    assert (jump.kind, jump.last, jump.skipped) == (JUMP, 59, 10)
    assert epochs.turns == 0


def test_many_restarts_keep_few_lives() -> None:
    """A publisher that begins again over and over is followed in bounded memory."""
    epochs = Epochs()
    for restart in range(1000):
        for counter in range(3):
            epochs.step(counter, restart)

    assert epochs.restarts == 999
    assert len(epochs._lives) <= 16
