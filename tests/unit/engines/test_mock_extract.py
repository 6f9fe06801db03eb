"""From a step to the message."""

import pytest

from forwardpass.engines.mock.extract import measure, measure_scheduled
from forwardpass.engines.mock.request import Request, Status
from forwardpass.engines.mock.step import Chunk, Step
from forwardpass.engines.mock.waiting import WaitingQueue
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics


def test_every_field_of_a_mixed_pass():
    """WIRE-10, ENG-20: Tokens are the chunks', the variance is of whole prompts, kv is what was computed
    before.
    """
    step = Step()
    step.chunks = [Chunk(5, 16, 21), Chunk(8, 0, 40), Chunk(1, 31, 32)]
    step.contexts = [10, 14]

    assert measure_scheduled(step) == ScheduledRequestMetrics(
        num_prefill_requests=3,
        sum_prefill_tokens=14,
        var_prefill_length=pytest.approx(((21 - 31) ** 2 + (40 - 31) ** 2 + (32 - 31) ** 2) / 3),
        sum_prefill_kv_tokens=47,
        num_decode_requests=2,
        sum_decode_kv_tokens=24,
        var_decode_kv_tokens=4.0,
    )


def test_an_empty_step_is_all_zeros():
    """Nothing scheduled gives the default message part."""
    assert measure_scheduled(Step()) == ScheduledRequestMetrics()


def test_the_message_carries_step_queue_time_and_rank():
    """Identity and number stay for the publisher to stamp."""
    step = Step()
    step.contexts = [7]
    queued = QueuedRequestMetrics(1, 9, 0.0, 0, 0, 0.0)
    message = measure(step, queued, 0.25, 3)

    assert (message.worker_id, message.counter_id) == ("", 0)
    assert (message.dp_rank, message.wall_time) == (3, 0.25)
    assert (message.scheduled_requests.sum_decode_kv_tokens, message.queued_requests) == (7, queued)


def queue_of(*requests: Request) -> WaitingQueue:
    queue = WaitingQueue()
    for request in requests:
        queue.append(request)
    return queue


def test_the_queue_reports_prompts_and_their_variance():
    """WIRE-11, ENG-20: Who never ran counts as prefill with the whole prompt."""
    queue = queue_of(Request(1, 10, 5), Request(2, 20, 5))

    assert queue.snapshot() == QueuedRequestMetrics(2, 30, 25.0, 0, 0, 0.0)


def test_preempted_requests_come_first_and_count_as_decode():
    """ENG-09, ENG-20, D-1: a preempted request counts with all its known tokens, and is the next to run."""
    queue = queue_of(Request(1, 10, 5))
    back = Request(2, 20, 5)
    back.known, back.status = 23, Status.PREEMPTED
    queue.put_back(back)

    assert queue.first() is back
    assert queue.snapshot() == QueuedRequestMetrics(1, 10, 0.0, 1, 23, 0.0)

    queue.grow(back)

    assert queue.snapshot().sum_decode_kv_tokens == 24


def test_an_emptied_queue_reports_exact_zeros():
    """The kept sums leave no rounding behind when everyone has left."""
    first, back = Request(1, 11, 5), Request(2, 17, 5)
    queue = queue_of(first)
    back.status = Status.PREEMPTED
    queue.put_back(back)
    queue.remove(back)

    assert queue.pop() is first
    assert queue.snapshot() == QueuedRequestMetrics()
