"""Whole grids: the reference's own, and the laws that hold for every engine."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from engines import capacities, capacity, layout, layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.bench.digest import canonical_json, grid_digest, point_digest, point_key, record
from forwardpass.bench.feasible import shortfall
from forwardpass.bench.grid import (
    Grid,
    SampleLimits,
    arrange,
    build_grid,
    expecting,
    feasible_max_batch,
    steady_total,
)
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings, KvGroup, KvKind
from forwardpass.bench.manifest import manifest_points, read_points_file
from forwardpass.bench.partition import even_split, values
from forwardpass.bench.points import EAGER_WARMUP, Phase, Point, expect_graph

GOLDEN = Path(__file__).parents[2] / "golden"
BOTH = (Phase.PREFILL, Phase.DECODE)
AT_RUN_TIME = {"prefill_fake_prefix", "kvwarm_fake_fallback", "context_clamped"}
"""Reasons that a point gets only when it is executed."""


def artifact(folder: str) -> dict[str, Any]:
    path = next(
        path for path in (GOLDEN / folder).glob("benchmark_results.json*") if "merged" not in path.name
    )
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    found: dict[str, Any] = json.loads(text)
    return found


def engine(found: dict[str, Any]) -> tuple[EngineLayout, CapacityEnvelope]:
    size = found["limits"]["block_size"]
    return layout(block_size=size), CapacityEnvelope(**found["capacity"]["common"])


def real(grid: Grid) -> list[Point]:
    return [point for point in grid.points if not point.is_replica]


@pytest.mark.parametrize(
    "folder", ["vllm-cpu-bench-defaultgrid", "vllm-cpu-bench-agg", "vllm-cpu-moe-dp2-bench-agg"]
)
def test_our_grid_is_the_references(folder: str) -> None:
    """GRID-12, GRID-13, GRID-31, GRID-32, GRID-33: Built from the config and limits in its artifact, our grid
    has the reference's points in its order under its ids, and with the replicas its digest.
    """
    found = artifact(folder)
    config = found["config"]
    samples = SampleLimits(
        config["prefill_max_new_token_samples"],
        config["prefill_max_kv_read_token_samples"],
        config["prefix_max_batch_size_samples"],
        config["decode_max_kv_read_token_samples"],
        config["decode_max_batch_size_samples"],
    )
    grid = build_grid(BOTH, *engine(found), samples=samples, max_batch_size=config["max_batch_size"])
    theirs = [result["point"] for result in found["results"]]
    for point in theirs:
        point["sample_reasons"] = [name for name in point["sample_reasons"] if name not in AT_RUN_TIME]

    assert json.loads(canonical_json([record(point) for point in real(grid)])) == theirs
    assert grid.digest == found["grid_digest"]
    assert grid.expected_points == found["coverage"]["expected_points"]
    assert grid.missing_phases == ()


def test_our_grid_of_a_points_file_is_the_references() -> None:
    """GRID-04, GRID-33: The points of a file, uneven ones and rows too, give the reference's digest."""
    found = artifact("vllm-cpu-bench-points")
    file = read_points_file(GOLDEN / "vllm-cpu-bench-points" / "points.json")
    plan, limits = engine(found)
    ends = {
        Phase.PREFILL: limits.max_num_scheduled_tokens,
        Phase.DECODE: feasible_max_batch(plan, limits),
    }
    points = [point for _, point in manifest_points(file, BOTH)]
    grid = arrange([expecting(point, plan, limits, ends[point.point_type]) for point in points])

    assert grid.digest == found["grid_digest"]
    assert all(shortfall(point, plan, limits) is None for point in points)


