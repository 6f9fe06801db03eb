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

from forwardpass.engines.vllm.waiting import (
    NOTHING,
    Numbers,
    QueueRules,
    Snapshot,
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
    "CountedQueues",
    "QueueLedger",
    "Unsettled",
    "count_in",
]

logger = logging.getLogger(__name__)

QUEUE_METHODS = (
    "add_request", "pop_request", "prepend_request", "prepend_requests", "remove_request", "remove_requests",
)  # fmt: skip
"""Every way in which requests enter and leave one of vLLM's queues (``sched/request_queue.py``)."""

CHECK_SECONDS = 1.0
"""How often the queues' lengths are compared with what was counted."""

RECOUNT_SECONDS = 10.0
"""A recount of 1,000 waiting requests takes about 0.7 ms: less than a ten-thousandth of this."""


class Unsettled:
    """How many waiting requests have to be read each time: one for all ledgers of an engine."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class QueueLedger:
    """What one queue holds: lengths of the prompts that cannot change while they wait, and the others.

    An ordinary prompt keeps its length until it leaves. Every other request (preempted, loading KV, a
    session between two inputs) may change while it waits, in length, status or computed tokens; those
    are remembered as they are and read anew each time. Entering twice and leaving without having entered
    do nothing, so it does not matter whether one method of a queue calls another.

    The engine's thread writes; another may read ``numbers`` and copy ``others``, each of which is one
    step of the interpreter.
    """

    __slots__ = ("_settled_length", "failed", "lengths", "numbers", "others", "unsettled")

    def __init__(self, rules: QueueRules, unsettled: Unsettled) -> None:
        self._settled_length = rules.settled_length
        self.lengths: dict[str, int] = {}
        self.others: dict[str, Any] = {}
        self.numbers: Numbers = NOTHING
        """Of ``lengths``."""
        self.unsettled = unsettled
        self.failed: Exception | None = None
        """Why this ledger is no longer right; it counts as unsettled for good."""

    def enter(self, request: Any) -> None:
        """Count ``request`` in."""
        # HOT PATH: 0.5 us for each request that waits, once.
        try:
            request_id = request.request_id
            if request_id in self.lengths or request_id in self.others:
                return
            length = self._settled_length(request)
            if length is None:
                self.others[request_id] = request
                self.unsettled.count += 1
            else:
                self.lengths[request_id] = length
                n, total, squares = self.numbers
                self.numbers = n + 1, total + length, squares + length * length
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._fail(error)

    def leave(self, request: Any) -> None:
        """Count ``request`` out, with the length it came in with."""
        try:
            length = self.lengths.pop(request.request_id, None)
            if length is not None:
                n, total, squares = self.numbers
                self.numbers = n - 1, total - length, squares - length * length
            elif self.others.pop(request.request_id, None) is not None:
                self.unsettled.count -= 1
        except Exception as error:  # noqa: BLE001  boundary: the engine must not notice
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failed is None:
            self.failed = error
            self.unsettled.count += 1


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
    """The waiting requests' numbers from both of an engine's queues, which count themselves.

    ``queues`` returns the queues, and ``ledgers`` are theirs in the same order; without ledgers every
    pass reads the requests. Where counting and reading do not agree, one line says so and from then on
    every pass reads. All methods but :meth:`waiting_now` are for the engine's thread.
    """

    __slots__ = (
        "__weakref__", "_ledgers", "_next_check", "_next_recount", "_queues", "_rules", "_unsettled",
        "differences", "trusted",
    )  # fmt: skip

    def __init__(
        self,
        queues: Callable[[], tuple[Collection[Any], ...]],
        ledgers: tuple[QueueLedger, QueueLedger] | None,
        rules: QueueRules,
    ) -> None:
        self._queues = queues
        self._ledgers = ledgers or (QueueLedger(rules, Unsettled()), QueueLedger(rules, Unsettled()))
        self._unsettled = self._ledgers[0].unsettled
        self._rules = rules
        self._next_check = self._next_recount = 0.0
        self.differences = 0
        """1 once counting and reading have disagreed."""
        self.trusted = True
        """Whether the ledgers are asked."""
        if ledgers is None:
            self._read_from_now_on()

    def recount(self) -> QueuedRequestMetrics:
        """Return what waits now by reading every request."""
        return read_waiting(self._queues(), self._rules)

    def read(self, now: float) -> Snapshot:
        """Return what waits now, which is monotonic time ``now``."""
        # HOT PATH: 0.1 us, however many wait; each request that may have changed adds what reading it costs.
        if self._unsettled.count or now >= self._next_check:
            return self._read_carefully(now)
        first, second = self._ledgers
        return first.numbers, second.numbers

    def waiting_now(self) -> QueuedRequestMetrics:
        """Return what waits now, and change nothing here. Another thread may ask; what it gets is right if
        the engine touched no queue meanwhile, and it may get ``RuntimeError`` if it did.
        """
        return self._counted() if self.trusted and self._wrong() is None else self.recount()

    def _wrong(self) -> QueueLedger | None:
        """Return a ledger that is wrong at a glance."""
        for queue, ledger in zip(self._queues(), self._ledgers, strict=True):
            if len(queue) != len(ledger.lengths) + len(ledger.others) or ledger.failed is not None:
                return ledger
        return None

    def _read_carefully(self, now: float) -> QueuedRequestMetrics:
        if not self.trusted:
            return self.recount()
        if (wrong := self._wrong()) is not None:
            return self._distrust(wrong)
        counted = self._counted()
        if now >= self._next_check:
            self._next_check = now + CHECK_SECONDS
        if now >= self._next_recount:
            self._next_recount = now + RECOUNT_SECONDS
            if self.recount() != counted:
                return self._distrust()
        return counted

    def _counted(self) -> QueuedRequestMetrics:
        prefill, decode = Tally(), Tally()
        for ledger in self._ledgers:
            prefill.merge(Tally(*ledger.numbers))
            if others := list(ledger.others.values()):
                prompts, contexts = split_tallies(others, self._rules)
                prefill.merge(prompts)
                decode.merge(contexts)
        return queued_metrics(prefill, decode)

    def _read_from_now_on(self) -> None:
        self.trusted = False
        self._unsettled.count += 1  # for good: no look at the ledgers will do any more

    def _distrust(self, ledger: QueueLedger | None = None) -> QueuedRequestMetrics:
        self.differences += 1
        counted = "nothing" if ledger is not None and ledger.failed is not None else self._counted()
        why = f" ({ledger.failed!r})" if ledger is not None and ledger.failed is not None else ""
        truth = self.recount()
        self._read_from_now_on()
        logger.warning(
            "the waiting queue's own count disagrees with a recount%s: counted %s, found %s; "
            "every pass counts the queue from now on, which is right but slower; please report it",
            why,
            counted,
            truth,
        )
        return truth
