"""When a pass begins and ends, and that the engine never notices the recorder."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from vllm_shapes import Output, Row, output, prompt

from forwardpass.engines.vllm.recorder import MAX_IN_FLIGHT, NullRecorder, PassRecorder
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE
from forwardpass.publish.stream import LateMetrics
from forwardpass.pump import StopReport
from forwardpass.testing.clock import ManualClock
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

EMPTY = Output({})
WAITING = QueuedRequestMetrics(1, 9, 0.0, 0, 0, 0.0)


class Publisher(ListPublisher):
    """Fails on request."""

    error: Exception | None = None

    def publish_later(self, late: LateMetrics) -> bool:
        if self.error:
            raise self.error
        return super().publish_later(late)

    def shutdown(self, timeout: float = 1.0) -> StopReport:
        report = super().shutdown(timeout)
        if self.error:
            raise self.error
        return report


class Bench:
    """A recorder with its surroundings."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.publisher = Publisher(worker_id="")
        self.queue = EMPTY_QUEUE
        self.unreadable: Exception | None = None
        self.meanwhile: Callable[[], None] | None = None
        self.unfinished: list[str] = ["a"]
        self.recorder = PassRecorder(self.publisher, self, unfinished=self.unfinished, clock=self.clock)

    def read(self, now: float) -> QueuedRequestMetrics:
        if self.unreadable:
            raise self.unreadable
        return self.queue

    def waiting_now(self) -> QueuedRequestMetrics:
        if self.meanwhile:
            self.meanwhile()
        return self.read(0.0)

    def schedule(self, out: Output) -> Output:
        self.recorder.scheduled(out)
        return out

    def settle(self, out: Output) -> None:
        self.recorder.finished(out, self.recorder.now())

    def run(self, seconds: float, out: Output | None = None) -> None:
        out = self.schedule(out or output(Row("a", 10, 1)))
        self.clock.advance(seconds)
        self.settle(out)

    @property
    def times(self) -> list[float]:
        return [metrics.wall_time for metrics in self.publisher.messages]


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_first_pass_spans_schedule_to_output(bench: Bench) -> None:
    """ENG-03, PIT-01: Without an output before it there is only the schedule to count from."""
    bench.clock.advance(100)
    bench.run(0.25)

    assert bench.times == pytest.approx([0.25])


def test_only_the_pass_that_leaves_no_request_goes_out_at_once(bench: Bench) -> None:
    """ENG-46: The publisher is woken when the engine has run dry, after the pass was handed over; not while
    requests are left, and not by an empty step.
    """
    bench.run(0.25)
    bench.run(0.25)
    assert bench.publisher.hurried == []
    bench.unfinished.clear()
    bench.run(0.25)
    bench.settle(bench.schedule(EMPTY))

    assert bench.publisher.hurried == [3]


def test_later_passes_are_the_period_between_outputs(bench: Bench) -> None:
    """ENG-03: From the second on, time between passes belongs to the later one."""
    bench.run(0.25)
    bench.clock.advance(0.5)
    bench.run(0.25)

    assert bench.times == pytest.approx([0.25, 0.75])


def test_an_empty_step_ends_the_count_and_is_no_pass(bench: Bench) -> None:
    """ENG-02, ENG-03: Idle time after an empty step is nobody's; the step publishes nothing, and its queue is
    noted for heartbeats (D-3).
    """
    bench.run(0.25)
    bench.queue = WAITING
    bench.settle(bench.schedule(EMPTY))
    assert bench.publisher.queue_notes == [WAITING]
    bench.clock.advance(3600)
    bench.run(0.25)

    assert bench.times == pytest.approx([0.25, 0.25])


