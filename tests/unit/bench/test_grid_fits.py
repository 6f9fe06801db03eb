"""What fits an engine, and what is said of what does not."""

from __future__ import annotations

import pytest
from engines import capacities, capacity, layout, layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.bench.feasible import Limit, shortfall
from forwardpass.bench.footprint import footprint
from forwardpass.bench.largest_batch import largest_batch
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, KvGroup, KvKind
from forwardpass.bench.points import Partition, Phase, Point
from forwardpass.errors import ConfigError


def prefill(total: int, batch: int, read: int = 0, **more: object) -> Point:
    return Point(Phase.PREFILL, 0, total, read, batch, **more)  # type: ignore[arg-type]


def decode(total: int, batch: int) -> Point:
    return Point(Phase.DECODE, 0, 0, total, batch)


def test_a_request_takes_blocks_of_every_group() -> None:
    """GRID-21: Full attention counts blocks, a window no more than its cap unless it has to stay,
    cross-attention nothing, a recurrent state its speculative blocks besides, and an aligned one two and its
    extras; parked below one block it takes one.
    """
    window = KvGroup(16, admission_cap=4)
    aligned = KvGroup(64, KvKind.RECURRENT_ALIGNED, speculative_blocks=1, checkpoint_blocks=3)

    assert footprint(33, [KvGroup(16)]) == 3
    assert footprint(160, [window], capped=True) == 4
    assert footprint(160, [window]) == 10
    assert footprint(33, [window], capped=True) == 3
    assert footprint(1000, [KvGroup(16, KvKind.CROSS_ATTENTION)]) == 0
    assert footprint(17, [KvGroup(16, KvKind.RECURRENT, speculative_blocks=2)]) == 4
    assert footprint(1, [aligned]) == footprint(1000, [aligned]) == 6
    assert (footprint(63, [aligned], resident=True), footprint(64, [aligned], resident=True)) == (2, 6)
    assert footprint(33, [KvGroup(16), window, aligned]) == 3 + 3 + 6
    assert layout().managers == EngineLayout((), 16, 16).managers


CASES = [
    (prefill(257, 1), {}, {}, Limit.SCHEDULED_TOKENS, 257, 256),
    (prefill(0, 1), {}, {}, Limit.SCHEDULED_TOKENS, 0, 256),
    (prefill(64, 17), {}, {}, Limit.REQUESTS, 17, 16),
    (prefill(3, 4), {}, {}, Limit.SPLIT, 4, 0),
    (prefill(64, 2, 8), {}, {}, Limit.SPLIT, 2, 0),  # half a block a request
    (prefill(64, 2, 32), {"prefix_caching": False}, {}, Limit.PREFIX_CACHING, 32, 0),
    (prefill(16, 1, 16), {"eagle": True}, {}, Limit.DROPPED_TOKENS, 17, 16),
    (prefill(40, 1), {}, {"max_model_len": 40}, Limit.MODEL_LENGTH, 41, 40),
    (prefill(8, 1, 32), {}, {"max_model_len": 40}, Limit.MODEL_LENGTH, 41, 40),
    (prefill(128, 2), {"long_prefill_threshold": 50}, {}, Limit.CHUNK, 64, 50),
    (prefill(128, 2), {}, {"blocks": 7}, Limit.BLOCKS, 8, 7),
    (prefill(2, 2, 64), {}, {"blocks": 5}, Limit.BLOCKS, 6, 5),
    (decode(17, 17), {}, {}, Limit.REQUESTS, 17, 16),
    (decode(300, 3), {}, {"max_num_scheduled_tokens": 2}, Limit.SCHEDULED_TOKENS, 3, 2),
    (decode(2, 3), {}, {}, Limit.SPLIT, 3, 0),
    (decode(2047, 1), {}, {}, Limit.MODEL_LENGTH, 2049, 2048),
    (decode(1, 1), {}, {"max_model_len": 3}, Limit.MODEL_LENGTH, 4, 3),
    (decode(32, 2), {}, {"blocks": 3}, Limit.BLOCKS, 4, 3),
]


@pytest.mark.parametrize(("point", "engine", "limits", "limit", "need", "have"), CASES)
def test_the_first_broken_limit_is_named_with_both_numbers(
    point: Point, engine: dict[str, object], limits: dict[str, object], limit: Limit, need: int, have: int
) -> None:
    """GRID-22, GRID-23, GRID-24, PIT-16: Each limit stops the smallest point beyond it, and says what it
    needs.
    """
    found = shortfall(point, layout(**engine), capacity(**limits))

    assert found is not None
    assert (found.limit, found.need, found.have) == (limit, need, have)
    assert str(found).startswith(f"{limit.value}: needs {need}, has {have}")


