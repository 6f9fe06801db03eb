"""What vLLM's waiting requests come to, on plain objects."""

from __future__ import annotations

import pytest
from vllm_shapes import Status, Waiting

from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE, read_waiting
from forwardpass.wire.schema import QueuedRequestMetrics


def queued(*queues: list[Waiting], count_paused_sessions: bool = False) -> QueuedRequestMetrics:
    rules = queue_rules(Waiting, Status, count_paused_sessions=count_paused_sessions)
    return read_waiting(queues, rules)


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
