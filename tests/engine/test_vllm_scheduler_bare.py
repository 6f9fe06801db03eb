"""The source against vLLM's real scheduler, without worker or model: every pass is checked."""

from __future__ import annotations

import random
from typing import Any

import pytest
from bare_engine import BareEngine, build_scheduler, make_request

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]

STEPS = 300
MOST_AT_ONCE = 40


class Workload:
    """Random requests with shared prefixes, and the things that happen to them."""

    def __init__(self, seed: int, engine: BareEngine, *, priority: bool) -> None:
        self.rng = random.Random(seed)
        self.engine = engine
        self.priority = priority
        self.added = 0
        self.prompts: dict[str, int] = {}
        self.outputs = 0
        self.roots = [[self.rng.randrange(1000) for _ in range(600)] for _ in range(4)]

    def add(self) -> None:
        rng = self.rng
        if len(self.engine.scheduler.requests) >= MOST_AT_ONCE:
            return
        root = rng.choice(self.roots)
        prompt = root[: rng.randrange(1, 500)] + [rng.randrange(1000) for _ in range(rng.randrange(1, 90))]
        tokens = rng.randrange(1, 60)
        name = f"r{self.added}"
        more = {"priority": rng.randrange(3)} if self.priority else {}
        self.engine.scheduler.add_request(make_request(name, prompt, tokens, **more))
        self.added += 1
        self.prompts[name] = len(prompt)
        self.outputs += tokens

    def abort(self) -> None:
        from vllm.v1.request import RequestStatus

        names = list(self.engine.scheduler.requests)
        if names:
            chosen = self.rng.sample(names, min(2, len(names)))
            self.engine.scheduler.finish_requests(chosen, RequestStatus.FINISHED_ABORTED)

    def preempt_all(self) -> None:
        self.engine.scheduler.reset_prefix_cache(reset_running_requests=True)

    def toggle_pause(self) -> None:
        from vllm.v1.core.sched.interface import PauseState

        self.engine.scheduler.set_pause_state(self.rng.choice(list(PauseState)))


def random_engine(model: str, seed: int, *, depth: int, runner_v2: bool, **more: Any) -> BareEngine:
    """Return an engine whose limits depend on the seed; blocks are scarce in two of three."""
    rng = random.Random(seed)
    scheduler = build_scheduler(
        model,
        async_scheduling=depth > 1,
        runner_v2=runner_v2,
        blocks=rng.choice([30, 50, 400]),
        max_seqs=rng.choice([4, 12, 32]),
        max_batched_tokens=rng.choice([48, 160, 700]),
        max_model_len=1024,
        **more,
    )
    return BareEngine(scheduler, depth)


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("seed", range(6))
def test_every_pass_of_a_random_workload_is_counted_right(
    tiny_model: str, seed: int, depth: int, runner_v2: bool
) -> None:
    """ENG-04, ENG-05, ENG-06: Whatever mix of chunks, prefix hits, preemptions (D-1, D-2), aborts, cache
    resets and pauses the scheduler meets, in sync and async order and for both model runners, each message
    equals the counts taken from the live requests with fractions.
    """
    engine = random_engine(
        tiny_model,
        seed,
        depth=depth,
        runner_v2=runner_v2,
        policy="priority" if seed % 2 else "fcfs",
    )
    load = Workload(seed, engine, priority=bool(seed % 2))

    for _ in range(STEPS):
        if load.rng.random() < 0.35:
            for _ in range(load.rng.randrange(1, 4)):
                load.add()
        if load.rng.random() < 0.05:
            load.abort()
        if load.rng.random() < 0.01:
            load.preempt_all()
        if load.rng.random() < 0.02:
            load.toggle_pause()
        engine.step()
    load.abort()
    unpause(engine.scheduler)
    engine.run()

    assert engine.passes > STEPS / 4
    assert engine.passes == len(engine.publisher.messages)


def unpause(scheduler: Any) -> None:
    from vllm.v1.core.sched.interface import PauseState

    scheduler.set_pause_state(PauseState.UNPAUSED)


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
@pytest.mark.parametrize("blocks", [400, 26], ids=["plenty", "scarce"])
def test_tokens_are_conserved(tiny_model: str, depth: int, runner_v2: bool, blocks: int) -> None:
    """Prefill tokens plus prefix hits are the prompts plus what preemption made the engine compute again;
    every generated token belongs to one decode or to the pass that finished a prefill.
    """
    scheduler = build_scheduler(
        tiny_model, async_scheduling=depth > 1, runner_v2=runner_v2, blocks=blocks,
        max_batched_tokens=96, max_model_len=768,
    )  # fmt: skip
    engine = BareEngine(scheduler, depth)
    load = Workload(11, engine, priority=False)
    for _ in range(30):
        load.add()
        engine.step()
    engine.run()

    sums = engine.scheduled_sums
    admissions = engine.oracle.admissions
    first_hits = sum(engine.cached_tokens.values())
    prompts = sum(load.prompts.values())
    again = len(admissions) - len(load.prompts)
    assert len(engine.cached_tokens) == len(load.prompts) == 30
    assert engine.generated == load.outputs
    if blocks == 400:
        assert again == 0
        assert sums["sum_prefill_tokens"] + first_hits == prompts
        assert sums["num_decode_requests"] + len(load.prompts) == load.outputs
    else:
        assert again > 0, "the test wants preemptions"
        assert sums["sum_prefill_tokens"] + first_hits > prompts
    assert sums["sum_prefill_tokens"] == engine.oracle.computed_for_prefill
