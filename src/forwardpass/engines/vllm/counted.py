"""Knows how vLLM's waiting queues count themselves, so that a pass need not look at what waits.

Between two passes nothing touches a waiting request: reading it costs a trip to main memory, and a long
queue thousands of them. A request is at hand when it enters or leaves, so that is when it is counted. The
queues stay vLLM's own objects; their class becomes a subclass of what it was, whose methods call the
original and then count. Reading every request (:func:`~forwardpass.engines.vllm.waiting.read_waiting`)
stays the truth: now and then both are compared, and the first difference ends the counting for good.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Any

from forwardpass.clock import Clock, SystemClock
from forwardpass.engines.vllm.waiting import (
    EMPTY_QUEUE,
    QueueRules,
    queued_metrics,
    read_waiting,
    split_tallies,
)
from forwardpass.wire.schema import QueuedRequestMetrics
from forwardpass.wire.tally import Tally

__all__ = [
    "CHECK_SECONDS",
    "QUEUE_METHODS",
    "RECOUNT_SECONDS",
    "Changes",
    "CountedQueues",
    "QueueLedger",
    "count_in",
]

logger = logging.getLogger(__name__)

QUEUE_METHODS = (
    "add_request", "pop_request", "prepend_request", "prepend_requests", "remove_request", "remove_requests",
)  # fmt: skip
"""Every way in which requests enter and leave one of vLLM's queues (``sched/request_queue.py``)."""

CHECK_SECONDS = 1.0
"""How often the queues' lengths are compared although no method says that anything changed."""

RECOUNT_SECONDS = 10.0
"""A recount of 1,000 waiting requests takes about 0.7 ms: less than a ten-thousandth of this."""


class Changes:
    """What tells at a glance that nothing changed: one for all ledgers of an engine."""

    __slots__ = ("count", "unsettled")

    def __init__(self) -> None:
        self.count = 0
        """Entries, departures and failures so far."""
        self.unsettled = 0
        """Requests that have to be read each time."""


class QueueLedger:
    """What one queue holds: lengths of the prompts that cannot change while they wait, and the others.

    An ordinary prompt keeps its length until it leaves. Every other request (preempted, loading KV, a
    session between two inputs) may change while it waits, in length, status or computed tokens; those
    are remembered as they are and read anew each time. Entering twice and leaving without having entered
    do nothing, so it does not matter whether one method of a queue calls another.
    """

    __slots__ = ("_rules", "changes", "failed", "lengths", "others", "tally")

    def __init__(self, rules: QueueRules) -> None:
        self._rules = rules
        self.lengths: dict[str, int] = {}
        self.others: dict[str, Any] = {}
        self.tally = Tally()
        """Of ``lengths``."""
        self.changes = Changes()
        self.failed: Exception | None = None
        """Why this ledger is no longer right."""

    def enter(self, request: Any) -> None:
        """Count ``request`` in."""
        # HOT PATH: 0.5 us for each request that waits, once.
        try:
            request_id = request.request_id
            if request_id in self.lengths or request_id in self.others:
                return
            if self._rules.settled(request):
                (length,) = self._rules.lengths((request,))
                self.lengths[request_id] = length
                self.tally.add(length)
            else:
                self.others[request_id] = request
                self.changes.unsettled += 1
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self.failed = error
        self.changes.count += 1

    def leave(self, request: Any) -> None:
        """Count ``request`` out, with the length it came in with."""
        try:
            length = self.lengths.pop(request.request_id, None)
            if length is not None:
                self.tally.remove(length)
            elif self.others.pop(request.request_id, None) is not None:
                self.changes.unsettled -= 1
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self.failed = error
        self.changes.count += 1


def count_in(queue: Any, ledger: QueueLedger) -> None:
    """Make ``queue``, an object of one of vLLM's queue classes, count into ``ledger`` from now on.

    The object stays the same, contents and all: who else holds it notices nothing. Raises
    ``TypeError`` or ``AttributeError`` for an object that this cannot be done with; it is unchanged then.
    """
    base = type(queue)
    methods = {name: getattr(base, name) for name in QUEUE_METHODS}
    counting = type(f"Counting{base.__name__}", (base,), _counting_methods(methods, ledger))
    queue.__class__ = counting
    for request in queue:
        ledger.enter(request)


