"""Knows what a step of a benchmark ran and how it was dispatched, in a message's terms."""

from __future__ import annotations

from typing import Any

from forwardpass.bench.evidence import NO_DISPATCH, Dispatch, Observed
from forwardpass.bench.session import OutputSummary
from forwardpass.engines.vllm.bench_steps import HandMade
from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.wire.schema import ScheduledRequestMetrics
from forwardpass.wire.tally import Tally

__all__ = ["StepCounter", "dispatch_of", "summary_of"]


class StepCounter:
    """Counts steps in the order in which they are scheduled."""

    def __init__(self) -> None:
        self._memory = RequestMemory()

    def of_scheduler(self, output: Any) -> ScheduledRequestMetrics | None:
        """Return what ``output``, which vLLM scheduled, runs; ``None`` for nothing."""
        metrics = scheduled_metrics(output, known_lengths(output.scheduled_new_reqs), self._memory)
        return metrics if output.total_num_scheduled_tokens else None

    def of_hand_made(self, step: HandMade) -> ScheduledRequestMetrics | None:
        """Return what ``step`` runs: decodes, though vLLM's record lists them as new."""
        if not step.ids:
            return None
        decode = Tally.of(step.contexts)
        return ScheduledRequestMetrics(
            num_decode_requests=decode.n,
            sum_decode_kv_tokens=decode.total,
            var_decode_kv_tokens=decode.variance,
        )


def summary_of(metrics: ScheduledRequestMetrics) -> OutputSummary:
    """Return the numbers that ranks compare before they start a point. Without drafts a decode computes one
    token.
    """
    return OutputSummary(
        total_num_scheduled_tokens=metrics.sum_prefill_tokens + metrics.num_decode_requests,
        num_prefill_requests=metrics.num_prefill_requests,
        sum_prefill_tokens=metrics.sum_prefill_tokens,
        sum_prefill_kv_tokens=metrics.sum_prefill_kv_tokens,
        num_decode_requests=metrics.num_decode_requests,
        sum_decode_kv_tokens=metrics.sum_decode_kv_tokens,
    )


def dispatch_of(model_output: Any) -> Dispatch:
    """Return how the model runner says that it dispatched a step; unavailable where it does not say all."""
    stats: Any = getattr(model_output, "cudagraph_stats", None)
    try:
        return Observed(
            runtime_mode=str(stats.runtime_mode),
            num_unpadded_tokens=int(stats.num_unpadded_tokens),
            num_padded_tokens=int(stats.num_padded_tokens),
            num_paddings=int(stats.num_paddings),
        )
    except (AttributeError, TypeError, ValueError):
        return NO_DISPATCH
