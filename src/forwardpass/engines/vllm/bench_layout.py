"""Knows what a vLLM scheduler can hold, in the terms of a benchmark: layout, capacity, size of a first chunk.

Every limit is read when it is asked for: the pool's free blocks change, and an override of the number of
blocks is known only once the cache was set up.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from forwardpass.bench.limits import (
    CapacityEnvelope,
    EngineLayout,
    GraphMode,
    GraphSettings,
    KvGroup,
    KvKind,
)

__all__ = ["capacity_of", "first_chunk_of", "layout_of", "looks_up_per_group"]


def layout_of(scheduler: Any) -> EngineLayout:
    """Return what is the same on every rank of the engine that ``scheduler`` belongs to."""
    coordinator = scheduler.kv_cache_manager.coordinator
    settings = scheduler.scheduler_config
    return EngineLayout(
        groups=tuple(_group(manager) for manager in coordinator.single_type_managers),
        block_size=scheduler.block_size,
        hash_block_size=scheduler.hash_block_size,
        prefix_caching=bool(scheduler.cache_config.enable_prefix_caching),
        graph=_graphs(scheduler.vllm_config.compilation_config),
        lookahead_tokens=scheduler.num_lookahead_tokens,
        long_prefill_threshold=settings.long_prefill_token_threshold,
        adaptive_long_prefill=bool(getattr(scheduler, "adaptive_long_prefill_threshold", False)),
        eagle=bool(getattr(scheduler, "use_eagle_block_drop", scheduler.use_eagle)),
        per_group_lookup=looks_up_per_group(scheduler),
        partial_hash_hits=bool(coordinator.enable_partial_hash_hits),
        cache_block_size=scheduler.cache_config.block_size,
    )


def looks_up_per_group(scheduler: Any) -> bool:
    """Say whether vLLM looks up prefixes of a mixed model in each group by itself, as it does where a
    connector may bring what one of them lacks.
    """
    return scheduler.connector is not None and bool(scheduler.kv_cache_config.has_mamba_layers)


def capacity_of(scheduler: Any) -> CapacityEnvelope:
    """Return what this rank can hold now."""
    manager = scheduler.kv_cache_manager
    free = manager.block_pool.get_num_free_blocks()
    requests = scheduler.max_num_running_reqs
    return CapacityEnvelope(
        max_model_len=scheduler.max_model_len,
        max_num_scheduled_tokens=scheduler.max_num_scheduled_tokens,
        max_num_running_reqs=min(requests, getattr(scheduler, "max_num_active_reqs", requests)),
        usable_blocks_without_watermark=free,
        usable_blocks_with_watermark=max(0, free - manager.watermark_blocks),
    )


def first_chunk_of(scheduler: Any, prompt_tokens: int, cached_tokens: int) -> int:
    """Return how many tokens of a prompt vLLM would schedule at once, by its rule for recurrent states that
    are kept at block boundaries; all that are not cached, where there are none.
    """
    new = prompt_tokens - cached_tokens
    if not scheduler.need_mamba_block_aligned_split:
        return new
    request = SimpleNamespace(
        num_computed_tokens=0,
        num_prompt_tokens=prompt_tokens,
        num_tokens=prompt_tokens,
        shared_prefix_boundary=0,
    )
    return int(
        scheduler._mamba_block_aligned_split(request, new, num_new_local_computed_tokens=cached_tokens)
    )


def _group(manager: Any) -> KvGroup:
    spec = manager.kv_cache_spec
    name = type(manager).__name__
    cap = getattr(manager, "max_admission_blocks_per_request", None)
    if cap is None:  # until 0.30
        cap = getattr(manager, "_max_admission_blocks_per_request", None)
    kind = KvKind.ATTENTION
    if "CrossAttention" in name:
        kind = KvKind.CROSS_ATTENTION
    elif "Mamba" in name:
        aligned = getattr(spec, "mamba_cache_mode", None) == "align"
        kind = KvKind.RECURRENT_ALIGNED if aligned else KvKind.RECURRENT
    return KvGroup(
        block_size=manager.block_size,
        kind=kind,
        admission_cap=cap,
        speculative_blocks=getattr(spec, "num_speculative_blocks", 0),
        checkpoint_blocks=getattr(spec, "num_prefill_checkpoint_blocks", 0),
        manager=f"{type(manager).__module__}.{name}",
    )


def _graphs(compilation: Any) -> GraphSettings:
    mode = compilation.cudagraph_mode
    if mode is None:
        return GraphSettings()
    sizes = {int(size) for size in compilation.cudagraph_capture_sizes or () if size > 0}
    return GraphSettings(
        mode=mode.name,
        prefill_mode=GraphMode(mode.mixed_mode().name),
        decode_mode=GraphMode(mode.decode_mode().name),
        capture_sizes=tuple(sorted(sizes)),
    )
