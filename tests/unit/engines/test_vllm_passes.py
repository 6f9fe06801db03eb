"""Passes that are noted on one thread and counted on another."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from vllm_shapes import Output, Row, output, prompt

from forwardpass.engines.vllm.extract import known_lengths
from forwardpass.engines.vllm.passes import MAX_UNCOUNTED, Pass, PassCounter
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE, NOTHING
from forwardpass.errors import EngineError
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics


def noted(counter: PassCounter, out: Any, **more: Any) -> Pass:
    """Return a pass that has run while nothing waited."""
    done = Pass(counter, out, known_lengths(out.scheduled_new_reqs), 1.0, **{"queue": EMPTY_QUEUE, **more})
    counter.ran(done)
    return done


def chunks(counter: PassCounter, name: str = "a") -> tuple[Pass, Pass]:
    """Return the two chunks of a prompt of 100 tokens: how long it is, only the first one says."""
    first = noted(counter, output(new=[(prompt(name, 100), 40)]))
    return first, noted(counter, output(Row(name, 40, 0, 60), new=[(prompt(f"{name}-2", 20), 20)]))


SECOND_CHUNK = ScheduledRequestMetrics(2, 80, 1600.0, 40, 0, 0, 0.0)


@pytest.fixture
def counter() -> PassCounter:
    return PassCounter(ManualClock())


def test_a_pass_becomes_a_message(counter: PassCounter) -> None:
    """It has the time and the queue that were noted, and what ran as it is counted now."""
    done = noted(counter, output(Row("a", 10, 1)), wall_time=0.25, queue=((2, 40, 1000), NOTHING))
    message = done.build()

    assert message.wall_time == 0.25
    assert message.scheduled_requests == ScheduledRequestMetrics(
        num_decode_requests=1, sum_decode_kv_tokens=10
    )
    assert message.queued_requests == QueuedRequestMetrics(2, 40, 100.0, 0, 0, 0.0)


def test_a_pass_that_nobody_asks_for_is_counted_in_its_turn(counter: PassCounter) -> None:
    """CASE-17: What a refused message told about a prompt is known to the pass that goes on with it."""
    _, second = chunks(counter)

    assert second.build().scheduled_requests == SECOND_CHUNK


def test_passes_nobody_takes_are_counted_and_let_go(counter: PassCounter) -> None:
    """A paused publisher, or one with a full queue, leaves no outputs behind in memory."""
    done = [noted(counter, output(Row("a", 10 + step, 1 + step))) for step in range(5 * MAX_UNCOUNTED)]

    assert sum(each.output is not None for each in done) <= MAX_UNCOUNTED
    counter.catch_up()
    assert all(each.output is None for each in done)
    assert done[0].build().scheduled_requests.sum_decode_kv_tokens == 10
    assert done[-1].build().scheduled_requests.sum_decode_kv_tokens == 9 + 5 * MAX_UNCOUNTED


def test_the_engine_counts_no_more_than_comes(counter: PassCounter) -> None:
    """ENG-12: Where nobody else does it the engine's thread counts two passes for each that comes, and is
    never held up by all that has gathered.
    """
    with counter._lock:
        done = [noted(counter, output(Row("a", 10, 1))) for _ in range(2 * MAX_UNCOUNTED)]
    before = sum(each.output is not None for each in done)
    noted(counter, output(Row("a", 10, 1)))

    assert before - sum(each.output is not None for each in done) <= 3  # one of them made room


def test_the_engine_never_waits_for_the_other_thread(counter: PassCounter) -> None:
    """With the lock held for ever, as in a child of a fork in the middle, passes are still taken, and what is
    remembered of them does not grow.
    """
    with counter._lock:
        done = [noted(counter, output(Row("a", 10, 1))) for _ in range(10 * MAX_UNCOUNTED)]
        assert len(counter._uncounted) == 2 * MAX_UNCOUNTED

    assert done[-1].build()
    with pytest.raises(EngineError, match="could not be counted"):
        done[0].build()


def test_an_uncountable_pass_costs_itself_alone(
    counter: PassCounter, caplog: pytest.LogCaptureFixture
) -> None:
    """ENG-02: One line, a count, and an error for who wants that pass; those around it are right."""
    first, second = chunks(counter)
    strange = Pass(counter, object(), (), 1.0, queue=EMPTY_QUEUE)
    counter.ran(strange)
    third = noted(counter, output(Row("a", 100, 1)))
    with caplog.at_level(logging.ERROR):
        messages = [each.build().scheduled_requests for each in (first, second, third)]
        with pytest.raises(EngineError):
            strange.build()

    assert messages[1] == SECOND_CHUNK
    assert messages[2].sum_decode_kv_tokens == 100
    assert counter.failures == 1
    assert len(caplog.records) == 1
    assert "serving goes on" in caplog.text


def test_an_empty_output_only_forgets(counter: PassCounter) -> None:
    """Requests that finished before a step without tokens are forgotten in their turn, not earlier."""
    _first, second = chunks(counter)
    noted(counter, Output({}, finished_req_ids={"a", "a-2"}))

    assert second.build().scheduled_requests == SECOND_CHUNK
    counter.catch_up()
    assert counter.memory.lengths == {}
