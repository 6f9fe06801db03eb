"""Knows a dozen ways to count wrongly, each put into the product for as long as a test wants it.

They show that the proof can fail. Each is a mistake that somebody could make: most were made once, here or in
another program that writes the same messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forwardpass.engines.vllm import compat, passes, recorder
from forwardpass.engines.vllm.extract import Lengths
from forwardpass.engines.vllm.recorder import PassRecorder
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

Patch = pytest.MonkeyPatch
Rewrite = Callable[[Any, ScheduledRequestMetrics], ScheduledRequestMetrics]


def _replace(metrics: ScheduledRequestMetrics, **changes: Any) -> ScheduledRequestMetrics:
    values = {name: getattr(metrics, name) for name in metrics.__struct_fields__}
    return ScheduledRequestMetrics(**{**values, **changes})


def _rewriting(rewrite: Rewrite) -> Callable[[Patch], None]:
    """Return a patch that changes what is counted of a scheduler output."""

    def apply(patch: Patch) -> None:
        count = passes.scheduled_metrics

        def wrong(output: Any, *rest: Any) -> ScheduledRequestMetrics:
            return rewrite(output, count(output, *rest))

        patch.setattr(passes, "scheduled_metrics", wrong)

    return apply


def _context_includes_this_token(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    return _replace(metrics, sum_decode_kv_tokens=metrics.sum_decode_kv_tokens + metrics.num_decode_requests)


def _variance_of_chunks(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    new = [output.num_scheduled_tokens[each.req_id] for each in output.scheduled_new_reqs]
    if len(new) != metrics.num_prefill_requests or len(new) < 2:
        return metrics
    mean = sum(new) / len(new)
    return _replace(metrics, var_prefill_length=sum((tokens - mean) ** 2 for tokens in new) / len(new))


def _hits_are_computed(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    hits = sum(new.num_computed_tokens for new in output.scheduled_new_reqs)
    return _replace(metrics, sum_prefill_tokens=metrics.sum_prefill_tokens + hits)


def _padding_is_prefill(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    drafts = output.scheduled_spec_decode_tokens
    padding = sum(len(drafts.get(new.req_id, ())) for new in output.scheduled_new_reqs)
    return _replace(metrics, sum_prefill_tokens=metrics.sum_prefill_tokens + padding)


def _drafts_are_decodes(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    drafts = sum(map(len, output.scheduled_spec_decode_tokens.values()))
    return _replace(metrics, num_decode_requests=metrics.num_decode_requests + drafts)


def _resumed_are_decodes(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    resumed = len(output.scheduled_cached_reqs.resumed_req_ids)
    return _replace(
        metrics,
        num_prefill_requests=metrics.num_prefill_requests - resumed,
        num_decode_requests=metrics.num_decode_requests + resumed,
    )


def _chunks_are_new_requests_only(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    return _replace(
        metrics, num_prefill_requests=min(metrics.num_prefill_requests, len(output.scheduled_new_reqs))
    )


def _variance_of_a_sample(output: Any, metrics: ScheduledRequestMetrics) -> ScheduledRequestMetrics:
    n = metrics.num_decode_requests
    return (
        _replace(metrics, var_decode_kv_tokens=metrics.var_decode_kv_tokens * n / (n - 1))
        if n > 1
        else metrics
    )


def _embeddings_have_no_length(patch: Patch) -> None:
    lengths = recorder.known_lengths

    def wrong(new: Any) -> list[Lengths]:
        return [
            (0, 0) if each.prompt_token_ids is None else length
            for each, length in zip(new, lengths(new), strict=True)
        ]

    patch.setattr(recorder, "known_lengths", wrong)


def _with_rules(**changes: Any) -> Callable[[Patch], None]:
    """Return a patch of the rules by which waiting requests are read."""

    def apply(patch: Patch) -> None:
        rules = compat.installed_queue_rules

        def wrong(**how: Any) -> Any:
            paused = changes.get("count_paused_sessions", how["count_paused_sessions"])
            made = rules(count_paused_sessions=paused)
            fields = {name: change for name, change in changes.items() if name in made._fields}
            return made._replace(**fields)

        patch.setattr(compat, "installed_queue_rules", wrong)

    return apply


def _reading_queue(
    change: Callable[[QueuedRequestMetrics], QueuedRequestMetrics],
) -> Callable[[Patch], None]:
    """Return a patch of what a message says of the queue."""

    def apply(patch: Patch) -> None:
        right = passes.snapshot_metrics
        patch.setattr(passes, "snapshot_metrics", lambda snapshot: change(right(snapshot)))

    return apply


def _prompts_alone(queue: QueuedRequestMetrics) -> QueuedRequestMetrics:
    return QueuedRequestMetrics(
        queue.num_prefill_requests, queue.sum_prefill_tokens, queue.var_prefill_length, 0, 0, 0.0
    )


def _from_the_schedule_on(patch: Patch) -> None:
    finished = PassRecorder.finished

    def wrong(self: Any, output: Any, arrived_at: float) -> None:
        self._last_output_at = 0.0
        finished(self, output, arrived_at)

    patch.setattr(PassRecorder, "finished", wrong)


def _one_message_less(patch: Patch) -> None:
    """A pass is not told of if all its requests are over when its output comes."""
    finished = PassRecorder.finished

    def wrong(self: Any, output: Any, arrived_at: float) -> None:
        if output.total_num_scheduled_tokens and output.finished_req_ids:
            publisher, self._publisher = self._publisher, _Nowhere()
            finished(self, output, arrived_at)
            self._publisher = publisher
        else:
            finished(self, output, arrived_at)

    patch.setattr(PassRecorder, "finished", wrong)


class _Nowhere:
    def publish_later(self, late: Any) -> bool:
        return True


def _lengths_when_built(patch: Patch) -> None:
    """Lengths are taken from the engine's growing lists when the message is built."""
    count = passes.scheduled_metrics

    def wrong(output: Any, lengths: Any, memory: Any) -> ScheduledRequestMetrics:
        return count(output, recorder.known_lengths(output.scheduled_new_reqs), memory)

    patch.setattr(passes, "scheduled_metrics", wrong)


MISTAKES: dict[str, tuple[Callable[[Patch], None], int]] = {
    "the context includes the token of this pass": (_rewriting(_context_includes_this_token), 0),
    "variance over chunks instead of prompts": (_rewriting(_variance_of_chunks), 0),
    "prefix hits count as computed": (_rewriting(_hits_are_computed), 1),
    "placeholders of drafts count as prefill": (_rewriting(_padding_is_prefill), 14),
    "drafts count as decodes": (_rewriting(_drafts_are_decodes), 0),
    "a resumed request is a decode": (_rewriting(_resumed_are_decodes), 1),
    "a later chunk is no prefill": (_rewriting(_chunks_are_new_requests_only), 0),
    "variance of a sample": (_rewriting(_variance_of_a_sample), 0),
    "embeddings have no length": (_embeddings_have_no_length, 0),
    "paused sessions are always counted": (_with_rules(count_paused_sessions=True), 10),
    "KV in transit is not counted": (_with_rules(loading=-1), 4),
    "a preempted request is not counted": (_with_rules(preempted=-1), 0),
    "transfers and preempted requests are left out": (_reading_queue(_prompts_alone), 0),
    "time from schedule to output": (_from_the_schedule_on, 0),
    "a pass is left out": (_one_message_less, 0),
    "lengths are taken when the message is built": (_lengths_when_built, 0),
}
"""Name to patch and the first seed to try: one whose workload has the case."""
