"""What vLLM's waiting requests come to, on plain objects."""

from __future__ import annotations

import random
from collections import deque

import pytest
from vllm_shapes import Status, Waiting

from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE, WaitingCount
from forwardpass.wire.schema import QueuedRequestMetrics


def queued(*queues: list[Waiting], count_paused_sessions: bool = False) -> QueuedRequestMetrics:
    rules = queue_rules(Waiting, Status, count_paused_sessions=count_paused_sessions)
    return WaitingCount(lambda: queues, rules).read()


def test_both_queues_are_counted() -> None:
    """ENG-08: Prompts of either queue add up."""
    assert queued([Waiting(10), Waiting(30)], [Waiting(20)]) == QueuedRequestMetrics(
        3, 60, 200 / 3, 0, 0, 0.0
    )


def test_an_empty_queue_is_one_shared_value() -> None:
    """Nothing is built for a queue that holds nothing."""
    assert queued([], []) is EMPTY_QUEUE


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Waiting(40), (1, 40, 0, 0)),
        (Waiting(40, Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR), (1, 40, 0, 0)),
        (Waiting(40, Status.WAITING_FOR_REMOTE_KVS, 39), (0, 0, 1, 39)),
        (Waiting(40, Status.WAITING_FOR_REMOTE_KVS, 0), (0, 0, 1, 0)),
        (Waiting(40, Status.PREEMPTED, 0), (0, 0, 1, 40)),
        (Waiting(40, Status.PREEMPTED, 32), (0, 0, 1, 32)),
        (Waiting(40, Status.WAITING_FOR_STREAMING_REQ), (0, 0, 0, 0)),
    ],
)
def test_each_status_counts_as_what_it_is(request_: Waiting, expected: tuple[int, int, int, int]) -> None:
    """ENG-08, ENG-09: Preempted requests count what they will hold again (D-1), loading ones what is in
    transit; paused sessions do not count (D-4).
    """
    got = queued([request_], [])

    assert expected == (
        got.num_prefill_requests,
        got.sum_prefill_tokens,
        got.num_decode_requests,
        got.sum_decode_kv_tokens,
    )


def test_parity_counts_paused_sessions() -> None:
    """ENG-08: The switch makes a paused session the queued prefill that it is for the reference (D-4)."""
    session = Waiting(40, Status.WAITING_FOR_STREAMING_REQ)

    assert queued([session], count_paused_sessions=True) == QueuedRequestMetrics(1, 40, 0.0, 0, 0, 0.0)


def test_a_mixed_queue_is_split() -> None:
    """Prompts among others keep their own sum and spread."""
    got = queued(
        [Waiting(10), Waiting(99, Status.PREEMPTED), Waiting(20)],
        [Waiting(50, Status.WAITING_FOR_REMOTE_KVS, 49)],
    )

    assert got == QueuedRequestMetrics(2, 30, 25.0, 2, 148, 625.0)


def test_an_unchanged_queue_is_not_counted_again() -> None:
    """The same prompts give the very same value; what changed in length, order or number does not."""
    waiting = deque([Waiting(10), Waiting(20)])
    count = WaitingCount(lambda: (waiting, ()), queue_rules(Waiting, Status))
    first = count.read()
    assert count.read() is first

    waiting[0].length = 12  # a session that was continued in place
    assert count.read() == QueuedRequestMetrics(2, 32, 16.0, 0, 0, 0.0)
    waiting[0].length, waiting[1].length = 2, 30  # the same sum
    assert count.read() == QueuedRequestMetrics(2, 32, 196.0, 0, 0, 0.0)


def test_a_status_that_changes_in_place_is_seen() -> None:
    """A queue of the same lengths counts anew when one of its requests is something else."""
    waiting = [Waiting(10), Waiting(20)]
    count = WaitingCount(lambda: (waiting, []), queue_rules(Waiting, Status))
    count.read()
    waiting[0].status = Status.WAITING_FOR_STREAMING_REQ
    assert count.read() == QueuedRequestMetrics(1, 20, 0.0, 0, 0, 0.0)

    waiting[0].status = Status.WAITING
    assert count.read() == QueuedRequestMetrics(2, 30, 25.0, 0, 0, 0.0)


def test_a_remembered_count_equals_a_fresh_one() -> None:
    """Over a thousand random changes of both queues, reading on equals reading for the first time."""
    rng, queues = random.Random(3), (deque(), deque())
    rules = queue_rules(Waiting, Status)
    count = WaitingCount(lambda: queues, rules)
    for _ in range(1000):
        queue = rng.choice(queues)
        action = rng.random()
        if action < 0.3:
            queue.append(Waiting(rng.randrange(1, 50), rng.choice(list(Status)), rng.randrange(3)))
        elif action < 0.5:
            queue.extend(Waiting(7) for _ in range(2))
        elif action < 0.8 and queue:
            queue.popleft()
        elif queue:
            queue[-1].status = rng.choice(list(Status))
        assert count.read() == WaitingCount(lambda: queues, rules).read()
