"""Knows whether an engine can run a point as one pass, and if not, which limit it breaks and by how much."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from msgspec import Struct

from forwardpass.bench.footprint import footprint
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, KvGroup
from forwardpass.bench.partition import Runs, Unsplittable, even_pairs, joined
from forwardpass.bench.points import Phase, Point

__all__ = ["FirstChunk", "Limit", "Shortfall", "shortfall"]

FirstChunk = Callable[[int, int], int]
"""``(prompt tokens, tokens found cached) -> tokens that the engine schedules at once``, where an engine has
rules of its own (an aligned recurrent state).
"""


class Limit(StrEnum):
    """What stands in the way of a point."""

    SCHEDULED_TOKENS = "max_num_scheduled_tokens"
    REQUESTS = "max_num_running_reqs"
    SPLIT = "split"
    """The totals cannot be split over the requests."""
    PREFIX_CACHING = "enable_prefix_caching"
    """Tokens to read, and nothing keeps prefixes."""
    DROPPED_TOKENS = "eagle_drop"
    """A request computes no more than the drafter drops."""
    MODEL_LENGTH = "max_model_len"
    CHUNK = "first_chunk"
    """The engine would split a request's tokens into several passes."""
    BLOCKS = "usable_blocks"
    SEED_BLOCKS = "usable_blocks_for_seeds"
    """The same, for the prefixes that have to be there before."""


class Shortfall(Struct, frozen=True):
    """The first limit that a point breaks."""

    limit: Limit
    need: int
    have: int
    why: str = ""
    """More about it, where two numbers do not say enough."""

    def __str__(self) -> str:
        text = f"{self.limit.value}: needs {self.need}, has {self.have}"
        return f"{text} ({self.why})" if self.why else text


def shortfall(
    point: Point,
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    *,
    first_chunk: FirstChunk | None = None,
) -> Shortfall | None:
    """Return the first limit that ``point`` breaks, or ``None`` if it can be measured."""
    try:
        if point.point_type is Phase.DECODE:
            return _decode(point, layout, capacity)
        return _prefill(point, layout, capacity, first_chunk)
    except Unsplittable as error:
        return Shortfall(Limit.SPLIT, point.batch_size, 0, str(error))


def _prefill(
    point: Point, layout: EngineLayout, capacity: CapacityEnvelope, first_chunk: FirstChunk | None
) -> Shortfall | None:
    total, batch = point.total_prefill_tokens, point.batch_size
    if not 1 <= total <= capacity.max_num_scheduled_tokens:
        return Shortfall(Limit.SCHEDULED_TOKENS, total, capacity.max_num_scheduled_tokens)
    if not 1 <= batch <= capacity.max_num_running_reqs:
        return Shortfall(Limit.REQUESTS, batch, capacity.max_num_running_reqs)
    if point.total_kv_read_tokens and not layout.prefix_caching:
        return Shortfall(Limit.PREFIX_CACHING, point.total_kv_read_tokens, 0)
    requests = _requests(point, layout.hash_block_size)
    dropped, longest = layout.dropped_tokens, capacity.max_model_len
    have = capacity.usable_blocks(batch)
    groups, ahead = layout.managers, layout.lookahead_tokens
    need = 0
    for new, read, count in requests:
        if read and new <= dropped:
            return Shortfall(Limit.DROPPED_TOKENS, dropped + 1, new, "tokens that a request computes")
        if new + read + 1 > longest:
            return Shortfall(Limit.MODEL_LENGTH, new + read + 1, longest)
        at_once = _at_once(new, read, batch, layout, capacity, first_chunk)
        if at_once != new:
            return Shortfall(Limit.CHUNK, new, at_once, "tokens of one request in one pass")
        need += count * footprint(new + read + ahead, groups, capped=True)
    if need > have:
        return Shortfall(Limit.BLOCKS, need, have)
    return _seeds(requests, dropped, groups, longest, have) if point.total_kv_read_tokens else None


def _requests(point: Point, unit: int) -> list[tuple[int, int, int]]:
    """Return ``(tokens to compute, tokens to read, count)`` of requests that are alike, in their order."""
    if point.rows is None and point.partition is None:
        found = even_pairs(point.total_prefill_tokens, point.total_kv_read_tokens, point.batch_size, unit)
        if found is not None:
            return found
    return list(joined(point.new_tokens(), point.kv_tokens(unit)))


def _seeds(
    requests: list[tuple[int, int, int]],
    dropped: int,
    groups: tuple[KvGroup, ...],
    longest: int,
    have: int,
) -> Shortfall | None:
    need = deepest = 0
    for _, read, count in requests:
        if read:
            deepest = max(deepest, read + dropped)
            need += count * footprint(read + dropped, groups)
    if deepest + 1 > longest:
        return Shortfall(Limit.MODEL_LENGTH, deepest + 1, longest, "the prefix that is seeded")
    return Shortfall(Limit.SEED_BLOCKS, need, have) if need > have else None


def _at_once(
    new: int,
    read: int,
    batch: int,
    layout: EngineLayout,
    capacity: CapacityEnvelope,
    first_chunk: FirstChunk | None,
) -> int:
    """Return how many of a request's ``new`` tokens the engine would schedule in one pass."""
    threshold = layout.long_prefill_threshold if batch > 1 else 0
    if threshold and layout.adaptive_long_prefill:
        threshold = max(threshold, capacity.max_num_scheduled_tokens // batch)
    at_once = min(new, threshold) if threshold else new
    return first_chunk(read + at_once, read) if first_chunk is not None else at_once


def _decode(point: Point, layout: EngineLayout, capacity: CapacityEnvelope) -> Shortfall | None:
    batch = point.batch_size
    if not 1 <= batch <= capacity.max_num_running_reqs:
        return Shortfall(Limit.REQUESTS, batch, capacity.max_num_running_reqs)
    if batch > capacity.max_num_scheduled_tokens:
        return Shortfall(Limit.SCHEDULED_TOKENS, batch, capacity.max_num_scheduled_tokens)
    contexts: Runs = point.contexts()
    longest = max(context for context, _ in contexts)
    if max(longest, 2) + 2 > capacity.max_model_len:
        return Shortfall(Limit.MODEL_LENGTH, max(longest, 2) + 2, capacity.max_model_len)
    need = sum(count * footprint(max(context, 2) + 1, layout.managers) for context, count in contexts)
    have = capacity.usable_blocks_with_watermark
    return Shortfall(Limit.BLOCKS, need, have) if need > have else None
