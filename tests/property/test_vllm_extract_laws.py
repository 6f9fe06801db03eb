"""Laws of extraction over made-up schedules: every pass equals a slow count with fractions."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.engines.vllm.steady import RunningContexts
from forwardpass.wire.schema import ScheduledRequestMetrics
from forwardpass.wire.tally import Tally


def variance(values: list[int]) -> float:
    if len(values) < 2:
        return 0.0
    mean = Fraction(sum(values), len(values))
    return float(sum((value - mean) ** 2 for value in values) / len(values))


class Simulated:
    """A request of the simulation; ``target`` is what must be computed before it (again) decodes."""

    def __init__(self, name: str, length: int) -> None:
        self.name = name
        self.prompt = length
        self.outputs = 0
        self.computed = 0
        self.target = length
        self.listed = False
        self.resumed = False


class Simulation:
    """A scheduler that obeys vLLM's rules about what an output may say, and little else."""

    def __init__(self, seed: int, *, runner_v2: bool, drafts: int) -> None:
        self.rng = random.Random(seed)
        self.runner_v2 = runner_v2
        self.drafts = drafts
        self.requests: list[Simulated] = []
        self.finished: set[str] = set()
        self.born = 0
        self.seen: Counter[str] = Counter()

    def turn(self) -> tuple[Any, ScheduledRequestMetrics] | None:
        """Return an output and what it should be counted as, or ``None`` if nothing runs."""
        self._events()
        chosen = [request for request in self.requests if self.rng.random() < 0.9]
        if not chosen:
            return None
        output = SimpleNamespace(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=[], num_computed_tokens=[], num_output_tokens=[], resumed_req_ids=set()
            ),
            num_scheduled_tokens={},
            scheduled_spec_decode_tokens={},
            finished_req_ids=self.finished,
        )
        self.finished = set()
        prefills: list[tuple[int, int, int]] = []
        contexts: list[int] = []
        for request in chosen:
            self._list(output, request, prefills, contexts)
        output.total_num_scheduled_tokens = sum(output.num_scheduled_tokens.values())
        lengths = [length for _, _, length in prefills]
        return output, ScheduledRequestMetrics(
            len(prefills), sum(tokens for tokens, _, _ in prefills), variance(lengths),
            sum(read for _, read, _ in prefills),
            len(contexts), sum(contexts), variance(contexts),
        )  # fmt: skip

    def _events(self) -> None:
        rng = self.rng
        if rng.random() < 0.3 and len(self.requests) < 12:
            self.requests.append(Simulated(f"r{self.born}", rng.randrange(1, 200)))
            self.born += 1
        for request in list(self.requests):
            if request.listed and rng.random() < 0.02:
                self.requests.remove(request)
                self.finished.add(request.name)
            elif request.listed and rng.random() < 0.03:
                request.resumed = True
                request.target = request.prompt + request.outputs
                request.computed = rng.randrange(request.target) if rng.random() < 0.5 else 0

    def _list(
        self, output: Any, request: Simulated, prefills: list[tuple[int, int, int]], contexts: list[int]
    ) -> None:
        computed, left = request.computed, request.target - request.computed
        tokens = min(left, self.rng.randrange(1, 80)) if left > 0 else 1
        extra = self.drafts if left <= 0 and self.rng.random() < 0.5 else 0
        anew = not request.listed or (request.resumed and self.runner_v2)
        if anew:
            known = [0] * request.target if self.runner_v2 else None
            output.scheduled_new_reqs.append(
                SimpleNamespace(
                    req_id=request.name, prompt_token_ids=[0] * request.prompt, prompt_embeds=None,
                    prefill_token_ids=known, num_computed_tokens=computed,
                )
            )  # fmt: skip
        else:
            cached = output.scheduled_cached_reqs
            cached.req_ids.append(request.name)
            cached.num_computed_tokens.append(computed)
            cached.num_output_tokens.append(request.outputs)
            if request.resumed:
                cached.resumed_req_ids.add(request.name)
        output.num_scheduled_tokens[request.name] = tokens + extra
        if extra:
            output.scheduled_spec_decode_tokens[request.name] = [-1] * extra
        if left > 0:
            prefills.append((tokens, computed, request.target))
            self.seen["recompute" if request.target > request.prompt else "prefill"] += 1
        else:
            contexts.append(computed)
            self.seen["decode"] += 1
        accepted = self.rng.randrange(extra + 1)
        request.computed += tokens + accepted
        if request.computed >= request.target:
            request.outputs += 1 + accepted
        request.listed, request.resumed = True, False


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_pass_of_a_made_up_schedule_is_counted_right(seed: int, drafts: int, runner_v2: bool) -> None:
    """Chunks, preemptions in prompt and in decode, partial prefix hits on return, drafts and requests that
    vanish: the numbers are those of a count with fractions, and nothing finished is remembered.
    """
    simulation = Simulation(seed, runner_v2=runner_v2, drafts=drafts)
    memory, running = RequestMemory(), RunningContexts()
    for _ in range(600):
        turn = simulation.turn()
        if turn is None:
            continue
        output, expected = turn
        lengths = known_lengths(output.scheduled_new_reqs)
        assert scheduled_metrics(output, lengths, memory, running) == expected

    assert min(simulation.seen[what] for what in ("prefill", "recompute", "decode")) > 50
    alive = {request.name for request in simulation.requests} | simulation.finished
    assert set(memory.lengths) <= alive
    assert set(memory.recomputing) <= alive


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 40))
def test_running_contexts_equal_a_fresh_count(seed: int, many: int, passes: int) -> None:
    """Whatever passes follow each other, the moved-on tally is the tally of the lengths: requests leave,
    come, are left out of a pass, change places, compute chunks or are set back.
    """
    rng, running, born = random.Random(seed), RunningContexts(), many
    requests = [(f"r{number}", rng.randrange(10**9)) for number in range(many)]
    for _ in range(passes):
        earlier = {name for name, _ in requests}
        event = rng.choice(["", "", "leave", "skip", "reorder", "other", "set back", "speculate"])
        if event == "leave":
            gone = rng.randrange(6)
            requests = [each for each in requests if not gone or rng.random() > gone / len(requests)]
        if event == "other" or rng.random() < 0.3:
            new = [(f"r{born + more}", rng.randrange(10**9)) for more in range(rng.randrange(1, 5))]
            requests = ([] if event == "other" else requests) + new
            born += len(new)
        if event == "reorder":
            rng.shuffle(requests)
        if event == "set back":
            requests = [(name, max(0, length - rng.choice([0, 0, 1, 50]))) for name, length in requests]
        ran = [each for each in requests if event != "skip" or rng.random() < 0.9]
        jumps = {place: rng.randrange(1, 300) for place in range(len(ran)) if rng.random() < 0.1}

        lengths = [length for _, length in ran]
        left = earlier - {name for name, _ in requests}  # not all of these ran
        assert running.follow([name for name, _ in ran], lengths, left) == Tally.of(lengths)
        if event == "speculate":
            running.reset()
            grown = {name: rng.randrange(4) for name, _ in ran}
        else:
            running.ran(jumps)
            grown = {name: jumps.get(place, 1) for place, (name, _) in enumerate(ran)}
        requests = [(name, length + grown.get(name, 0)) for name, length in requests]
