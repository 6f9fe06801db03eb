"""Running requests whose tally moves on from pass to pass."""

from __future__ import annotations

import pytest

from forwardpass.engines.vllm.steady import RunningContexts
from forwardpass.wire.tally import Tally


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the lists that were counted afresh, as they come."""
    counted: list[list[int]] = []
    count = Tally.of

    def of(values: list[int]) -> Tally:
        counted.append(list(values))
        return count(values)

    monkeypatch.setattr(Tally, "of", of)
    return counted


def tally(*values: int) -> Tally:
    return Tally(len(values), sum(values), sum(value * value for value in values))


def test_the_same_requests_again_are_not_counted_again(fresh: list[list[int]]) -> None:
    """One token longer each: the sums move on without a look at the squares."""
    running, ids = RunningContexts(), ["a", "b", "c"]
    running.follow(ids, [10, 20, 300])
    fresh.clear()

    assert running.follow(list(ids), [11, 21, 301]) == tally(11, 21, 301)
    assert running.follow(list(ids), [12, 22, 302]) == tally(12, 22, 302)
    assert fresh == []


@pytest.mark.parametrize("gone", [(0,), (1,), (19,), (3, 4), (0, 10, 19), (0, 1, 2, 19)])
@pytest.mark.parametrize("came", [[], [77], [7, 9000]])
def test_some_may_leave_and_others_come(
    fresh: list[list[int]], gone: tuple[int, ...], came: list[int]
) -> None:
    """Wherever a few requests leave and whoever follows behind, only the new ones are counted."""
    running, ids = RunningContexts(), [f"r{number}" for number in range(20)]
    lengths = [10 * number for number in range(20)]
    running.follow(ids, lengths)
    fresh.clear()

    left = {f"r{place}" for place in gone} | {"unknown"}
    for turn in range(2):
        ids = [name for name in ids if name not in left] + [f"new{turn}-{n}" for n in range(len(came))]
        lengths = [length + 1 for at, length in enumerate(lengths) if turn or at not in gone] + came

        assert running.follow(ids, lengths, left) == tally(*lengths)
    assert fresh == ([came, came] if came else [[]])


def test_those_that_leave_in_the_next_pass_are_found_where_they_are(fresh: list[list[int]]) -> None:
    """Places are kept right over departures and arrivals, also of those that came later."""
    running, lengths = RunningContexts(), {f"r{number}": 100 * number for number in range(6)}
    running.follow(list(lengths), list(lengths.values()))
    fresh.clear()
    for left, came in (("r0", "x"), ("x", "y"), ("r5", "z"), ("y", "r0"), ("r3", ""), ("r0", "")):
        del lengths[left]
        lengths = {name: length + 1 for name, length in lengths.items()} | ({came: 7} if came else {})
        assert running.follow(list(lengths), list(lengths.values()), {left}) == tally(*lengths.values())

    assert fresh == [[7], [7], [7], [7], [], []]


def test_one_that_is_left_out_is_counted_afresh(fresh: list[list[int]]) -> None:
    """A request that waits for a pass without having finished makes another list, and so does its return."""
    running = RunningContexts()
    running.follow(["a", "b", "c"], [10, 20, 30])
    fresh.clear()

    assert running.follow(["a", "c"], [11, 31]) == tally(11, 31)
    assert running.follow(["a", "b", "c"], [12, 21, 32]) == tally(12, 21, 32)
    assert [11, 31] in fresh
    assert [12, 21, 32] in fresh


def test_batches_in_turn_are_counted_afresh(fresh: list[list[int]]) -> None:
    """With several batches in flight every pass lists others."""
    running = RunningContexts()
    for step in range(3):
        assert running.follow(["a", "b"], [10 + step, 20 + step]) == tally(10 + step, 20 + step)
        assert running.follow(["c", "d"], [30 + step, 40 + step]) == tally(30 + step, 40 + step)
    assert len(fresh) == 6


def test_a_chunk_grows_by_its_own_tokens(fresh: list[list[int]]) -> None:
    """The position of a chunk's request grows by the chunk, whether it stays or leaves."""
    running = RunningContexts()
    running.follow(["a", "b", "c"], [10, 64, 300])
    running.ran({1: 64})
    fresh.clear()

    assert running.follow(["a", "b", "c"], [11, 128, 301]) == tally(11, 128, 301)
    running.ran({1: 30})
    assert running.follow(["a", "c"], [12, 302], {"b"}) == tally(12, 302)
    assert fresh == [[]]


def test_after_a_step_of_unknown_growth_all_are_counted(fresh: list[list[int]]) -> None:
    """The sum alone proves nothing: after a speculative step it may fit although no length does."""
    running, ids = RunningContexts(), ["a", "b"]
    running.follow(ids, [10, 20])
    running.reset()
    fresh.clear()

    assert running.follow(ids, [12, 20]) == tally(12, 20)
    assert fresh == [[12, 20]]


def test_a_rollback_is_counted_afresh(fresh: list[list[int]]) -> None:
    """A length that shrank, as after a failed KV load, is seen in the sum."""
    running, ids = RunningContexts(), ["a", "b"]
    running.follow(ids, [10, 20])
    fresh.clear()

    assert running.follow(ids, [5, 21]) == tally(5, 21)
    assert fresh == [[5, 21]]


def test_another_order_is_counted_right() -> None:
    """Requests that changed places are as if they had left and come again."""
    running = RunningContexts()
    running.follow(["a", "b", "c"], [10, 20, 30])

    assert running.follow(["b", "a", "c"], [21, 11, 31]) == tally(21, 11, 31)
    assert running.follow(["c", "b", "a"], [32, 22, 12]) == tally(32, 22, 12)


def test_others_with_the_same_sum_are_counted_right() -> None:
    """The ids must be the same too."""
    running = RunningContexts()
    running.follow(["a", "b"], [10, 20])

    assert running.follow(["a", "c"], [11, 21]) == tally(11, 21)
    assert running.follow(["x", "y"], [2, 32]) == tally(2, 32)


def test_an_empty_list_and_back() -> None:
    """A pass of new requests alone lists none; the next one lists them all."""
    running = RunningContexts()
    assert running.follow([], []) == tally()
    assert running.follow(["a", "b"], [10, 20]) == tally(10, 20)
    assert running.follow([], []) == tally()
