"""Knows how many blocks of the shared pool a request takes."""

from __future__ import annotations

from collections.abc import Sequence

from forwardpass.bench.limits import KvGroup, KvKind

__all__ = ["footprint"]

_CROSS_ATTENTION, _RECURRENT, _RECURRENT_ALIGNED = (
    KvKind.CROSS_ATTENTION,
    KvKind.RECURRENT,
    KvKind.RECURRENT_ALIGNED,
)
"""Members of an enum cost a look-up each time."""


def footprint(tokens: int, groups: Sequence[KvGroup], *, capped: bool = False, resident: bool = False) -> int:
    """Return the blocks that ``groups`` give to a request of ``tokens`` tokens.

    ``capped`` applies the caps of groups that recycle blocks: right for a request that runs, wrong for one
    whose blocks stay, such as the seed of a prefix. ``resident`` is for a chain that is parked: its aligned
    state below one block is a single one.
    """
    blocks = 0
    for group in groups:  # no generator: a grid asks this a million times
        blocks += _of_group(tokens, group, capped, resident)
    return blocks


def _of_group(tokens: int, group: KvGroup, capped: bool, resident: bool) -> int:
    kind = group.kind
    if kind is _CROSS_ATTENTION:
        return 0
    if kind is _RECURRENT_ALIGNED:
        if resident and tokens < group.block_size:
            return 1 + group.speculative_blocks
        return 2 + group.speculative_blocks + group.checkpoint_blocks
    blocks = -(-tokens // group.block_size)
    if kind is _RECURRENT:
        blocks += group.speculative_blocks
    if capped and group.admission_cap is not None:
        blocks = min(blocks, group.admission_cap)
    return blocks
