"""Knows random walks through all that counts a pass, each step of which is compared with fractions.

Three walks: passes of a made-up schedule through the whole extraction; long runs of up to a thousand
decoding requests; and a waiting queue that counts itself as requests come and go. The numbers must be equal
to the last bit. ``steps`` counts what was compared, so that a run can say how much that was.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from made_up_schedule import Simulation

from forwardpass.engines.vllm.compat import queue_rules
from forwardpass.engines.vllm.counted import QueueLedger, Unsettled
from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.wire.tally import Tally

__all__ = ["WALKS", "exact_variance", "walk_decodes", "walk_queue", "walk_schedule", "welford_variance"]

MAX_DECODES = 1024
MAX_WAITING = 400


class Status(IntEnum):
    """vLLM's statuses of requests that are not finished."""

    WAITING = 1
    WAITING_FOR_REMOTE_KVS = 2
    RUNNING = 3
    PREEMPTED = 4


@dataclass(slots=True)
class Prompt:
    """A request that waits."""

    request_id: str
    num_tokens: int
    status: Status = Status.WAITING
    num_computed_tokens: int = 0


def exact_variance(values: list[int]) -> Fraction:
    """Return the population variance, exactly: the mean of the squared distances from the mean."""
    n, total = len(values), sum(values)
    return Fraction(sum((n * value - total) ** 2 for value in values), n**3) if n else Fraction(0)


def welford_variance(values: list[int]) -> float:
    """Return the population variance by a running mean in floating point."""
    mean = m2 = 0.0
    for count, value in enumerate(values, start=1):
        delta = value - mean
        mean += delta / count
        m2 += delta * (value - mean)
    return m2 / len(values) if values else 0.0


def check_tally(tally: Tally, values: list[int]) -> None:
    """Assert that ``tally`` is that of ``values``, its variance the nearest float to the exact one."""
    assert (tally.n, tally.total) == (len(values), sum(values))
    assert tally.variance == float(exact_variance(values))


def walk_schedule(seed: int, steps: int) -> int:
    """Count passes with prefills, chunks, preemptions, drafts and decodes; return how many."""
    rng = random.Random(seed)
    simulation = Simulation(seed, runner_v2=rng.random() < 0.5, drafts=rng.choice([0, 0, 3]))
    memory, done = RequestMemory(), 0
    while done < steps:
        if (turn := simulation.turn()) is not None:
            output, expected = turn
            lengths = known_lengths(output.scheduled_new_reqs)
            assert scheduled_metrics(output, lengths, memory) == expected
            done += 1
    return done


def walk_decodes(seed: int, steps: int) -> int:
    """Let many requests decode together, one leaving or coming now and then; return how many passes."""
    rng, memory = random.Random(seed), RequestMemory()
    many = rng.choice([1, 2, 16, 64, MAX_DECODES])
    steps = max(1, steps if many <= 64 else steps // 16)
    requests = [[f"r{number}", rng.randrange(1, 10 ** rng.randrange(1, 7))] for number in range(many)]
    for step in range(steps):
        finished: set[str] = set()
        if rng.random() < 0.1:
            gone: Any = requests.pop(rng.randrange(len(requests)))
            finished.add(gone[0])
            requests.append([f"s{step}", rng.randrange(1, 100_000)])
        lengths: list[Any] = [length for _, length in requests]
        scheduled = scheduled_metrics(_decodes(requests, finished), (), memory)
        assert (scheduled.num_decode_requests, scheduled.sum_decode_kv_tokens) == (many, sum(lengths))
        assert scheduled.var_decode_kv_tokens == float(exact_variance(lengths))
        for request in requests:
            request[1] += 1  # type: ignore[operator]
    return steps


def _decodes(requests: list[Any], finished: set[str]) -> Any:
    """Return the output of a pass in which every request decodes one token."""
    cached = SimpleNamespace(
        req_ids=[name for name, _ in requests],
        num_computed_tokens=[length for _, length in requests],
        num_output_tokens=[1] * len(requests),
        resumed_req_ids=set(),
    )
    return SimpleNamespace(
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=dict.fromkeys(cached.req_ids, 1),
        total_num_scheduled_tokens=len(requests),
        scheduled_spec_decode_tokens={},
        finished_req_ids=finished,
    )


def walk_queue(seed: int, steps: int) -> int:
    """Let prompts enter and leave a queue's ledger; return how many times one did."""
    rng, ledger = random.Random(seed), QueueLedger(queue_rules(Prompt, Status), Unsettled())
    waiting: list[Prompt] = []
    for step in range(steps):
        if waiting and rng.random() < len(waiting) / (2 * rng.randrange(1, MAX_WAITING)):
            ledger.leave(waiting.pop(rng.randrange(len(waiting))))
        else:
            length = rng.randrange(1, 10 ** rng.randrange(1, 7))
            waiting.append(Prompt(f"r{step}", length))
            ledger.enter(waiting[-1])
        assert ledger.failed is None
        check_tally(Tally(*ledger.numbers), [request.num_tokens for request in waiting])
    return steps


WALKS = (walk_schedule, walk_decodes, walk_queue)
