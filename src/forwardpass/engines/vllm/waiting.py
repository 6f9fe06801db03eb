"""Knows what vLLM's waiting requests come to, and when that has not changed since the last look.

Pure but for the one remembered count. A queue that counts itself as requests enter and leave would take
the place of :class:`WaitingCount`; :func:`queued_metrics` is all that both need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Any, NamedTuple

from forwardpass.wire.schema import QueuedRequestMetrics
from forwardpass.wire.tally import Tally

__all__ = ["EMPTY_QUEUE", "QueueRules", "WaitingCount", "queued_metrics", "split_tallies"]

EMPTY_QUEUE = QueuedRequestMetrics()


class QueueRules(NamedTuple):
    """How waiting requests are read and which statuses mean what; ``compat.py`` fills it."""

    statuses: Callable[[Iterable[Any]], list[int]]
    lengths: Callable[[Iterable[Any]], list[int]]
    """All known tokens of each request: the prompt, and what it generated before."""
    computed_tokens: Callable[[Any], int]
    waiting: int
    """The status of a plain prompt."""
    prompts: frozenset[int]
    """Statuses of requests that wait for (more) prefill. A status that is neither here nor one of the
    next two is not counted: a paused session has nothing to run (decision D-4).
    """
    preempted: int
    loading: int
    """Waiting for KV from elsewhere."""


def queued_metrics(prefill: Tally, decode: Tally) -> QueuedRequestMetrics:
    """Return the message's queue from the tallies of waiting prompts and waiting contexts."""
    if not prefill.n and not decode.n:
        return EMPTY_QUEUE
    return QueuedRequestMetrics(
        prefill.n, prefill.total, prefill.variance, decode.n, decode.total, decode.variance
    )


def split_tallies(
    requests: Iterable[Any], statuses: list[int], lengths: list[int], rules: QueueRules
) -> tuple[Tally, Tally]:
    """Return the tallies of waiting prompts and of waiting contexts among ``requests``."""
    prefill, decode = Tally.of(lengths), Tally()
    for request, status, length in zip(requests, statuses, lengths, strict=True):
        if status in rules.prompts:
            continue
        prefill.remove(length)
        if status == rules.preempted:
            # vLLM zeroes the computed tokens of a preempted request; the context it will have again
            # is all that it knows (decision D-1).
            decode.add(rules.computed_tokens(request) or length)
        elif status == rules.loading:
            decode.add(rules.computed_tokens(request))
    return prefill, decode


class WaitingCount:
    """Both waiting queues' numbers, read whenever a message is built.

    While the engine is full the queue stands still. Prompts of the same lengths in the same order are
    the same numbers, so only comparing them is left to do.
    """

    __slots__ = ("_last", "_lengths", "_queues", "_rules")

    def __init__(self, queues: Callable[[], tuple[Collection[Any], ...]], rules: QueueRules) -> None:
        self._queues = queues
        self._rules = rules
        self._lengths: list[int] = []
        self._last = EMPTY_QUEUE

    def read(self) -> QueuedRequestMetrics:
        """Return what waits now."""
        # HOT PATH: 100 waiting prompts, 6 us if they are those of the last time, else 10 (hot caches;
        # the requests themselves are cold after a step, see benchmarks/bench_vllm_scheduler.py).
        queues, rules = self._queues(), self._rules
        lengths: list[int] = []
        statuses: list[int] = []
        for queue in queues:
            if queue:
                lengths += rules.lengths(queue)
                statuses += rules.statuses(queue)
        plain = statuses.count(rules.waiting) == len(statuses) or rules.prompts.issuperset(statuses)
        if not plain:
            return queued_metrics(*split_tallies(chain(*queues), statuses, lengths, rules))
        if lengths != self._lengths:
            self._lengths = lengths
            self._last = queued_metrics(Tally.of(lengths), Tally())
        return self._last
