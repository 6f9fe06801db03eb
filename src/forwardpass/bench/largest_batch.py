"""Knows how to find the largest batch that a number of new tokens fits in, without trying each.

Blocks are not monotonic in the batch: one request more may take a block less. But while every request has
``a`` or ``a + 1`` tokens, they are linear in it, so that one look at such a stretch is enough.
"""

from __future__ import annotations

from forwardpass.bench.feasible import FirstChunk, Limit, shortfall
from forwardpass.bench.footprint import footprint
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout
from forwardpass.bench.points import Phase, Point

__all__ = ["largest_batch"]


def largest_batch(
    total: int,
    least: int,
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    *,
    first_chunk: FirstChunk | None = None,
) -> int | None:
    """Return the largest batch above ``least`` in which ``total`` new tokens fit, or ``None``.

    ``least`` is one that is known to fit, or 1 if that is known not to.
    """
    batch = min(total, capacity.max_num_running_reqs)
    while batch > max(1, least):
        found = shortfall(Point(Phase.PREFILL, 0, total, 0, batch), layout, capacity, first_chunk=first_chunk)
        if found is None:
            return batch
        if found.limit is Limit.MODEL_LENGTH:
            return None  # in a smaller batch requests are longer
        if found.limit is Limit.CHUNK and first_chunk is None and not layout.adaptive_long_prefill:
            return None  # likewise
        batch = (
            _below(total, batch, found.need - found.have, layout)
            if found.limit is Limit.BLOCKS
            else batch - 1
        )
    return None


def _below(total: int, batch: int, missing: int, layout: EngineLayout) -> int:
    """Return the next smaller batch that may do with ``missing`` blocks less, none in between can."""
    tokens = total // batch
    each = footprint(tokens + layout.lookahead_tokens, layout.managers, capped=True)
    longer = footprint(tokens + 1 + layout.lookahead_tokens, layout.managers, capped=True)
    saved = each - tokens * (longer - each)  # by each request less, in the stretch of these lengths
    next_stretch = total // (tokens + 1)
    if saved <= 0:
        return next_stretch
    return max(next_stretch, batch - -(-missing // saved))
