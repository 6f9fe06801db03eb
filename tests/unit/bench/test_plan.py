"""Plans: settings and limits in, the grid that is run out; what it costs, and why it ends where it does."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
from engines import capacities, capacity, layout, layouts
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.bench.beyond import beyond
from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.cost import PassLoad, cost_of, pass_loads
from forwardpass.bench.digest import canonical_json, point_key, record
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.like_artifact import likeness
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings, KvGroup, KvKind
from forwardpass.bench.limits_file import EngineLimits, limits_from, read_document
from forwardpass.bench.manifest import PointsFile, file_of, points_from
from forwardpass.bench.plan import invariants, plan_grid, rank_invariants_digest
from forwardpass.bench.points import Phase, Point
from forwardpass.errors import InfeasiblePoint, ManifestError

GOLDEN = Path(__file__).parents[2] / "golden"
BOTH = (Phase.PREFILL, Phase.DECODE)
SMALL = SampleLimits(4, 4, 2, 4, 4)


def artifact(folder: str, name: str = "benchmark_results.json") -> dict[str, Any]:
    path = GOLDEN / folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(f"{name}.gz").read_bytes())
    found: dict[str, Any] = json.loads(data)
    return found


def points(prefill: Any = (), decode: Any = ()) -> PointsFile:
    return points_from({"schema_version": 3, "prefill": list(prefill), "decode": list(decode)})


def explicit(*, prefill: Any = (), decode: Any = (), **more: Any) -> BenchConfig:
    return BenchConfig(BenchMode.AGG, points=points(prefill, decode), **more)


def entry(total: int, batch: int = 2, read: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "batch_size": batch,
        "total_prefill_tokens": total,
        "total_kv_read_tokens": read,
        **more,
    }


UNEVEN = entry(64, partition={"axis": "new", "high_count": 1, "fraction": 0.5})


@pytest.mark.parametrize(
    "folder",
    [
        "vllm-cpu-bench-agg",
        "vllm-cpu-bench-defaultgrid",
        "vllm-cpu-bench-points",
        "vllm-cpu-bench-timeout",
        "vllm-cpu-moe-dp2-bench-agg",
    ],
)
def test_an_artifact_says_how_to_plan_it_again(folder: str) -> None:
    """GRID-04, GRID-33, BCONF-24: From the reference's own artifacts, of one rank or merged, come plans of
    their digests; also from a run that was cut short before its first point.
    """
    found = likeness(artifact(folder), "--like", folder)
    plan = plan_grid(found.config, found.limits.layout, found.limits.capacity)

    assert plan.grid.digest == found.grid_digest is not None
    assert plan.explicit == (folder == "vllm-cpu-bench-points")
    if folder != "vllm-cpu-bench-timeout":
        assert likeness(artifact(folder, "benchmark_results_merged.json"), "--like", folder).config == (
            found.config
        )


def test_an_artifact_without_a_common_capacity_has_that_of_its_rank() -> None:
    """GRID-20: Before ranks agree there is only what one said of itself; one block holds nothing."""
    document = {**artifact("vllm-cpu-bench-agg"), "capacity": {"common": None}}
    found = likeness(document, "--like", "x")

    assert found.limits.capacity.usable_blocks_with_watermark == 16383


@pytest.mark.parametrize(
    "change",
    [
        {"config": {"mode": "all"}},
        {"config": None},
        {"limits": {"block_size": 16}},
        {"limits": {**artifact("vllm-cpu-bench-agg")["limits"], "block_size": 0}},
        {"cudagraph": {"capture_sizes": [2, 1]}},
        {"cudagraph": {"prefill_mode": "SOME"}},
        {"results": [1]},
        {"results": [{"point": {**record(Point(Phase.DECODE, 1, 0, 1, 0)), "sample_reasons": ["explicit"]}}]},
    ],
)
def test_an_artifact_that_says_too_little_is_refused(change: dict[str, Any]) -> None:
    """BCONF-24: The file and the field are named."""
    with pytest.raises(ManifestError) as caught:
        likeness({**artifact("vllm-cpu-bench-agg"), **change}, "--like", "a.json")

    assert caught.value.path == "a.json"


def test_a_point_that_does_not_fit_is_named_as_it_stands_in_the_file() -> None:
    """GRID-04, GRID-05, GRID-24: Its place counts the points that were left out, too."""
    config = explicit(prefill=[UNEVEN, entry(64), entry(300)])
    with pytest.raises(InfeasiblePoint) as caught:
        plan_grid(config, layout(), capacity())

    assert caught.value.entry == "prefill[2]"
    assert caught.value.shortfall == "max_num_scheduled_tokens: needs 300, has 256"
    with pytest.raises(InfeasiblePoint) as caught:
        plan_grid(explicit(decode=[{"batch_size": 1, "total_kv_read_tokens": 9999}]), layout(), capacity())
    assert caught.value.entry == "decode[0]"


def test_points_that_read_need_a_cache_of_prefixes() -> None:
    """GRID-04: Tokens to read are an error where nothing keeps them, not a point that is left out."""
    with pytest.raises(InfeasiblePoint) as caught:
        plan_grid(explicit(prefill=[entry(64, 2, 32)]), layout(prefix_caching=False), capacity())

    assert caught.value.shortfall.startswith("enable_prefix_caching")


def test_uneven_points_are_left_out_and_counted() -> None:
    """GRID-05: Unless they were asked for; rows that are alike are even."""
    prefill = [UNEVEN, entry(64, rows=[[32, 0], [32, 0]]), entry(64, rows=[[40, 0], [24, 0]])]
    left = plan_grid(explicit(prefill=prefill), layout(), capacity())
    kept = plan_grid(explicit(prefill=prefill, collect_imbalanced=True), layout(), capacity())

    assert (left.dropped_imbalanced, left.grid.expected_points) == (2, 1)
    assert (kept.dropped_imbalanced, kept.grid.expected_points) == (0, 3)


def test_an_empty_list_of_a_file_misses_nothing() -> None:
    """GRID-34: A file may leave a phase out; a generated grid may not."""
    plan = plan_grid(explicit(decode=[{"batch_size": 1, "total_kv_read_tokens": 8}]), layout(), capacity())

    assert (plan.grid.missing_phases, plan.grid.expected_points) == ((), 1)
    tiny = plan_grid(BenchConfig(BenchMode.AGG), layout(), capacity(max_model_len=2))
    assert tiny.grid.missing_phases == (Phase.DECODE,)


def test_only_the_phases_of_the_mode_are_planned() -> None:
    """BCONF-02: A points file may hold both; the mode chooses."""
    file = points([entry(64)], [{"batch_size": 1, "total_kv_read_tokens": 8}])
    for mode in (BenchMode.PREFILL, BenchMode.DECODE):
        plan = plan_grid(BenchConfig(mode, points=file), layout(), capacity())
        assert {point.point_type for point in plan.grid.points} == set(mode.phases)


# --- invariants ------------------------------------------------------------------------------------------

BASE = (BenchConfig(BenchMode.AGG), layout(KvGroup(16)), {"content_seed": "0"})
GRAPH = GraphSettings("FULL", GraphMode.FULL, GraphMode.FULL, (1, 2, 64))


def digest(
    config: BenchConfig | None = None,
    plan: EngineLayout | None = None,
    protocol: dict[str, Any] | None = None,
    real_seed: bool = False,
) -> str:
    return rank_invariants_digest(
        config or BASE[0], plan or BASE[1], protocol or BASE[2], prefill_real_seed=real_seed
    )


def test_every_fact_that_matters_changes_the_digest() -> None:
    """BCONF-40: Ranks that differ in any setting, in content, in layout or in any group do not go on."""
    change = msgspec.structs.replace
    config, plan, _ = BASE
    fields: dict[str, Any] = {
        "block_size": 32, "hash_block_size": 8, "cache_block_size": 8, "prefix_caching": False,
        "lookahead_tokens": 1, "long_prefill_threshold": 9, "adaptive_long_prefill": True, "eagle": True,
        "per_group_lookup": True, "partial_hash_hits": True, "graph": GRAPH, "groups": (),
    }  # fmt: skip
    group: dict[str, Any] = {
        "block_size": 32, "kind": KvKind.RECURRENT_ALIGNED, "admission_cap": 3, "speculative_blocks": 1,
        "checkpoint_blocks": 1, "manager": "a.B",
    }  # fmt: skip
    digests = [
        digest(),
        digest(change(config, warmup_iterations=1)),
        digest(change(config, samples=SMALL)),
        digest(explicit(prefill=[entry(64)])),
        digest(protocol={"content_seed": "1"}),
        digest(real_seed=True),
        *(digest(plan=change(plan, **{name: value})) for name, value in fields.items()),
        *(digest(plan=change(plan, groups=(KvGroup(**{"block_size": 16, name: value}),)))
          for name, value in group.items()),
        digest(plan=change(plan, graph=change(GRAPH, prefill_mode=GraphMode.PIECEWISE))),
        digest(plan=change(plan, graph=change(GRAPH, decode_mode=GraphMode.NONE))),
        digest(plan=change(plan, graph=change(GRAPH, capture_sizes=(1, 2)))),
    ]  # fmt: skip

    assert set(group) == set(KvGroup.__struct_fields__)
    assert set(fields) == set(EngineLayout.__struct_fields__)
    assert len(set(digests)) == len(digests)


def test_what_differs_between_launches_or_ranks_does_not() -> None:
    """BCONF-21, BCONF-40, PIT-12: Not the output path, nor a rank's own limit of requests, which cuts
    captures.
    """
    assert digest(msgspec.structs.replace(BASE[0], output_path="/x/y.json")) == digest()
    facts = invariants(BASE[0], layout(graph=GRAPH), {}, prefill_real_seed=False)
    assert facts["decode_captures"] == [1, 2, 64]
    assert "output_path" not in facts["benchmark"]
    assert json.loads(canonical_json(facts)) == facts


# --- points files of grids -------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(layouts, capacities())
def test_the_file_of_a_grid_gives_its_points(plan: EngineLayout, limits: CapacityEnvelope) -> None:
    """GRID-04, GRID-35: Written as a points file, a generated grid comes again: the same keys in the same
    order.
    """
    first = plan_grid(BenchConfig(BenchMode.AGG, samples=SMALL), plan, limits).grid
    document = json.loads(msgspec.json.encode(file_of(first.points)))
    again = plan_grid(BenchConfig(BenchMode.AGG, points=points_from(document)), plan, limits).grid

    assert document["schema_version"] == 1
    keys = [point_key(record(point)) for point in first.points if not point.is_replica]
    assert [point_key(record(point)) for point in again.points if not point.is_replica] == keys


def test_uneven_points_need_newer_schemas() -> None:
    """GRID-03: A file is written in the oldest schema that can say it."""
    rows = entry(64, rows=[[40, 0], [24, 0]])
    for prefill, schema in (([entry(64)], 1), ([entry(64), UNEVEN], 2), ([UNEVEN, rows], 3)):
        plan = plan_grid(explicit(prefill=prefill, collect_imbalanced=True), layout(), capacity())
        file = file_of(plan.grid.points)
        assert file.schema_version == schema
        assert points_from(json.loads(msgspec.json.encode(file))) == file


# --- cost ------------------------------------------------------------------------------------------------


def test_the_passes_of_a_point() -> None:
    """GRID-01, GRID-13: A prefill is one pass; a decode is admitted one token short of its contexts, and then
    measured.
    """
    prefill = Point(Phase.PREFILL, 1, 5, 64, 2)
    decode = Point(Phase.DECODE, 1, 0, 100, 4)

    assert pass_loads(prefill) == [PassLoad(5, 3 * 32 + 6 + 2 * 32 + 3, 0, 64)]
    assert pass_loads(decode) == [PassLoad(0, 0, 4, 96), PassLoad(0, 0, 4, 100)]
    found = cost_of([prefill, decode], lambda point, load: 0.5)
    assert (found.passes, found.computed_tokens, found.read_tokens, found.seconds) == (3, 13, 260, 1.5)
    assert cost_of([prefill]).seconds is None


# --- why a grid ends -------------------------------------------------------------------------------------


def test_the_next_larger_points_and_what_they_break() -> None:
    """GRID-24: At the end of each axis the first limit is named with both numbers."""
    plan, limits = layout(), capacity(blocks=20)
    grid = plan_grid(BenchConfig(BenchMode.AGG, samples=SampleLimits(4, 4, 9, 4, 4)), plan, limits).grid
    found = {(one.axis, one.point.total_prefill_tokens, one.point.total_kv_read_tokens, one.point.batch_size):
             one.why for one in beyond(BOTH, grid.points, plan, limits)}  # fmt: skip

    assert found[("new tokens", 257, 0, 1)] == "max_num_scheduled_tokens: needs 257, has 256"
    assert found[("batch size", 0, 34, 17)] == "max_num_running_reqs: needs 17, has 16"
    assert found[("context", 0, 320, 1)] == "usable_blocks: needs 21, has 20"


def test_what_fits_is_said_to_be_left_out_by_an_option() -> None:
    """GRID-11, GRID-24: A batch beyond the cap, or beyond the number of samples, would have fitted."""
    plan, limits = layout(), capacity()
    config = BenchConfig(BenchMode.AGG, samples=SMALL, max_batch_size=5)
    grid = plan_grid(config, plan, limits).grid
    found = beyond(BOTH, grid.points, plan, limits, max_batch_size=5)

    (decode,) = [one for one in found if one.point.point_type is Phase.DECODE and one.axis == "batch size"]
    assert decode.why == "it fits; --benchmark-max-batch-size is 5"
    assert any(one.why.startswith("it fits; left out by the limit of samples") for one in found)


@settings(max_examples=60, deadline=None)
@given(layouts, capacities())
def test_prefixes_and_contexts_always_end_at_a_limit(plan: EngineLayout, limits: CapacityEnvelope) -> None:
    """GRID-12, GRID-13, GRID-24: One more block of prefix, or one more token of context, never fits; nor does
    one more token to compute.
    """
    grid = plan_grid(BenchConfig(BenchMode.AGG, samples=SMALL), plan, limits).grid
    found = beyond(BOTH, grid.points, plan, limits)

    assert [one.axis for one in found[:1]] == ["new tokens"]
    assert not [one for one in found if one.axis != "batch size" and one.why.startswith("it fits")]
    assert not {point_key(record(one.point)) for one in found} & {
        point_key(record(point)) for point in grid.points
    }


def test_a_phase_without_a_point_says_why() -> None:
    """GRID-24, GRID-34: Its smallest point is the candidate."""
    limits = capacity(max_model_len=2, blocks=0)
    found = beyond(BOTH, (), layout(), limits)

    assert [(one.point.point_type, one.why) for one in found] == [
        (Phase.PREFILL, "usable_blocks: needs 1, has 0"),
        (Phase.DECODE, "max_model_len: needs 4, has 2"),
    ]


# --- files of limits -------------------------------------------------------------------------------------


@given(layouts, capacities())
def test_limits_survive_their_file(plan: EngineLayout, limits: CapacityEnvelope) -> None:
    """GRID-20: Written as JSON and read again, limits are the same."""
    document = json.loads(msgspec.json.encode(EngineLimits(plan, limits)))

    assert limits_from(document, "--limits", "x") == EngineLimits(plan, limits)


GOOD = json.loads(msgspec.json.encode(EngineLimits(layout(graph=GRAPH), capacity())))


@pytest.mark.parametrize(
    ("where", "value", "named"),
    [
        (("layout", "block_size"), 0, "$.layout.block_size: found 0"),
        (("layout", "hash_block"), 16, "$.layout.hash_block: found a field that there is not"),
        (("layout", "groups"), [{"block_size": 0}], "$.layout.groups[0].block_size: found 0"),
        (("layout", "groups"), [{"block_size": 1, "x": 0}], "$.layout.groups[0].x: found a field"),
        (("layout", "groups"), [{"block_size": 1, "kind": "x"}], "Invalid enum value 'x'"),
        (("layout", "groups"), [{"block_size": 1, "admission_cap": 0}], "admission_cap: found 0"),
        (("layout", "groups"), None, "Expected `array`, got `null`"),
        (("layout", "graph"), {"capture_sizes": [0, 1]}, "capture_sizes: found [0, 1]"),
        (("layout", "graph"), {"capture_size": [1]}, "$.layout.graph.capture_size: found a field"),
        (("layout", "lookahead_tokens"), -1, "found -1, expected 0 …"),
        (("capacity", "max_model_len"), 0, "$.capacity.max_model_len: found 0, expected 1 … 1099511627776"),
        (("capacity", "max_model_len"), "2048", "Expected `int`, got `str` - at `$.capacity.max_model_len`"),
        (("capacity", "usable_blocks_with_watermark"), -1, "found -1, expected 0 …"),
        (("capacity", "max_num_running_reqs"), 10**9, "found 1000000000, expected 1 … 1048576"),
        (("capacity", "max_num_scheduled_tokens"), 2**62, "expected 1 … 16777216"),
        (("layout", "graph"), {"capture_sizes": [1, 2**30]}, "capture_sizes: found [1, 1073741824]"),
        (("capacity", "blocks"), 1, "$.capacity.blocks: found a field"),
        (("capacity",), {}, "missing required field"),
        (("more",), {}, "unknown field `more`"),
    ],
)
def test_limits_that_cannot_be_are_refused(where: tuple[str, ...], value: Any, named: str) -> None:
    """GRID-20: The field is named by its path, with what was found and what is accepted."""
    document = json.loads(json.dumps(GOOD))
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(ManifestError) as caught:
        limits_from(document, "--limits", "x.json")

    assert named in caught.value.problems[0]
    assert str(caught.value).startswith("--limits x.json: ")


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a":' + b"[" * 100_000])
def test_a_file_that_is_no_object_is_refused(tmp_path: Path, data: bytes) -> None:
    """GRID-20: Neither is a file that is not there."""
    path = tmp_path / "limits.json"
    path.write_bytes(data)
    for one in (path, tmp_path / "none.json", tmp_path):
        with pytest.raises(ManifestError):
            read_document(one, "--limits")


def test_planning_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """GRID-05: Planning is pure; whoever runs the plan says what was left out."""
    with caplog.at_level(logging.DEBUG):
        plan_grid(explicit(prefill=[UNEVEN]), layout(), capacity())

    assert caplog.messages == []


@given(st.integers(0, 3))
def test_a_drafters_extra_is_part_of_the_plan(lookahead: int) -> None:
    """GRID-22: What an engine allocates ahead counts in explicit points as in generated ones."""
    plan = layout(lookahead_tokens=lookahead)
    config = explicit(prefill=[entry(30, 2)])
    if lookahead <= 1:
        assert plan_grid(config, plan, capacity(blocks=2)).grid.expected_points == 1
        return
    with pytest.raises(InfeasiblePoint) as caught:
        plan_grid(config, plan, capacity(blocks=2))

    assert caught.value.shortfall == "usable_blocks: needs 4, has 2"
