"""Waiting queues that count themselves, on queues in the shape of vLLM's."""

from __future__ import annotations

import heapq
import logging
import random
from collections import deque
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import Struct
from vllm_shapes import Status

from forwardpass.engines.vllm.attach import counted_queues
from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.counted import (
    CHECK_SECONDS,
    RECOUNT_SECONDS,
    CountedQueues,
    QueueLedger,
    Unsettled,
    count_in,
)
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE, snapshot_metrics
from forwardpass.wire.schema import QueuedRequestMetrics


class Request(Struct, order=False, eq=False):
    """A request that waits."""

    request_id: str
    num_tokens: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0
    kv_transfer_params: dict[str, object] | None = None

    def __lt__(self, other: Request) -> bool:
        return self.request_id < other.request_id


RULES = queue_rules(Request, Status)


class Fcfs(deque[Request]):
    """First come, first served: a deque, as vLLM's is."""

    def add_request(self, request: Request) -> None:
        self.append(request)

    def pop_request(self) -> Request:
        return self.popleft()

    def prepend_request(self, request: Request) -> None:
        self.appendleft(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        self.extendleft(requests)

    def remove_request(self, request: Request) -> None:
        self.remove(request)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = {id(request) for request in requests}
        kept = [request for request in self if id(request) not in gone]
        self.clear()
        self.extend(kept)


class Priority:
    """A heap whose methods call one another, as vLLM's do."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self._heap)

    def prepend_request(self, request: Request) -> None:
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        for request in requests:
            self.add_request(request)

    def remove_request(self, request: Request) -> None:
        self._heap.remove(request)
        heapq.heapify(self._heap)

    def remove_requests(self, requests: Iterable[Request]) -> None:
        gone = {id(request) for request in requests}
        self._heap = [request for request in self._heap if id(request) not in gone]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Any:
        return iter(sorted(self._heap))


class Count:
    """Two queues that count themselves, and a time at which they are asked."""

    def __init__(self, first: Any, second: Any = None) -> None:
        queues, unsettled = (first, Fcfs() if second is None else second), Unsettled()
        ledgers = QueueLedger(RULES, unsettled), QueueLedger(RULES, unsettled)
        for queue, ledger in zip(queues, ledgers, strict=True):
            count_in(queue, ledger)
        self.queues = CountedQueues(lambda: queues, ledgers, RULES)
        self.now = 0.0

    def read(self) -> QueuedRequestMetrics:
        return snapshot_metrics(self.queues.read(self.now))

    def recount(self) -> QueuedRequestMetrics:
        return self.queues.recount()

    @property
    def differences(self) -> int:
        return self.queues.differences


KINDS = pytest.mark.parametrize("kind", [Fcfs, Priority])


@KINDS
def test_counting_equals_reading_whatever_happens(kind: Callable[[], Any]) -> None:
    """ENG-08: Over thousands of random entries, departures and changes in place, in both queues, the count
    equals what reading every request gives.
    """
    rng, queues, number = random.Random(7), (kind(), kind()), 0
    count = Count(*queues)
    for _ in range(6000):
        queue, other = rng.sample(queues, 2)
        batch = []
        for _ in range(rng.randrange(3)):
            number += 1
            status = rng.choice([Status.WAITING, *Status])
            computed = rng.choice([0, 0, 5])
            batch.append(Request(f"r{number}", rng.randrange(1, 5000), status, computed))
        action = rng.randrange(7)
        if action == 0 and batch:
            queue.add_request(batch[0])
        elif action == 1 and batch:
            queue.prepend_request(batch[0])
        elif action == 2:
            queue.prepend_requests(iter(batch))
        elif action == 3 and queue:
            moved = queue.pop_request()
            moved.status = rng.choice(list(Status))
            rng.choice(queues).add_request(moved)
        elif action == 4 and queue:
            queue.remove_request(rng.choice(list(queue)))
        elif action == 5 and len(queue) > 30:
            gone = set(map(id, rng.sample(list(queue), 10)))
            chosen = [request for request in queue if id(request) in gone]
            queue.remove_requests(chosen)
            other.remove_requests(chosen)  # as vLLM does, which does not look where they are
        elif action == 6 and queue:
            _change_in_place(rng, rng.choice(list(queue)))
        assert count.read() == count.recount() == count.queues.waiting_now()

    assert count.differences == 0
    assert number > 1000


def _change_in_place(rng: random.Random, request: Request) -> None:
    """Do what vLLM does to requests that wait: promote, extend, roll back."""
    if request.status is Status.WAITING and not request.num_computed_tokens:
        return
    if request.status is Status.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR:
        request.status = Status.WAITING
        return
    request.status = rng.choice([Status.WAITING, Status.PREEMPTED])
    request.num_tokens += rng.randrange(3)
    request.num_computed_tokens = rng.choice([0, 9])


@KINDS
def test_what_waits_already_is_counted(kind: Callable[[], Any]) -> None:
    """A queue that holds something when it learns to count stays the same object with the same contents."""
    queue = kind()
    queue.add_request(Request("a", 10))
    queue.add_request(Request("b", 20))

    count = Count(queue)

    assert isinstance(queue, kind)
    assert [request.request_id for request in queue] == ["a", "b"]
    assert count.read() == QueuedRequestMetrics(2, 30, 25.0, 0, 0, 0.0)


def test_a_settled_prompt_is_not_looked_at_again() -> None:
    """No pass reads a prompt that waits: that is what makes it cheap; the recount does, every 10 s."""
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10))
    count.read()
    del queue[0].num_tokens

    assert count.read() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    assert count.queues.waiting_now() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)


def test_a_prompt_that_will_be_transferred_is_looked_at() -> None:
    """Connectors drop its last tokens after it was put into the queue."""
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10, kv_transfer_params={"do_remote_decode": True}))
    queue[0].num_tokens = 9

    assert count.read() == QueuedRequestMetrics(1, 9, 0.0, 0, 0, 0.0)
    assert count.differences == 0


def test_who_asks_between_passes_reads_where_the_count_is_wrong() -> None:
    """ENG-12: While no pass looks at the ledgers, a heartbeat does: one that has not what its queue has is
    not believed, and nothing is decided by it.
    """
    queue = Fcfs()
    count = Count(queue)
    queue.append(Request("a", 10))
    assert count.queues.waiting_now() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    queue.pop_request()
    queue.add_request(Request("b", 20))
    assert count.queues.waiting_now() == QueuedRequestMetrics(1, 20, 0.0, 0, 0, 0.0)
    assert count.differences == 0


def test_an_empty_queue_is_one_shared_value() -> None:
    """Nothing is built for queues that hold nothing, also after they held something."""
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10))
    assert count.read() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    queue.pop_request()

    assert count.read() is count.read() is EMPTY_QUEUE


def test_what_bypasses_the_methods_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A queue whose length is not what was counted is read from then on, with one line that says so; who
    asks from another thread reads as well.
    """
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10))
    count.read()
    with caplog.at_level(logging.WARNING):
        queue.append(Request("b", 20))
        count.now += CHECK_SECONDS
        assert count.read() == count.recount()
        queue.append(Request("c", 30))
        assert count.read() == count.recount() == count.queues.waiting_now()

    assert count.differences == 1
    assert len(caplog.records) == 1
    assert "every pass counts the queue from now on" in caplog.text


