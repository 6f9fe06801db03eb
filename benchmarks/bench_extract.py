"""What one pass costs vLLM's engine thread: extraction and hand-over.

The other way is the plain one: a running mean and variance (Welford) updated request by request, and a
``queue.Queue`` to a thread that waits for it. Both run on made-up scheduler outputs in the shape of
vLLM's, with consumers alive; every fourth pass admits a request, the others only decode. The figure is
CPU time of the engine's thread per pass, so that the other thread's work is not in it. A pass that
admits a request takes one from the front of the queue and another joins at its end.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

from forwardpass.config.settings import PublisherSettings
from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.recorder import PassRecorder
from forwardpass.engines.vllm.waiting import WaitingCount
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from harness import Result, compare, run_script

SCHEDULED = (1, 32, 256, 1024)
WAITING = (0, 100, 1000)
PASSES = 40
ADMIT_EVERY = 4
GOALS = {(256, 100): 0.2, (1024, 1000): 0.2}
"""Largest ratio to the plain way."""


class Status(IntEnum):
    """vLLM's statuses of requests that are not finished."""

    WAITING = 1
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 2
    WAITING_FOR_REMOTE_KVS = 3
    WAITING_FOR_STREAMING_REQ = 4
    RUNNING = 5
    PREEMPTED = 6


class Request:
    """A waiting request, with vLLM's attribute and property."""

    def __init__(self, length: int) -> None:
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self._all_token_ids = [0] * length

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self._all_token_ids)


def make_outputs(scheduled: int) -> list[Any]:
    """Return the outputs of consecutive passes of one engine."""
    ids = [f"cmpl-{number:032x}-0" for number in range(scheduled)]
    contexts = [200 + 37 * number % 3000 for number in range(scheduled)]
    outputs = []
    for step in range(PASSES):
        new = []
        if step % ADMIT_EVERY == ADMIT_EVERY - 1:  # one leaves, one comes
            gone, ids = ids[:1], [*ids[1:], f"cmpl-{scheduled + step:032x}-0"]
            contexts = contexts[1:]
            new = [
                SimpleNamespace(
                    req_id=ids[-1], prompt_token_ids=[0] * 700, prompt_embeds=None,
                    prefill_token_ids=None, num_computed_tokens=128,
                )
            ]  # fmt: skip
        else:
            gone = []
        running = len(contexts)
        outputs.append(
            SimpleNamespace(
                scheduled_new_reqs=new,
                scheduled_cached_reqs=SimpleNamespace(
                    req_ids=list(ids[:running]),
                    num_computed_tokens=list(contexts),
                    num_output_tokens=[5 + step] * running,
                    resumed_req_ids=set(),
                ),
                num_scheduled_tokens=dict.fromkeys(ids[:running], 1) | {each.req_id: 572 for each in new},
                total_num_scheduled_tokens=running + 572 * len(new),
                scheduled_spec_decode_tokens={},
                finished_req_ids=set(gone),
            )
        )
        contexts = [value + 1 for value in contexts] + [700] * len(new)
    return outputs


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
    out: Any, queues: Sequence[Collection[Request]], lengths: dict[str, int], wall_time: float
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


def plain_way(
    outputs: list[Any], queues: list[deque[Request]], hand_over: Callable[[ForwardPassMetrics], None]
) -> float:
    """Return the CPU seconds that the plain way takes for all passes."""
    lengths: dict[str, int] = {}
    stamps: deque[float] = deque()
    begin, last = time.thread_time(), 0.0
    for out in outputs:
        stamps.append(time.monotonic())
        now = time.monotonic()
        if out.scheduled_new_reqs:
            queues[0].rotate(-1)
        hand_over(plain_pass(out, queues, lengths, now - (last or stamps.popleft())))
        last = now
    return time.thread_time() - begin


def our_way(outputs: list[Any], queues: list[deque[Request]], publisher: FpmPublisher) -> float:
    """Return the CPU seconds that the recorder takes for all passes."""
    waiting = WaitingCount(lambda: tuple(queues), queue_rules(Request, Status))
    recorder = PassRecorder(publisher, waiting.read)
    begin = time.thread_time()
    for out in outputs:
        recorder.scheduled(out)
        recorder.arrived()
        if out.scheduled_new_reqs:
            queues[0].rotate(-1)
        recorder.finished(out)
    seconds = time.thread_time() - begin
    assert recorder.failures == 0
    return seconds


def main() -> list[Result]:
    """Compare both ways at every size."""
    results = []
    publisher = FpmPublisher(PublisherSettings(base_port=0, worker_id="1"), dp_rank=0)
    with waiting_thread() as hand_over:
        for scheduled in SCHEDULED:
            outputs = make_outputs(scheduled)
            for waiting in WAITING:
                queues: list[deque[Request]] = [
                    deque(Request(50 + 31 * number % 2000) for number in range(waiting)),
                    deque(),
                ]
                results.append(
                    compare(
                        f"vllm pass, {scheduled} scheduled + {waiting} waiting",
                        {
                            "running variance": lambda o=outputs, q=queues: plain_way(o, q, hand_over),
                            "forwardpass": lambda o=outputs, q=queues: our_way(o, q, publisher),
                        },
                        items=PASSES,
                        rounds=15,
                        goal=GOALS.get((scheduled, waiting)),
                    )
                )
    publisher.shutdown()
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
