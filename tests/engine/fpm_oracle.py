"""Counts what a pass did and what waits from vLLM's live requests, on its own and the slow way.

It shares no code and no input with the product: where the product reads scheduler outputs and remembers
lengths, this looks at the requests themselves right after ``schedule()``; where the product walks the two
waiting queues, this takes every request that is neither running nor finished. Variances are fractions.
"""

from __future__ import annotations

from typing import Any

from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics


def variance(values: list[int]) -> float:
    """Return the population variance: an exact fraction of integers, rounded once."""
    n, total = len(values), sum(values)
    return sum((n * value - total) ** 2 for value in values) / n**3 if n > 1 else 0.0


class Expected:
    """What one pass should report."""

    def __init__(self) -> None:
        self.prefills: list[tuple[str, int, int, int]] = []
        """Request, tokens computed, tokens read, whole length."""
        self.decodes: list[tuple[str, int]] = []
        """Request, context length before the pass."""
        self.samples: set[str] = set()
        """Requests that get a token from this pass."""

    def metrics(self) -> ScheduledRequestMetrics:
        """Return the message's part."""
        contexts = [context for _, context in self.decodes]
        return ScheduledRequestMetrics(
            num_prefill_requests=len(self.prefills),
            sum_prefill_tokens=sum(tokens for _, tokens, _, _ in self.prefills),
            var_prefill_length=variance([length for _, _, _, length in self.prefills]),
            sum_prefill_kv_tokens=sum(read for _, _, read, _ in self.prefills),
            num_decode_requests=len(contexts),
            sum_decode_kv_tokens=sum(contexts),
            var_decode_kv_tokens=variance(contexts),
        )


class Oracle:
    """Follows each request from admission to admission."""

    def __init__(self) -> None:
        self._running: set[str] = set()
        self._target: dict[str, int] = {}
        self._context: dict[str, int] = {}
        self.admissions: list[tuple[str, int, int]] = []
        """Request, known tokens, tokens that were not computed again, for every admission."""
        self.computed_for_prefill = 0

    def before_schedule(self, scheduler: Any) -> None:
        """Note who runs."""
        self._running = {request.request_id for request in scheduler.running}

    def scheduled(self, scheduler: Any, output: Any) -> Expected:
        """Count the pass that was just scheduled."""
        expected = Expected()
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = scheduler.requests[request_id]
            before = request.num_computed_tokens - tokens  # vLLM has moved it on already
            if request_id not in self._running:
                self._target[request_id] = request.num_tokens
                self.admissions.append((request_id, request.num_tokens, before))
            target = self._target[request_id]
            if before < target:
                expected.prefills.append((request_id, tokens, before, target))
                self.computed_for_prefill += tokens
                self._context.pop(request_id, None)
            else:
                expected.decodes.append((request_id, before))
                assert before == self._context.get(request_id, target), "a decode's context grows by one"
                self._context[request_id] = before + 1
            if before + tokens >= target:
                expected.samples.add(request_id)
        return expected

    def queued(self, scheduler: Any) -> QueuedRequestMetrics:
        """Count what waits now."""
        prompts: list[int] = []
        contexts: list[int] = []
        for request in scheduler.requests.values():
            status = request.status.name
            if status == "RUNNING" or request.is_finished() or status == "WAITING_FOR_STREAMING_REQ":
                continue
            if status == "WAITING_FOR_REMOTE_KVS":
                contexts.append(request.num_computed_tokens)
            elif status == "PREEMPTED":
                contexts.append(request.num_computed_tokens or request.num_tokens)
            else:
                prompts.append(request.num_tokens)
        return QueuedRequestMetrics(
            len(prompts), sum(prompts), variance(prompts), len(contexts), sum(contexts), variance(contexts)
        )