def test_a_snapshot_stays_what_it_was() -> None:
    """ENG-08: What a message says of the queue is of the moment when its pass ended, though it is built
    later.
    """
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10))
    count.read()
    then = count.queues.read(0.0)
    queue.add_request(Request("b", 30))
    queue.prepend_request(Request("c", 50, Status.PREEMPTED))

    assert snapshot_metrics(then) == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    assert count.read() == QueuedRequestMetrics(2, 40, 100.0, 1, 50, 0.0)


def test_what_bypasses_the_methods_is_seen_within_a_second() -> None:
    """Lengths are compared now and then although nothing seems to have changed."""
    queue = Fcfs()
    count = Count(queue)
    count.read()
    queue.append(Request("a", 10))
    count.now += CHECK_SECONDS

    assert count.read() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    assert count.differences == 1


def test_the_recount_finds_what_no_length_shows(caplog: pytest.LogCaptureFixture) -> None:
    """A prompt that changed against the rule is found within the recount's interval, and then for good."""
    queue = Fcfs()
    count = Count(queue)
    queue.add_request(Request("a", 10))
    count.read()
    queue[0].num_tokens = 11
    assert count.read().sum_prefill_tokens == 10

    count.now += RECOUNT_SECONDS
    with caplog.at_level(logging.WARNING):
        assert count.read().sum_prefill_tokens == 11
        queue[0].num_tokens = 12
        assert count.read().sum_prefill_tokens == 12

    assert len(caplog.records) == 1


def test_a_request_that_cannot_be_read_does_not_reach_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """ENG-02: The queue does what it always did; the count says that it is no longer right."""
    queue = Fcfs()
    count = Count(queue)
    strange: Any = object()
    queue.add_request(strange)
    assert queue.pop_request() is strange
    queue.add_request(Request("a", 10))

    with caplog.at_level(logging.WARNING):
        assert count.read() == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    assert "AttributeError" in caplog.text


def test_a_queue_of_another_kind_is_read_instead(caplog: pytest.LogCaptureFixture) -> None:
    """A queue without the methods that count stays as it is and is read in every pass; one line says so."""
    scheduler = SimpleNamespace(waiting=deque([Request("a", 10)]), kv_holding_waiting=deque())
    with caplog.at_level(logging.WARNING):
        queues = counted_queues(scheduler, RULES)

    assert type(scheduler.waiting) is deque
    assert queues.read(0.0) == QueuedRequestMetrics(1, 10, 0.0, 0, 0, 0.0)
    scheduler.kv_holding_waiting.append(Request("b", 8, Status.WAITING_FOR_REMOTE_KVS, 7))
    assert queues.read(0.0) == queues.waiting_now() == QueuedRequestMetrics(1, 10, 0.0, 1, 7, 0.0)
    assert "cannot count themselves" in caplog.text
    assert len(caplog.records) == 1
