"""What one pass costs: noting it on the engine's thread, and counting it on the publisher's.

The other way is the plain one: a running mean and variance (Welford) updated request by request, and a
``queue.Queue`` to a thread that waits for it. Both run on made-up scheduler outputs in the shape of
vLLM's; every fourth pass admits a request, the others only decode. The figure is CPU time per pass: of the
engine's thread alone, and with the counting that the publisher's thread does later, encoding and sending
left out of both. A pass that admits a request takes one from the front of the queue and another joins at its
end.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.counted import CountedQueues, QueueLedger, Unsettled, count_in
from forwardpass.engines.vllm.recorder import PassRecorder
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import ForwardPassMetrics
from harness import Result, compare, run_script
from plain_way import Status, plain_pass, waiting_thread

SCHEDULED = (1, 32, 256, 1024)
WAITING = (0, 100, 1000)
PASSES = 40
ADMIT_EVERY = 4
GOALS = {(256, 100): 0.1, (1024, 1000): 0.1}
"""Largest ratio to the plain way."""


class Request:
    """A waiting request, with vLLM's attribute and property."""

    def __init__(self, number: int) -> None:
        self.request_id = f"cmpl-{number:032x}-0"
        self.status = Status.WAITING
        self.num_computed_tokens = 0
        self._all_token_ids = [0] * (50 + 31 * number % 2000)

    @property
    def num_tokens(self) -> int:
        """Known tokens."""
        return len(self._all_token_ids)


class Queue(deque[Request]):
    """First come, first served, as vLLM's queue is."""

    def add_request(self, request: Request) -> None:
        """Let ``request`` wait behind all others."""
        self.append(request)

    def pop_request(self) -> Request:
        """Let the first one go."""
        return self.popleft()

    def prepend_request(self, request: Request) -> None:
        """Let ``request`` wait before all others."""
        self.appendleft(request)

    def prepend_requests(self, requests: Any) -> None:
        """Let ``requests`` wait before all others."""
        self.extendleft(requests)

    def remove_request(self, request: Request) -> None:
        """Let ``request`` go."""
        self.remove(request)

    def remove_requests(self, requests: Any) -> None:
        """Let ``requests`` go."""
        for request in requests:
            self.remove(request)

    def admit(self) -> None:
        """Admit the first; another comes, of the same length."""
        if self:
            self.add_request(self.pop_request())


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


def plain_way(
    outputs: list[Any], queues: tuple[Queue, Queue], hand_over: Callable[[ForwardPassMetrics], None]
) -> float:
    """Return the CPU seconds that the plain way takes for all passes."""
    lengths: dict[str, int] = {}
    stamps: deque[float] = deque()
    begin, last = time.thread_time(), 0.0
    for out in outputs:
        stamps.append(time.monotonic())
        now = time.monotonic()
        if out.scheduled_new_reqs:
            queues[0].admit()
        hand_over(plain_pass(out, queues, lengths, now - (last or stamps.popleft())))
        last = now
    return time.thread_time() - begin


def our_way(outputs: list[Any], queues: tuple[Queue, Queue], *, counting: bool) -> float:
    """Return the CPU seconds that the recorder takes for all passes, counting them included or not."""
    rules, unsettled = queue_rules(Request, Status), Unsettled()
    ledgers = (QueueLedger(rules, unsettled), QueueLedger(rules, unsettled))
    for queue, ledger in zip(queues, ledgers, strict=True):
        count_in(queue, ledger)
    waiting = CountedQueues(lambda: queues, ledgers, rules)
    waiting.read(time.monotonic())  # the recount that comes every ten seconds
    publisher = ListPublisher()
    recorder = PassRecorder(publisher, waiting)
    begin = time.thread_time()
    for out in outputs:
        recorder.scheduled(out)
        arrived_at = recorder.now()
        if out.scheduled_new_reqs:
            queues[0].admit()
        recorder.finished(out, arrived_at)
    noted = time.thread_time()
    assert len(publisher.messages) == len(outputs)  # which counts them
    counted = time.thread_time()
    assert recorder.failures == 0
    for queue in queues:
        queue.__class__ = Queue  # as it was
    return (counted if counting else noted) - begin


def main() -> list[Result]:
    """Compare both ways at every size."""
    results = []
    with waiting_thread() as hand_over:
        for scheduled in SCHEDULED:
            outputs = make_outputs(scheduled)
            for waiting in WAITING:
                queues = (Queue(map(Request, range(waiting))), Queue())
                results.append(
                    compare(
                        f"vllm pass, {scheduled} scheduled + {waiting} waiting",
                        {
                            "running variance": lambda o=outputs, q=queues: plain_way(o, q, hand_over),
                            "both threads": lambda o=outputs, q=queues: our_way(o, q, counting=True),
                            "engine's thread": lambda o=outputs, q=queues: our_way(o, q, counting=False),
                        },
                        items=PASSES,
                        rounds=15,
                        goal=GOALS.get((scheduled, waiting)),
                    )
                )
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
