"""A made-up scheduler that obeys vLLM's rules about what an output may say, and counts with fractions."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

from forwardpass.wire.schema import ScheduledRequestMetrics


def variance(values: list[int]) -> float:
    """Return the float nearest to the exact population variance; 0.0 for fewer than two values."""
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