def _counting_methods(methods: dict[str, Callable[..., Any]], ledger: QueueLedger) -> dict[str, Any]:
    """Return the overrides: each calls its original, then counts."""
    enter, leave = ledger.enter, ledger.leave
    add, prepend, pop = methods["add_request"], methods["prepend_request"], methods["pop_request"]
    remove, prepend_all = methods["remove_request"], methods["prepend_requests"]
    remove_all = methods["remove_requests"]

    def add_request(self: Any, request: Any) -> None:
        add(self, request)
        enter(request)

    def prepend_request(self: Any, request: Any) -> None:
        prepend(self, request)
        enter(request)

    def prepend_requests(self: Any, requests: Iterable[Any]) -> None:
        requests = requests if isinstance(requests, Collection) else list(requests)
        prepend_all(self, requests)
        for request in requests:
            enter(request)

    def pop_request(self: Any) -> Any:
        request = pop(self)
        leave(request)
        return request

    def remove_request(self: Any, request: Any) -> None:
        remove(self, request)
        leave(request)

    def remove_requests(self: Any, requests: Iterable[Any]) -> None:
        requests = requests if isinstance(requests, Collection) else list(requests)
        remove_all(self, requests)
        for request in requests:
            leave(request)

    overrides = (add_request, prepend_request, prepend_requests, pop_request, remove_request, remove_requests)
    return {"__slots__": (), **{override.__name__: override for override in overrides}}


class CountedQueues:
    """The waiting requests' numbers from queues that count themselves.

    ``queues`` returns the queues, and ``ledgers`` are theirs in the same order. Where counting and
    reading do not agree, one line says so and from then on every pass reads.
    """

    __slots__ = (
        "_changes", "_clock", "_last", "_ledgers", "_next_check", "_next_recount",
        "_queues", "_rules", "_seen", "differences",
    )  # fmt: skip

    def __init__(
        self,
        queues: Callable[[], tuple[Collection[Any], ...]],
        ledgers: tuple[QueueLedger, ...],
        rules: QueueRules,
        clock: Clock | None = None,
    ) -> None:
        self._queues = queues
        self._ledgers = ledgers
        self._rules = rules
        self._clock: Clock = clock or SystemClock()
        self._next_check = self._next_recount = 0.0
        self._changes = changes = Changes()
        for ledger in ledgers:
            changes.count += ledger.changes.count
            changes.unsettled += ledger.changes.unsettled
            ledger.changes = changes
        self._seen = -1
        self._last = EMPTY_QUEUE
        self.differences = 0
        """1 once counting and reading have disagreed: every pass reads since."""

    def recount(self) -> QueuedRequestMetrics:
        """Return what waits now by reading every request."""
        return read_waiting(self._queues(), self._rules)

    def read(self) -> QueuedRequestMetrics:
        """Return what waits now."""
        # HOT PATH: 0.3 us if nothing came or went, else 3 us, however many wait; each request that may
        # have changed adds what reading it costs.
        changes = self._changes
        if (
            changes.count == self._seen
            and not changes.unsettled
            and self._clock.monotonic() < self._next_check
            and not self.differences
        ):
            return self._last
        return self._read_changed()

    def _read_changed(self) -> QueuedRequestMetrics:
        if self.differences:
            return self.recount()
        for queue, ledger in zip(self._queues(), self._ledgers, strict=True):
            if len(queue) != len(ledger.lengths) + len(ledger.others) or ledger.failed is not None:
                return self._distrust(ledger)
        if self._changes.unsettled or self._changes.count != self._seen:
            self._seen = self._changes.count
            self._last = self._count()
        now = self._clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
        if now >= self._next_recount:
            self._next_recount = now + RECOUNT_SECONDS
            if self.recount() != self._last:
                return self._distrust()
        return self._last

    def _count(self) -> QueuedRequestMetrics:
        prefill, decode = Tally(), Tally()
        for ledger in self._ledgers:
            prefill.merge(ledger.tally)
            if ledger.others:
                prompts, contexts = split_tallies(ledger.others.values(), self._rules)
                prefill.merge(prompts)
                decode.merge(contexts)
        return queued_metrics(prefill, decode)

    def _distrust(self, ledger: QueueLedger | None = None) -> QueuedRequestMetrics:
        self.differences += 1
        why = f" ({ledger.failed!r})" if ledger is not None and ledger.failed is not None else ""
        truth = self.recount()
        logger.warning(
            "the waiting queue's own count disagrees with a recount%s: counted %s, found %s; "
            "every pass counts the queue from now on, which is right but slower; please report it",
            why,
            self._last,
            truth,
        )
        return truth
