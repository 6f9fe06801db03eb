"""Knows how an output that vLLM's scheduler did not make itself becomes one of its own.

A decode point must not meet the scheduler's own admission, which computes prompts. So its requests are put
among those that run, and two kinds of output are made by hand: the one that lists them for the first time,
and those that continue them. What vLLM does around each of its own outputs is done around these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct

from forwardpass.engines.vllm import compat

__all__ = ["HandMade", "Listed", "carry_out", "continued", "listed_anew"]


class Listed(NamedTuple):
    """A request of a hand-made output."""

    request: Any
    blocks: tuple[list[int], ...] | None
    """Its new blocks, by group; ``None`` where it needs none."""


class HandMade(Struct, frozen=True):
    """What a step shall run: one token of each request. Nothing of the scheduler's changes before
    :func:`carry_out`.
    """

    contexts: tuple[int, ...] = ()
    """Tokens that each request reads."""
    new: tuple[Any, ...] = ()
    """vLLM's records of requests that its workers do not know yet."""
    cached: Any = None
    """vLLM's record of those that they do."""
    ids: tuple[str, ...] = ()


def listed_anew(requests: Sequence[Listed]) -> HandMade:
    """Return what lists ``requests`` for the first time, the last token of each prompt still to compute."""
    names = compat.bench_names()
    new = tuple(
        names.NewRequestData.from_request(request, blocks, prefill_token_ids=request._all_token_ids)
        for request, blocks in requests
    )
    return HandMade(
        contexts=tuple(request.num_computed_tokens for request, _ in requests),
        new=new,
        ids=tuple(request.request_id for request, _ in requests),
    )


def continued(requests: Sequence[Listed]) -> HandMade:
    """Return what computes the next token of ``requests``, which ran in the step before."""
    names = compat.bench_names()
    contexts = [request.num_computed_tokens for request, _ in requests]
    ids = [request.request_id for request, _ in requests]
    cached = names.CachedRequestData(
        req_ids=ids,
        resumed_req_ids=set(),
        new_token_ids=[],
        all_token_ids={},
        new_block_ids=[blocks for _, blocks in requests],
        num_computed_tokens=contexts,
        num_output_tokens=[
            max(1, request.num_output_tokens + request.num_output_placeholders) for request, _ in requests
        ],
    )
    return HandMade(contexts=tuple(contexts), cached=cached, ids=tuple(ids))


def carry_out(scheduler: Any, step: HandMade) -> Any:
    """Return ``step`` as an output of ``scheduler``, which then stands as if it had scheduled it."""
    output = _output(scheduler, step)
    scheduler.kv_cache_manager.new_step_starts()
    if step.ids:
        if scheduler.defer_block_free:
            scheduler.sched_step_seq += 1
        if not scheduler.use_v2_model_runner:
            scheduler.prev_step_scheduled_req_ids = set(step.ids)
    _attach(scheduler, output)
    scheduler._update_after_schedule(output)
    return output


def _output(scheduler: Any, step: HandMade) -> Any:
    names = compat.bench_names()
    to_zero = scheduler.kv_cache_manager.take_new_block_ids()  # or the list would grow
    values = {
        "scheduled_new_reqs": list(step.new),
        "scheduled_cached_reqs": step.cached or names.CachedRequestData.make_empty(),
        "num_scheduled_tokens": dict.fromkeys(step.ids, 1),
        "total_num_scheduled_tokens": len(step.ids),
        "scheduled_spec_decode_tokens": {},
        "scheduled_encoder_inputs": {},
        "num_common_prefix_blocks": [0] * len(scheduler.kv_cache_config.kv_cache_groups),
        "preempted_req_ids": set(),
        "finished_req_ids": scheduler.finished_req_ids,
        "free_encoder_mm_hashes": scheduler.encoder_cache_manager.get_freed_mm_hashes(),
        "new_block_ids_to_zero": (to_zero or None) if scheduler.needs_kv_cache_zeroing else None,
    }
    metadata = getattr(scheduler.encoder_cache_manager, "get_manager_metadata", None)
    if metadata is not None:
        values["ec_manager_metadata"] = metadata()
    fields = compat.fields_of(names.SchedulerOutput)
    return names.SchedulerOutput(**{name: value for name, value in values.items() if name in fields})


def _attach(scheduler: Any, output: Any) -> None:
    """Let every connector say what it says of each output: their workers expect it of the empty ones too."""
    if scheduler.connector is not None:
        state = _block_state(scheduler, output)
        if state is not None:
            output.kv_connector_block_state = state
        output.kv_connector_metadata = scheduler.connector.build_connector_meta(output)
        if state is not None:
            output.kv_connector_block_state = None
    if scheduler.ec_connector is not None:
        output.ec_connector_metadata = scheduler.ec_connector.build_connector_meta(output)
    others = getattr(scheduler, "aux_output_connector", None)
    if others is not None:
        output.aux_output_connector_metadata = others.build_connector_meta(output, scheduler.requests)


def _block_state(scheduler: Any, output: Any) -> Any | None:
    """Return what a connector may ask about the blocks of an output's requests, ``None`` before 0.29."""
    state = compat.bench_names().KVConnectorBlockState
    if state is None:
        return None
    blocks_of, ids = scheduler.kv_cache_manager.get_block_ids, output.num_scheduled_tokens
    known: dict[str, Any] = {"boundary_state_offloads": {}}
    if "block_ids" in compat.fields_of(state):  # in 0.29 alone
        known["block_ids"] = {each: blocks_of(each) for each in ids}
    else:
        known |= {"req_ids": set(ids), "resolve_block_ids": blocks_of}
    return state(**known)
