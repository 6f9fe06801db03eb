"""Passes that are noted on one thread and counted on another, with two real threads."""

from __future__ import annotations

import random
import threading
import time
from types import SimpleNamespace
from typing import Any

from forwardpass.clock import SystemClock
from forwardpass.engines.vllm.extract import known_lengths
from forwardpass.engines.vllm.passes import Pass, PassCounter
from forwardpass.engines.vllm.waiting import EMPTY_QUEUE
from forwardpass.wire.schema import ScheduledRequestMetrics

BOTH = ScheduledRequestMetrics(2, 80, 1600.0, 40, 0, 0, 0.0)


def output(cached: list[tuple[str, int, int]], new: list[tuple[str, int]], tokens: dict[str, int]) -> Any:
    """Return an output in vLLM's shape: cached requests with computed and output tokens, and new prompts."""
    names, computed, outputs = (
        (list(column) for column in zip(*cached, strict=True)) if cached else ([], [], [])
    )
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(
                req_id=name, prompt_token_ids=[0] * length, prompt_embeds=None, prefill_token_ids=None,
                num_computed_tokens=0,
            )
            for name, length in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=names, num_computed_tokens=computed, num_output_tokens=outputs, resumed_req_ids=set()
        ),
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={},
        finished_req_ids=set(),
    )  # fmt: skip


def chunks(counter: PassCounter, name: str) -> Pass:
    """Let the two chunks of a prompt of 100 tokens run; return the second: how long the prompt is, only the
    first one says, and nobody asks for that.
    """
    first = output([], [(name, 100)], {name: 40})
    second = output([(name, 40, 0)], [(f"{name}-2", 20)], {name: 60, f"{name}-2": 20})
    for each in (first, second):
        done = Pass(counter, each, known_lengths(each.scheduled_new_reqs), 1.0, queue=EMPTY_QUEUE)
        counter.ran(done)
    return done


def test_two_threads_count_each_pass_once_and_in_order() -> None:
    """ENG-12: However the threads interleave, and whichever of them counts, every second chunk knows its
    prompt's length.
    """
    counter = PassCounter(SystemClock())
    handed: list[Pass] = []
    wrong: list[Any] = []
    running = threading.Event()

    def publisher() -> None:
        taken = 0
        while not running.is_set() or taken < len(handed):
            if taken == len(handed):
                time.sleep(0.0001)
                continue
            scheduled = handed[taken].build().scheduled_requests
            if scheduled != BOTH:
                wrong.append(scheduled)
            taken += 1
            if taken % 500 == 0:
                time.sleep(0.01)  # long enough for the engine's thread to catch up itself

    thread = threading.Thread(target=publisher)
    thread.start()
    rng = random.Random(3)
    for number in range(3000):
        handed.append(chunks(counter, f"r{number}"))
        if rng.random() < 0.01:
            time.sleep(0.0002)
    running.set()
    thread.join(30)

    assert not thread.is_alive()
    assert len(handed) == 3000
    assert wrong == []
    assert counter.failures == 0
