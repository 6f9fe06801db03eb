"""Engines to plan for: small ones by hand, and generated ones of every kind."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from forwardpass.bench.limits import (
    CapacityEnvelope,
    EngineLayout,
    GraphMode,
    GraphSettings,
    KvGroup,
    KvKind,
)


def layout(*groups: KvGroup, block_size: int = 16, **more: Any) -> EngineLayout:
    """Return a layout; one full-attention group if none is given."""
    return EngineLayout(
        groups or (KvGroup(block_size),), block_size, more.pop("hash_block_size", block_size), **more
    )


def capacity(**limits: Any) -> CapacityEnvelope:
    """Return what a small engine can hold, but for ``limits``."""
    blocks = limits.pop("blocks", 1000)
    return CapacityEnvelope(
        **{
            "max_model_len": 2048,
            "max_num_scheduled_tokens": 256,
            "max_num_running_reqs": 16,
            "usable_blocks_without_watermark": blocks,
            "usable_blocks_with_watermark": blocks,
            **limits,
        }
    )


_groups = st.lists(
    st.builds(
        KvGroup,
        block_size=st.sampled_from([16, 32, 64]),
        kind=st.sampled_from(KvKind),
        admission_cap=st.none() | st.integers(1, 40),
        speculative_blocks=st.integers(0, 2),
        checkpoint_blocks=st.integers(0, 2),
    ),
    max_size=3,
).map(tuple)
_graphs = st.builds(
    GraphSettings,
    mode=st.just("FULL_AND_PIECEWISE"),
    prefill_mode=st.sampled_from(GraphMode),
    decode_mode=st.sampled_from(GraphMode),
    capture_sizes=st.lists(st.integers(1, 128), unique=True, max_size=8).map(
        lambda sizes: tuple(sorted(sizes))
    ),
)
layouts = st.builds(
    EngineLayout,
    groups=_groups,
    block_size=st.sampled_from([16, 32]),
    hash_block_size=st.sampled_from([16, 32]),
    prefix_caching=st.booleans(),
    graph=_graphs,
    lookahead_tokens=st.integers(0, 4),
    long_prefill_threshold=st.sampled_from([0, 0, 64]),
    adaptive_long_prefill=st.booleans(),
    eagle=st.booleans(),
    per_group_lookup=st.booleans(),
    partial_hash_hits=st.booleans(),
)


@st.composite
def capacities(draw: st.DrawFn) -> CapacityEnvelope:
    """Draw what an engine can hold, down to next to nothing."""
    with_watermark = draw(st.integers(0, 2000))
    return CapacityEnvelope(
        max_model_len=draw(st.integers(1, 1024)),
        max_num_scheduled_tokens=draw(st.integers(1, 512)),
        max_num_running_reqs=draw(st.integers(1, 64)),
        usable_blocks_without_watermark=with_watermark + draw(st.integers(0, 20)),
        usable_blocks_with_watermark=with_watermark,
    )
