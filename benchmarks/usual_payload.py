"""Knows payloads of ordinary size and content, the same for every benchmark that moves bytes."""

from __future__ import annotations

import random

from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from forwardpass.wire.tally import sum_and_variance

__all__ = ["PAYLOAD", "WORKER_ID", "busy_payloads"]

WORKER_ID = "7587890123456789012"
_SEED = 20

PAYLOAD = encode(
    ForwardPassMetrics(
        worker_id=WORKER_ID,
        counter_id=123_456,
        wall_time=0.0123,
        scheduled_requests=ScheduledRequestMetrics(3, 4096, 123.5, 1000, 250, 1_234_567, 998.25),
        queued_requests=QueuedRequestMetrics(12, 12_345, 33.5, 4, 5555, 12.25),
    )
)


def busy_payloads(count: int) -> list[bytes]:
    """Return the messages of a busy simulated engine: some prefill, a few dozen decodes, a short queue.

    They are numbered from 0 and differ as an engine's do, so that a compressor has as much to do.
    """
    dice = random.Random(_SEED)
    running: list[list[int]] = []
    messages = []
    for counter in range(count):
        arrived = [dice.randint(20, 2000) for _ in range(dice.randint(1, 3))] if dice.random() < 0.25 else []
        decoding = [context for context, _ in running]
        for request in running:
            request[0] += 1
            request[1] -= 1
        running = [request for request in running if request[1]]
        running += [[prompt, dice.randint(10, 300)] for prompt in arrived if len(running) < 64]
        waiting = [dice.randint(20, 2000) for _ in range(dice.randint(0, 4))] if dice.random() < 0.3 else []
        messages.append(encode(_one_pass(counter, arrived, decoding, waiting, dice.gauss(0.02, 0.001))))
    return messages


def _one_pass(
    counter: int, arrived: list[int], decoding: list[int], waiting: list[int], seconds: float
) -> ForwardPassMetrics:
    """Return the message of one pass."""
    prompts, prompt_variance = sum_and_variance(arrived)
    contexts, context_variance = sum_and_variance(decoding)
    queued, queued_variance = sum_and_variance(waiting)
    return ForwardPassMetrics(
        worker_id=WORKER_ID,
        counter_id=counter,
        wall_time=seconds,
        scheduled_requests=ScheduledRequestMetrics(
            len(arrived),
            prompts,
            prompt_variance,
            16 * len(arrived),
            len(decoding),
            contexts,
            context_variance,
        ),
        queued_requests=QueuedRequestMetrics(len(waiting), queued, queued_variance),
    )
