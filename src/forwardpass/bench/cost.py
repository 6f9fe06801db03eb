"""Knows what running a grid takes: passes of the engine, tokens, and seconds if a pass's are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from forwardpass.bench.grid import steady_total
from forwardpass.bench.partition import joined
from forwardpass.bench.points import Phase, Point

__all__ = ["GridCost", "PassLoad", "cost_of", "pass_loads"]


class PassLoad(Struct, frozen=True):
    """The work of one forward pass."""

    prefill_tokens: int
    """Tokens to compute."""
    pairs: int
    """Pairs of a computed token and one that it attends to, itself included."""
    decode_requests: int
    kv_tokens: int
    """Tokens whose KV is read and not computed."""


class GridCost(Struct, frozen=True):
    """All of a grid, replicas included, with prefixes and contexts that are not computed.

    What computes them for real (seeds of prefixes, chains of real text) and the global warm-up come on top.
    """

    passes: int
    computed_tokens: int
    read_tokens: int
    seconds: float | None
    """``None`` where nothing is known of a pass's duration."""


def pass_loads(point: Point) -> list[PassLoad]:
    """Return the passes of ``point``: one of prefill; for decode the admission and the steady step."""
    if point.point_type is Phase.DECODE:
        batch = point.batch_size
        measured = steady_total(point.total_kv_read_tokens, batch)
        return [PassLoad(0, 0, batch, tokens) for tokens in (measured - batch, measured)]
    pairs = sum(
        count * (new * read + new * (new + 1) // 2)
        for new, read, count in joined(point.new_tokens(), point.kv_tokens(1))
    )
    return [PassLoad(point.total_prefill_tokens, pairs, 0, point.total_kv_read_tokens)]


def cost_of(points: Iterable[Point], seconds: Callable[[Point, PassLoad], float] | None = None) -> GridCost:
    """Return what running ``points`` takes; ``seconds`` says how long one pass of a point lasts."""
    passes = computed = read = 0
    total = 0.0
    for point in points:
        for load in pass_loads(point):
            passes += 1
            computed += load.prefill_tokens + load.decode_requests
            read += load.kv_tokens
            total += seconds(point, load) if seconds is not None else 0.0
    return GridCost(passes, computed, read, None if seconds is None else total)