AT_THE_LIMIT = [
    (prefill(256, 16), {}, {}),
    (prefill(17, 1, 16), {"eagle": True}, {}),
    (prefill(16, 1, 16), {"eagle": True, "per_group_lookup": True}, {}),
    (prefill(17, 1, 32), {"eagle": True, "partial_hash_hits": True, "hash_block_size": 16}, {}),
    (prefill(16, 1), {"eagle": True}, {}),
    (prefill(39, 1), {}, {"max_model_len": 40}),
    (prefill(128, 1), {"long_prefill_threshold": 50}, {}),  # nobody beside it
    (prefill(128, 2), {"long_prefill_threshold": 50, "adaptive_long_prefill": True}, {}),
    (prefill(128, 2), {}, {"blocks": 8}),
    (prefill(2, 2, 64), {}, {"blocks": 6}),
    (prefill(128, 4, 128, partition=Partition("both", 1, 0.5)), {}, {}),
    (prefill(60, 2, 48, rows=((40, 16), (20, 32))), {}, {}),
    (decode(16, 16), {}, {}),
    (decode(2046, 1), {}, {}),
    (decode(32, 2), {}, {"blocks": 4}),
]


@pytest.mark.parametrize(("point", "engine", "limits"), AT_THE_LIMIT)
def test_what_is_at_the_limit_fits(
    point: Point, engine: dict[str, object], limits: dict[str, object]
) -> None:
    """GRID-22, GRID-23: The point before the limit can be measured."""
    assert shortfall(point, layout(**engine), capacity(**limits)) is None


def test_a_seed_takes_its_blocks_uncapped() -> None:
    """GRID-21, GRID-22, PIT-17: A window that recycles lets a long request run; its prefix, which has to
    stay, does not fit.
    """
    engine = layout(KvGroup(16, admission_cap=3))
    found = shortfall(prefill(16, 1, 160), engine, capacity(blocks=9))

    assert found is not None
    assert (found.limit, found.need, found.have) == (Limit.SEED_BLOCKS, 10, 9)
    assert shortfall(prefill(16, 1, 160), engine, capacity(blocks=10)) is None
    assert shortfall(prefill(176, 1), engine, capacity(blocks=3)) is None


def test_only_a_batch_respects_the_watermark() -> None:
    """GRID-22: One request may take the last blocks; two may not."""
    limits = {"usable_blocks_without_watermark": 8, "usable_blocks_with_watermark": 7}

    assert shortfall(prefill(128, 1), layout(), capacity(**limits)) is None
    assert shortfall(prefill(128, 2), layout(), capacity(**limits)) is not None


def test_an_engines_own_rule_of_chunks_is_asked() -> None:
    """GRID-22, PIT-28: An engine that would schedule a part of the tokens at once makes the point
    impossible.
    """

    def first_chunk(prompt: int, cached: int) -> int:
        return (prompt - cached) // 64 * 64

    found = shortfall(prefill(100, 1, 16), layout(), capacity(), first_chunk=first_chunk)

    assert found is not None
    assert (found.limit, found.need, found.have) == (Limit.CHUNK, 100, 64)
    assert shortfall(prefill(128, 2, 32), layout(), capacity(), first_chunk=first_chunk) is None


def test_rows_are_whole_blocks_and_as_many_as_requests() -> None:
    """GRID-02, GRID-22: Rows that read a part of a block, or are too few, are no batch."""
    for rows in (((40, 8), (20, 40)), ((60, 48),)):
        found = shortfall(prefill(60, 2, 48, rows=rows), layout(), capacity())
        assert found is not None
        assert found.limit is Limit.SPLIT


def test_ranks_agree_on_the_smallest_of_each() -> None:
    """GRID-20, PIT-11: The common capacity has the minimum of each limit; a rank set up otherwise is
    named.
    """
    big = capacity(blocks=900, max_model_len=100, kvwarm_eligible=True, grid_invariants_digest="d")
    small = capacity(blocks=800, max_num_running_reqs=4, kvwarm_eligible=False, grid_invariants_digest="d")
    common = CapacityEnvelope.common([big, small])

    assert common == CapacityEnvelope(100, 256, 4, 800, 800, "d", False)
    with pytest.raises(ConfigError, match="rank 1"):
        CapacityEnvelope.common([big, capacity(grid_invariants_digest="e")])


@settings(max_examples=200, deadline=None)
@given(layouts, capacities(), st.integers(1, 300))
def test_the_largest_batch_is_found_without_trying_each(
    plan: EngineLayout, limits: CapacityEnvelope, total: int
) -> None:
    """GRID-12, GRID-21: It is the one that trying each finds, whatever the groups of blocks are."""
    fitting = [
        batch
        for batch in range(2, min(total, limits.max_num_running_reqs) + 1)
        if shortfall(prefill(total, batch), plan, limits) is None
    ]

    assert largest_batch(total, 1, plan, limits) == (max(fitting) if fitting else None)
    if fitting:
        assert largest_batch(total, fitting[-1], plan, limits) is None


def test_few_blocks_and_many_requests_are_no_long_search() -> None:
    """GRID-12: A million requests for a pool that holds next to nothing are looked at in stretches."""
    plan = layout(KvGroup(16), KvGroup(16, speculative_blocks=2, kind=KvKind.RECURRENT))
    limits = capacity(max_num_running_reqs=2**20, max_num_scheduled_tokens=2**20, blocks=50)
    looks: list[int] = []

    def counted(prompt: int, cached: int) -> int:
        looks.append(prompt)
        return prompt - cached

    assert largest_batch(2**20, 1, plan, limits, first_chunk=counted) is None
    assert len(looks) < 10_000
