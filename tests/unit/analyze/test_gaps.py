"""What counters say about missing rows."""

from __future__ import annotations

from collections.abc import Iterable

from forwardpass.analyze.gaps import GapTracker, StreamGaps, TraceStream
from forwardpass.testing.traces import trace_record


def gaps_of(counters: Iterable[int | tuple[int, str]]) -> StreamGaps:
    """Return what one stream of these counters (with their capture modes) looks like."""
    tracker = GapTracker()
    for each in counters:
        counter, mode = each if isinstance(each, tuple) else (each, "full")
        tracker.add(trace_record(counter, capture_mode=mode))
    return tracker.result(TraceStream("1", "2", 3))


def test_counters_in_a_row_have_no_gap() -> None:
    """TRAP-25: Neither 0 nor 1 as the first counter is a gap, nor any other: nothing is known before it."""
    for first in (0, 1, 500):
        gaps = gaps_of(range(first, first + 10))

        assert (gaps.rows, gaps.missing, gaps.gaps, gaps.restarts, gaps.duplicates) == (10, 0, 0, 0, 0)
        assert (gaps.first_counter, gaps.last_counter) == (first, first + 9)


def test_a_jump_counts_what_it_leaves_out() -> None:
    """Two jumps over three counters are three missing messages in two gaps."""
    gaps = gaps_of([0, 1, 4, 5, 7])

    assert (gaps.missing, gaps.gaps) == (3, 2)


def test_a_counter_that_goes_back_is_a_restart() -> None:
    """A publisher that begins again is no gap, and what lies between is not counted as missing."""
    gaps = gaps_of([7, 8, 0, 1, 2])

    assert (gaps.restarts, gaps.missing, gaps.gaps, gaps.last_counter) == (1, 0, 0, 2)


def test_two_publishers_under_one_name_are_followed_apart() -> None:
    """Rows of two publishers in turn continue each its own life: one restart, no gap at each turn."""
    gaps = gaps_of([1000, 0, 1001, 1, 1002, 2, 4])

    assert (gaps.restarts, gaps.turns, gaps.missing, gaps.gaps) == (1, 4, 1, 1)


def test_a_repeated_counter_is_a_duplicate() -> None:
    """Two publishers under one name, or one recorded twice, show as repeated counters."""
    gaps = gaps_of([0, 0, 1, 1, 2])

    assert (gaps.duplicates, gaps.missing, gaps.restarts) == (2, 0, 0)


def test_gaps_of_a_sampled_stream_are_sampling() -> None:
    """TRACE-34: where rows are left out on purpose nothing is said to be missing."""
    gaps = gaps_of([(5, "sampled"), (40, "sampled"), (41, "sampled"), (80, "sampled")])

    assert (gaps.sampled, gaps.sampled_out, gaps.missing, gaps.gaps) == (True, 34 + 38, 0, 0)


def test_restart_of_a_sampled_stream_is_seen() -> None:
    """A counter that goes back says restart in either mode."""
    assert gaps_of([(50, "sampled"), (3, "sampled")]).restarts == 1


def test_jump_between_modes_is_not_called_missing() -> None:
    """A recording that changes from sampled to full left rows out before the change."""
    gaps = gaps_of([(0, "sampled"), (10, "full"), (11, "full"), (14, "full"), (20, "sampled")])

    assert (gaps.sampled_out, gaps.missing, gaps.gaps) == (9 + 5, 2, 1)


def test_result_names_the_stream() -> None:
    """The stream is the writer's producer, the worker and the rank."""
    gaps = gaps_of([0])

    assert (gaps.producer_id, gaps.worker_id, gaps.dp_rank) == ("1", "2", 3)