def test_overlapped_batches_are_matched_to_their_own_schedules(bench: Bench) -> None:
    """CASE-16: In async order (schedule, schedule, output) the first output spans from its own schedule; then
    periods follow, whatever is in flight.
    """
    one, two, three = (output(Row("a", 10 + step, 1 + step)) for step in range(3))
    bench.schedule(one)
    bench.clock.advance(0.1)
    bench.schedule(two)
    bench.clock.advance(0.2)
    bench.settle(one)
    bench.schedule(three)
    bench.clock.advance(0.4)
    bench.settle(two)
    bench.clock.advance(0.8)
    bench.settle(three)

    assert bench.times == pytest.approx([0.3, 0.4, 0.8])


def test_an_output_that_overtakes_drops_the_ones_before_it(bench: Bench) -> None:
    """An output that never came back leaves neither its stamp nor memory behind."""
    lost, kept = output(Row("a", 10, 1)), output(Row("a", 10, 1))
    bench.schedule(lost)
    bench.clock.advance(5)
    bench.schedule(kept)
    bench.clock.advance(1)
    bench.settle(kept)
    bench.settle(EMPTY)
    bench.run(0.5)

    assert bench.times == pytest.approx([1.0, 0.5])


def test_an_output_never_seen_is_counted_without_a_time(bench: Bench) -> None:
    """It reports what it ran; stamps of others stay with the others."""
    waiting = bench.schedule(output(Row("a", 10, 1)))
    bench.clock.advance(1)
    bench.settle(output(new=[(prompt("x", 8), 8)]))
    bench.settle(EMPTY)
    bench.settle(waiting)

    assert bench.times == pytest.approx([0.0, 1.0])
    assert bench.publisher.messages[0].scheduled_requests.sum_prefill_tokens == 8


def test_outputs_that_never_return_do_not_grow_the_recorder(bench: Bench) -> None:
    """At most so many passes are remembered between schedule and output."""
    for number in range(3 * MAX_IN_FLIGHT):
        bench.schedule(output(new=[(prompt(f"r{number}", 8), 4)], finished={f"r{number - 1}"}))
    bench.run(0.1)

    assert len(bench.recorder._in_flight) <= MAX_IN_FLIGHT
    assert len(bench.publisher.messages) == 1
    assert len(bench.recorder._counter.memory.lengths) <= 1


def test_empty_outputs_forget_finished_requests(bench: Bench) -> None:
    """The ids of finished requests may come with a step that runs nothing."""
    bench.run(0.1, output(new=[(prompt("a", 100), 40)]))
    bench.settle(bench.schedule(Output({}, finished_req_ids={"a"})))
    bench.run(0.1, output(Row("a", 40, 0, 60)))

    assert bench.publisher.messages
    assert bench.recorder._counter.memory.lengths == {}


def test_the_queue_is_read_after_the_engine_has_taken_the_output(bench: Bench) -> None:
    """The message's queue is what waits when it is built."""
    out = bench.schedule(output(Row("a", 10, 1)))
    arrived_at = bench.recorder.now()
    bench.queue = WAITING
    bench.recorder.finished(out, arrived_at)
    bench.queue = EMPTY_QUEUE

    assert bench.publisher.messages[0].queued_requests == WAITING


@pytest.mark.parametrize("arguments", [("scheduled",), ("finished", 1.0)])
def test_what_is_no_scheduler_output_is_counted_and_goes_no_further(
    bench: Bench, arguments: tuple[Any, ...], caplog: pytest.LogCaptureFixture
) -> None:
    """ENG-02: An engine whose outputs are not what we know gets no exception, one line, and a count."""
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            getattr(bench.recorder, arguments[0])(object(), *arguments[1:])

    assert bench.recorder.failures == 3
    assert len(caplog.records) == 1
    assert "serving goes on" in caplog.text


def test_a_failing_publisher_costs_its_passes_only(bench: Bench) -> None:
    """The next pass goes out as if nothing had been, its time counted from the failed one."""
    bench.publisher.error = RuntimeError("bang")
    bench.run(0.25)
    bench.publisher.error = None
    bench.run(0.5, output(Row("a", 11, 2)))

    assert bench.recorder.failures == 1
    assert bench.times == pytest.approx([0.5])


