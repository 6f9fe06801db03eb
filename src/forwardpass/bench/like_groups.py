"""Knows which kinds of KV blocks an engine has, as far as the artifact of a benchmark tells.

An artifact names each group's type, block size and window, and not what follows from them in the engine: how
many blocks a window holds at most, how a recurrent state is kept. Here is what vLLM 0.32 makes of it
(``v1/kv_cache_interface.py``, ``v1/core/kv_cache_utils.py``, ``config/vllm.py``); windows are compared in
``test_vllm_bench_driver.py``. Whether a plan made so is the artifact's shows in its digest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from forwardpass.bench.limits import KvGroup, KvKind

__all__ = ["SaidEngine", "SaidGroup", "SaidKvCache", "SaidParallel", "SaidScheduler", "SaidSpeculation",
           "groups_of", "hash_tokens"]  # fmt: skip


class SaidGroup(Struct, frozen=True):
    """One group, as it stands in the artifact; of a wrapper its members share all that matters here."""

    type: str = ""
    block_size: int | None = None
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    specs: tuple[SaidGroup, ...] = ()


class SaidKvCache(Struct, frozen=True):
    """What is said of the KV cache."""

    enable_prefix_caching: bool | None = None
    groups: tuple[SaidGroup, ...] = ()


class SaidScheduler(Struct, frozen=True):
    """What is said of the scheduler."""

    max_num_batched_tokens: int | None = None
    async_scheduling: bool | None = None


class SaidParallel(Struct, frozen=True):
    """What is said of the engine's workers."""

    pipeline_parallel_size: int | None = None


class SaidSpeculation(Struct, frozen=True):
    """What is said of speculative decoding."""

    num_speculative_tokens: int | None = None


class SaidEngine(Struct, frozen=True):
    """The parts of an artifact's ``engine`` that a planner reads."""

    kv_cache: SaidKvCache | None = None
    scheduler: SaidScheduler | None = None
    parallel: SaidParallel | None = None
    speculative: SaidSpeculation | None = None


def groups_of(
    engine: SaidEngine, *, block_size: int, max_model_len: int, pass_tokens: int
) -> tuple[KvGroup, ...]:
    """Return the groups of ``engine``, one of full attention with ``block_size`` tokens if it names none.

    ``pass_tokens`` are those of one pass, where the scheduler's own are not said.
    """
    said = engine.kv_cache.groups if engine.kv_cache is not None else ()
    in_flight = _in_flight_tokens(engine, pass_tokens)
    speculated = engine.speculative.num_speculative_tokens if engine.speculative is not None else None
    found = [_group(one, block_size, max_model_len, in_flight, speculated or 0) for one in said]
    return tuple(found) or (KvGroup(block_size),)


def hash_tokens(groups: Sequence[KvGroup], block_size: int) -> int:
    """Return the tokens of the unit in which prefixes are found again: what the groups' blocks have in
    common.

    With a recurrent state that is not kept at block boundaries it is the scheduler's block. Blocks of an
    encoder are not looked up.
    """
    found = [group.block_size for group in groups if group.kind is not KvKind.CROSS_ATTENTION]
    if len(found) < 2 or any(group.kind is KvKind.RECURRENT for group in groups):
        return block_size
    return math.gcd(*found)


def _group(said: SaidGroup, block_size: int, max_model_len: int, in_flight: int, speculated: int) -> KvGroup:
    of = said.specs[0] if said.specs else said
    size = said.block_size or of.block_size or block_size
    kind = _kind(of.type, size, max_model_len)
    recurrent = kind in (KvKind.RECURRENT, KvKind.RECURRENT_ALIGNED)
    return KvGroup(
        block_size=size,
        kind=kind,
        admission_cap=_cap(of, size, max_model_len, in_flight),
        speculative_blocks=speculated if recurrent else 0,
    )


def _kind(name: str, block_size: int, max_model_len: int) -> KvKind:
    lower = name.lower()
    if "cross" in lower:
        return KvKind.CROSS_ATTENTION
    if "mamba" in lower:  # one block for a whole request, or states at the boundaries of blocks
        return KvKind.RECURRENT if block_size >= max_model_len else KvKind.RECURRENT_ALIGNED
    if "recurrent" in lower:
        return KvKind.RECURRENT_ALIGNED if "aligned" in lower else KvKind.RECURRENT
    return KvKind.ATTENTION


def _cap(said: SaidGroup, block_size: int, max_model_len: int, in_flight: int) -> int | None:
    """Return the most blocks that a running request holds, where old ones are recycled.

    A window of a group of full attention is only masked: its blocks stay.
    """
    if "SlidingWindow" in said.type and said.sliding_window:
        tokens = min(said.sliding_window - 1 + in_flight, max_model_len)
        return -(-tokens // block_size) + 1  # a window need not begin with a block
    if "ChunkedLocal" in said.type and said.attention_chunk_size:
        return -(-min(said.attention_chunk_size + in_flight, max_model_len) // block_size)
    return None


def _in_flight_tokens(engine: SaidEngine, pass_tokens: int) -> int:
    """Return the tokens that may be on their way: those of every pass that runs at once."""
    scheduler, parallel = engine.scheduler or SaidScheduler(), engine.parallel or SaidParallel()
    stages = parallel.pipeline_parallel_size or 1
    passes = 2 if scheduler.async_scheduling and stages == 1 else stages
    return passes * (scheduler.max_num_batched_tokens or pass_tokens)