def test_the_examples_of_decode() -> None:
    """GRID-13, GRID-23: The worked ladder: nine requests, 63 blocks of 16, a model of 256 tokens; and below
    two tokens a request the steady step measures two.
    """
    limits = CapacityEnvelope(256, 2048, 9, 63, 63)
    grid = build_grid([Phase.DECODE], layout(), limits)

    assert [point.total_kv_read_tokens for point in real(grid) if point.batch_size == 9] == [
        *(18, 32, 64, 128, 256, 512, 999)
    ]
    assert [steady_total(total, 4) for total in (4, 7, 8, 9, 100)] == [8, 8, 8, 9, 100]


@given(st.integers(1, 5000), st.integers(1, 200))
def test_a_steady_step_measures_two_tokens_a_request_at_least(total: int, batch: int) -> None:
    """GRID-13: The steady coordinate is that of every request after its admission, and what is measured
    itself.
    """
    if total < batch:
        total = batch
    contexts = list(values(even_split(total, batch)))

    assert steady_total(total, batch) == sum(max(1, context - 1) for context in contexts) + batch
    assert steady_total(total, batch) == max(total, 2 * batch)
    assert steady_total(steady_total(total, batch), batch) == steady_total(total, batch)


def test_what_a_pass_is_expected_to_run_as() -> None:
    """GRID-30: The smallest graph that holds the pass, its padding, and the reasons in their order."""

    def reasons(driver: int, captures: list[int], limit: int) -> tuple[Any, ...]:
        found = expect_graph(driver, captures, GraphMode.FULL, limit)
        return found.mode, found.capture_size, found.padding_tokens, found.reasons

    assert reasons(8, [1, 8], 16) == (GraphMode.FULL, 8, 0, ("capture",))
    assert reasons(2, [1, 8], 16) == (GraphMode.FULL, 8, 6, ("post_capture",))
    assert reasons(2, [1, 2], 2) == (GraphMode.FULL, 2, 0, ("capture", "post_capture", "engine_limit"))
    assert reasons(9, [1, 8], 16) == (
        GraphMode.NONE,
        None,
        None,
        ("post_capture", "eager_tail", "geometric_tail"),
    )
    assert reasons(16, [1, 8], 16) == (GraphMode.NONE, None, None, ("eager_tail", "engine_limit"))
    assert reasons(4, [], 16) == (GraphMode.NONE, None, None, ("cudagraph_disabled", "geometric_axis"))
    assert reasons(16, [], 16) == (GraphMode.NONE, None, None, ("cudagraph_disabled", "engine_limit"))


def test_keys_and_their_examples() -> None:
    """GRID-35: The worked key, from a whole record or from one that lacks what is default."""
    expected = "db647d72e15834106bb833e845ebbdada27f7dcb6454edef41ee1990b2c4e89b"
    point = Point(Phase.DECODE, 17, 0, 512, 4)

    assert point_key(record(point)) == expected
    assert point_key({"point_type": "decode", "batch_size": 4, "total_kv_read_tokens": 512}) == expected
    assert point_digest(point) != point_digest(Point(Phase.DECODE, 18, 0, 512, 4))
    with pytest.raises(ValueError, match="not JSON"):
        canonical_json({"a": float("nan")})


def test_a_phase_without_a_point_is_missing() -> None:
    """GRID-34: An engine that can decode nothing has a grid without decode points, and says so; a phase that
    was not asked for is not missing.
    """
    grid = build_grid(BOTH, layout(), capacity(max_model_len=3))

    assert grid.missing_phases == (Phase.DECODE,)
    assert {point.point_type for point in grid.points} == {Phase.PREFILL}
    assert build_grid([Phase.PREFILL], layout(), capacity(max_model_len=3)).missing_phases == ()


def test_an_aligned_state_adds_its_blocks_to_the_axis() -> None:
    """GRID-12: With an aligned recurrent state every whole number of its blocks from two on is a size to
    measure.
    """
    grid = build_grid([Phase.PREFILL], layout(KvGroup(48, KvKind.RECURRENT_ALIGNED)), capacity())

    assert {96, 144, 192, 240} <= {point.total_prefill_tokens for point in grid.points}


