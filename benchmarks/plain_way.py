"""Knows how a straightforward program counts a pass: request by request, with a running mean and variance.

That is what most programs do, and what a pass costs is compared with. The counts are those that NVIDIA
Dynamo's scheduler makes; the hand-over is a ``queue.Queue`` to a thread that waits for it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["Running", "Status", "plain_pass", "waiting_thread"]


class Status(IntEnum):
    """vLLM's statuses of requests that are not finished."""

    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6


class Running:
    """Count, sum and Welford's running variance."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0
        self.mean = 0.0
        self.m2 = 0.0

    def add(self, value: int) -> None:
        """Take one value."""
        self.count += 1
        self.total += value
        delta = value - self.mean
        self.mean += delta / self.count
        self.m2 += delta * (value - self.mean)

    def variance(self) -> float:
        """Population variance."""
        return self.m2 / self.count if self.count > 1 else 0.0


def plain_pass(
    out: Any, queues: Sequence[Collection[Any]], lengths: dict[str, int], wall_time: float
) -> ForwardPassMetrics:
    """Count a pass request by request."""
    prefill, decode, waiting, contexts = Running(), Running(), Running(), Running()
    tokens = read = 0
    for new in out.scheduled_new_reqs:
        lengths[new.req_id] = len(new.prompt_token_ids)
        prefill.add(lengths[new.req_id])
        tokens += out.num_scheduled_tokens[new.req_id]
        read += new.num_computed_tokens
    cached = out.scheduled_cached_reqs
    for index, request_id in enumerate(cached.req_ids):
        computed = cached.num_computed_tokens[index]
        if cached.num_output_tokens[index] == 0:
            prefill.add(lengths.get(request_id, 0))
            tokens += out.num_scheduled_tokens[request_id]
            read += computed
        else:
            decode.add(computed)
    for waiters in queues:
        for request in waiters:
            if request.status in (Status.PREEMPTED, Status.WAITING_FOR_REMOTE_KVS):
                contexts.add(request.num_computed_tokens)
            else:
                waiting.add(request.num_tokens)
    for request_id in out.finished_req_ids:
        lengths.pop(request_id, None)
    return ForwardPassMetrics(
        wall_time=wall_time,
        scheduled_requests=ScheduledRequestMetrics(
            prefill.count, tokens, prefill.variance(), read, decode.count, decode.total, decode.variance()
        ),
        queued_requests=QueuedRequestMetrics(
            waiting.count, waiting.total, waiting.variance(),
            contexts.count, contexts.total, contexts.variance(),
        ),
    )  # fmt: skip


@contextmanager
def waiting_thread() -> Iterator[Callable[[ForwardPassMetrics], None]]:
    """Give the hand-over to a thread that sleeps on a queue and encodes."""
    handed: queue.Queue[ForwardPassMetrics | None] = queue.Queue(10_000)

    def consume() -> None:
        while (metrics := handed.get()) is not None:
            encode(metrics)

    thread = threading.Thread(target=consume, daemon=True)
    thread.start()
    yield handed.put_nowait
    handed.put(None)
    thread.join()