def test_the_message_leaves_identity_to_the_publisher(bench: Bench) -> None:
    """The recorder fills in what it knows: time, what ran, what waits."""
    bench.run(0.25)

    assert bench.publisher.messages == [
        ForwardPassMetrics(
            wall_time=pytest.approx(0.25),
            scheduled_requests=ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=10),
        )
    ]


def test_a_late_worker_id_reaches_the_publisher(bench: Bench) -> None:
    """It is the publisher that writes it into messages and heartbeats (D-15)."""
    bench.recorder.set_worker_id("42")

    assert bench.publisher.worker_id == "42"


def test_closing_stops_the_publisher_and_never_raises(bench: Bench) -> None:
    """Closing may be repeated, and an error stays inside."""
    bench.recorder.close()
    bench.publisher.error = RuntimeError("bang")
    bench.recorder.close()

    assert bench.publisher.shutdowns == 2
    assert bench.recorder.failures == 1


def test_the_null_recorder_takes_every_call() -> None:
    """An engine without Forward Pass Metrics pays an empty call."""
    recorder: Any = NullRecorder()
    calls = [
        recorder.scheduled(object()),
        recorder.finished(object(), recorder.now()),
        recorder.set_worker_id("1"),
        recorder.close(),
    ]

    assert calls == [None] * len(calls)


def test_a_queue_that_cannot_be_read_costs_one_message(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """ENG-02, ENG-12: That message is missing; its pass is counted all the same, so that the next chunk of
    its prompt knows the length and nothing finished is remembered.
    """
    bench.unreadable = RuntimeError("bang")
    with caplog.at_level(logging.ERROR):
        bench.run(0.25, output(new=[(prompt("a", 100), 40)]))
    bench.unreadable = None
    bench.run(0.5, output(Row("a", 40, 0, 60), new=[(prompt("b", 20), 20)]))

    assert bench.recorder.failures == 1
    assert bench.times == pytest.approx([0.5])
    assert bench.publisher.messages[0].scheduled_requests.var_prefill_length == 1600.0
    assert bench.publisher.counts().dropped == {"internal_error": 1}


def test_lengths_that_cannot_be_told_cost_one_message(bench: Bench) -> None:
    """ENG-02: A record that is not what we know leaves its pass uncounted and the others right."""
    bench.run(0.25, output(Row("a", 10, 1)))
    strange: Any = output(new=[(prompt("x", 8), 8)])
    strange.scheduled_new_reqs = [object()]
    bench.run(0.25, strange)
    bench.run(0.25, output(Row("a", 12, 3)))

    assert [each.scheduled_requests.sum_decode_kv_tokens for each in bench.publisher.messages] == [10, 12]
    assert bench.publisher.counts().dropped == {"internal_error": 1}


def test_what_waits_is_told_between_steps_only(bench: Bench) -> None:
    """ENG-08, TRAP-15: While vLLM schedules, requests that it cannot run yet are in no queue: nothing is told
    then, nor if a step began while the queue was read.
    """
    bench.queue = WAITING
    assert bench.publisher.waiting_now() == WAITING
    bench.recorder.step += 1
    assert bench.publisher.waiting_now() is None
    bench.recorder.step += 1
    assert bench.publisher.waiting_now() == WAITING

    def whole_step() -> None:
        bench.recorder.step += 2

    bench.meanwhile = whole_step
    assert bench.publisher.waiting_now() is None


def test_a_queue_that_changes_while_it_is_read_is_told_later(bench: Bench) -> None:
    """ENG-08: Going through a queue that changes is an error of Python's, and no answer."""
    bench.unreadable = RuntimeError("deque mutated during iteration")

    assert bench.publisher.waiting_now() is None


def test_the_publisher_keeps_no_engine_alive(bench: Bench) -> None:
    """A recorder that is thrown away is gone, and then nothing waits."""
    publisher = bench.publisher
    bench.queue = WAITING
    del bench.recorder

    assert publisher.waiting_now() == EMPTY_QUEUE
    assert publisher.engine is not None
    publisher.engine.catch_up()