def test_a_cap_on_batches_ends_their_axis() -> None:
    """GRID-13: Nothing above the cap is generated, and the cap itself is measured."""
    grid = build_grid([Phase.DECODE], layout(), capacity(), max_batch_size=11)

    assert max(point.batch_size for point in grid.points) == 11
    assert feasible_max_batch(layout(), capacity(blocks=5), None) == 5
    assert feasible_max_batch(layout(), capacity(max_num_scheduled_tokens=3), None) == 3


@settings(max_examples=150, deadline=None)
@given(layouts, capacities(), st.integers(2, 9), st.none() | st.integers(1, 40))
def test_the_laws_of_every_grid(
    plan: EngineLayout, limits: CapacityEnvelope, samples: int, max_batch: int | None
) -> None:
    """GRID-11, GRID-22, GRID-23, GRID-31, GRID-32, GRID-33, PIT-13: For every engine each point fits, ids are
    1 … n without a hole and replicas come after, each shape without a graph has one replica before its phase,
    no axis is longer than asked, phases are contiguous, and the same engine gives the same digest.
    """
    chosen = SampleLimits(samples, samples, samples, samples, samples)
    grid = build_grid(BOTH, plan, limits, samples=chosen, max_batch_size=max_batch)
    points = real(grid)
    replicas = [point for point in grid.points if point.is_replica]

    assert all(shortfall(point, plan, limits) is None for point in grid.points)
    assert [point.benchmark_id for point in points] == list(range(1, len(points) + 1))
    assert sorted(point.benchmark_id for point in replicas) == list(
        range(len(points) + 1, len(grid.points) + 1)
    )
    order = [(point.point_type, not point.is_replica) for point in grid.points]
    assert order == sorted(order, key=lambda each: (each[0] is Phase.DECODE, each[1]))
    eager = {(p.point_type, p.shape_driver) for p in points if p.expected_capture_size is None}
    assert sorted((p.point_type, p.shape_driver) for p in replicas) == sorted(eager)
    assert all(point.sample_reasons == (EAGER_WARMUP,) for point in replicas)
    for phase in BOTH:
        shapes = {point.shape_driver for point in points if point.point_type is phase}
        assert len(shapes) <= samples
        assert (phase in grid.missing_phases) == (not shapes)
    assert len({point_key(record(point)) for point in points}) == len(points)
    again = build_grid(BOTH, plan, limits, samples=chosen, max_batch_size=max_batch)
    assert again.digest == grid.digest == grid_digest(grid.points)
    assert grid.expected_points == len(points)
    text = canonical_json([record(point) for point in grid.points])
    assert grid.digest == hashlib.sha256(text.encode()).hexdigest()


@settings(max_examples=40, deadline=None)
@given(layouts, capacities())
def test_a_smaller_grid_has_points_of_the_same_keys(plan: EngineLayout, limits: CapacityEnvelope) -> None:
    """GRID-35: A phase alone has the keys that it has in the whole grid, whatever its ids are there."""
    whole = {point_key(record(point)) for point in build_grid(BOTH, plan, limits).points}
    decode = {point_key(record(point)) for point in build_grid([Phase.DECODE], plan, limits).points}

    assert decode <= whole


def test_captured_sizes_stand_out() -> None:
    """GRID-10, GRID-30: Around each captured size there are two points: in its graph, in the next."""
    graph = GraphSettings("FULL", GraphMode.PIECEWISE, GraphMode.FULL, (1, 2, 4, 8))
    grid = build_grid(BOTH, layout(graph=graph), capacity())
    decode = {point.batch_size: point for point in real(grid) if point.point_type is Phase.DECODE}

    assert list(decode) == [1, 2, 3, 4, 5, 8, 9, 16]
    assert (decode[5].expected_capture_size, decode[5].padding_tokens) == (8, 3)
    assert decode[9].expected_cudagraph_mode is GraphMode.NONE
    assert {point.shape_driver for point in grid.points if point.is_replica} >= {9, 16}
