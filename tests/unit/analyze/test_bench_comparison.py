"""Two runs side by side: which fields refuse, which points are the same, and what may be concluded."""

from __future__ import annotations

from typing import Any

import pytest
from bench_files import Document, another, fpm, made, read, set_samples, set_wall

from forwardpass.analyze.benchmark.comparison import Comparison, compare, unlike
from forwardpass.analyze.benchmark.fields import MISSING, Effect
from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.analyze.benchmark.timing import Basis, RankComparison, Verdict, Why
from forwardpass.bench.digest import point_key
from forwardpass.testing.artifacts import made_run


def put(document: Document, path: str, value: Any) -> None:
    """Set a field by its path, making the objects on the way."""
    *blocks, name = path.split(".")
    for block in blocks:
        if not isinstance(document.get(block), dict):
            document[block] = {}
        document = document[block]
    document[name] = value


def changed(path: str, value: Any) -> BenchRun:
    """Return another launch with one field changed."""
    return another(lambda document: put(document, path, value))


def effects(found: Comparison) -> dict[str, Effect]:
    """Return path -> effect of every field that differs."""
    return {one.path: one.effect for one in found.fields}


def rank_of(found: Comparison, point: int = 0) -> RankComparison:
    """Return what is said of the only rank of a point."""
    assert found.timing is not None
    (rank,) = found.timing.points[point].ranks
    return rank


# --- fields -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("engine.model.model", "a", "b"),
        ("engine.model.dtype", "bfloat16", "float16"),
        ("engine.quantization.method", None, "fp8"),
        ("engine.quantization.checkpoint_config", None, {"bits": 4}),
        ("engine.speculative", None, {"method": "eagle"}),
        ("engine.device", "H200", "H100"),
        ("engine.parallel.tensor_parallel_size", 1, 2),
        ("engine.parallel.pipeline_parallel_size", 1, 2),
        ("engine.parallel.enable_expert_parallel", False, True),
        ("measurement_policy.decode", "steady_state_second_step", "first_step"),
        ("synthetic_prompts.mode", "zeros", "salted_random"),
        ("kvwarm.dataset.sha256", "a", "b"),
        ("measurement_protocol.content_seed", "0", "1"),
        ("measurement_protocol.synthetic_content", "random", "zeros"),
        ("measurement_protocol.synthetic_pool_tag", "", "x"),
    ],
)
def test_another_quantity_is_refused(path: str, before: Any, after: Any) -> None:
    """DIFF-02: Times are not compared across what makes them another quantity, unless that is forced."""
    a = made(lambda document: put(document, path, before))
    b = changed(path, after)
    found, forced = compare([a], [b]), compare([a], [b], force=True)

    assert effects(found)[path] is Effect.REFUSED
    assert found.timing is None
    assert found.refused
    assert found.grid.common == 3
    assert forced.forced
    assert forced.timing is not None


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("engine.versions.vllm", "0.31.0", "0.32.0"),
        ("engine.attention.backend_requested", "FLASH_ATTN", "TRITON"),
        ("engine.kv_cache.cache_dtype", "auto", "fp8"),
        ("engine.parallel.all2all_backend", "a", "b"),
        ("cudagraph.capture_sizes", [1, 2], [1, 2, 4]),
        ("config.mode", "agg", "decode"),
        ("limits.max_model_len", 2048, 4096),
        ("measurement_protocol.preparation.warmup_iterations", 2, 5),
        ("recurrent_state.initialization", "unchanged", "random"),
    ],
)
def test_what_one_compares_for_is_a_caveat(path: str, before: Any, after: Any) -> None:
    """DIFF-03: Other fields are named with both values, and times are compared."""
    found = compare([made(lambda document: put(document, path, before))], [changed(path, after)])

    assert effects(found) == {path: Effect.CAVEAT}
    assert found.timing is not None
    assert found.has_findings


@pytest.mark.parametrize(
    "path", ["engine.model.model", "engine.device", "engine.parallel.tensor_parallel_size"]
)
@pytest.mark.parametrize("missing", [True, False])
def test_what_one_file_does_not_say_is_no_difference(path: str, missing: bool) -> None:
    """DIFF-04: A field that is missing or null on one side is a caveat, known to nobody, and no finding."""
    a = made(lambda document: put(document, path, "x"))
    b = another() if missing and path == "engine.device" else changed(path, None)
    found = compare([a], [b])
    (field,) = found.fields

    assert (field.path, field.effect, field.known) == (path, Effect.CAVEAT, False)
    assert field.b in (MISSING, "null")
    assert found.timing is not None
    assert not found.has_findings


def test_the_tokenizer_is_never_recorded() -> None:
    """DIFF-04: What files do not show to be the same is said, also where nothing differs."""
    found = compare([made()], [another()])
    old = compare([made(protocol=False, contract=False, engine=False)], [another()])

    assert any("tokenizer" in caveat for caveat in found.caveats)
    assert any("device" in caveat for caveat in found.caveats)
    assert any("no measurement_protocol" in caveat and "A does not say" in caveat for caveat in old.caveats)
    assert any("no engine" in caveat for caveat in old.caveats)
    assert old.timing is not None


@pytest.mark.parametrize(
    "path", ["config.output_path", "synchronization.port", "engine.resolution", "run_id", "timing.started_at"]
)
def test_what_every_run_has_of_its_own_is_not_compared(path: str) -> None:
    """DIFF-05: Ids, paths, ports and times of day are no differences."""
    found = compare([made()], [changed(path, "something else")])

    assert found.fields == ()
    assert not found.has_findings


@pytest.mark.parametrize(
    "path", ["limits.num_gpu_blocks", "capacity.common.usable_blocks_with_watermark", "config.timeout"]
)
def test_what_launches_differ_in_is_noted(path: str) -> None:
    """DIFF-05, DIFF-13: Some blocks more or less are named, no finding, and no bar for a repetition."""
    a, b = made(lambda document: put(document, path, 1000)), changed(path, 1001)
    found = compare([a], [b])

    assert effects(found) == {path: Effect.NOTE}
    assert not found.has_findings
    assert unlike(a, b) is None


def test_warmups_are_part_of_the_protocol() -> None:
    """DIFF-03: Other attempts before the first point are a difference of the rank that made them."""
    found = compare(
        [made()],
        [another(lambda document: document["warmup_evidence"]["records"][1].update(status="failed"))],
    )

    assert effects(found) == {'warmups["rank 0"]': Effect.CAVEAT}


def test_a_run_of_two_ranks_is_another_one() -> None:
    """DIFF-02: The number of data-parallel ranks refuses, also where there is no engine block."""
    one = read(made_run(ranks=1, engine=False)[0])
    two = read(made_run(ranks=2, engine=False)[0])

    assert effects(compare([one], [two]))["dp.size"] is Effect.REFUSED


# --- grids ------------------------------------------------------------------------------------------


def test_points_are_the_same_by_coordinate() -> None:
    """DIFF-01: A point with another id is the same one, moved; others stand on one side alone."""

    def move(document: Document) -> None:
        groups = document["iteration_groups"]
        first, second = groups[0]["point"], groups[1]["point"]
        first["benchmark_id"], second["benchmark_id"] = 2, 1
        groups[2]["point"]["batch_size"] = 7

    grid = compare([made()], [another(move)]).grid

    assert grid.common == 2
    assert [(one.a, one.b) for one in grid.moved] == [(1, 2), (2, 1)]
    assert [one.point.benchmark_id for one in grid.only_a] == [3]
    assert [one.point.batch_size for one in grid.only_b] == [7]
    assert not grid.is_empty


def test_a_point_that_the_other_run_skipped_says_why() -> None:
    """DIFF-01: The reason of the skip stands beside the point that one run alone measured."""

    def skip(document: Document) -> None:
        group = document["iteration_groups"].pop(1)
        document["skipped_points"] = [{"point": group["point"], "reason": "no_fpm_before_deadline"}]

    grid = compare([made()], [another(skip)]).grid

    assert [(one.point.benchmark_id, one.why) for one in grid.only_a] == [(2, "no_fpm_before_deadline")]
    assert grid.only_b == ()


def test_a_coordinate_that_stands_twice_is_paired_in_order() -> None:
    """DIFF-01: The second of two equal points is held against the second, not against the first."""

    def twice(document: Document) -> None:
        groups = document["iteration_groups"]
        groups[2]["point"].update({**groups[0]["point"], "benchmark_id": 3})
        set_wall(document, 2, 9.0)

    found = compare([made(twice)], [another(twice)])

    assert found.timing is not None
    assert [point.ratio for point in found.timing.points] == [1.0, 1.0, 1.0]
    assert found.grid.is_empty


def test_another_expected_graph_is_a_difference() -> None:
    """DIFF-01: A point that is expected in another graph is the same coordinate, told otherwise; how it was
    prepared is no part of that.
    """

    def retell(document: Document) -> None:
        document["iteration_groups"][1]["point"]["expected_capture_size"] = 8
        document["iteration_groups"][0]["point"]["sample_reasons"] = ["eager_tail", "prefill_real_seed"]

    grid = compare([made()], [another(retell)]).grid

    assert [one.b.expected_capture_size for one in grid.retold] == [8]


def test_a_grid_without_a_digest_is_not_known() -> None:
    """DIFF-01: A run that failed before it had a grid was planned neither alike nor differently."""
    grid = compare([made()], [another(lambda document: document.update(grid_digest=None))]).grid

    assert grid.same_digest is None


# --- times ------------------------------------------------------------------------------------------


def test_one_sample_each_gives_a_ratio_and_no_conclusion() -> None:
    """DIFF-10: However far apart two single times are, nothing is concluded."""
    found = compare([made()], [another(lambda document: set_wall(document, 0, 100.0))])
    rank = rank_of(found)

    assert rank.ratio == pytest.approx(400)
    assert (rank.interval, rank.basis) == (None, None)
    assert (rank.verdict, rank.why) == (Verdict.NOT_COMPARABLE, Why.ONE_SAMPLE)
    assert not found.has_findings


def test_three_samples_each_are_too_few_for_95_percent() -> None:
    """DIFF-10: They give an interval of 90 %, which concludes nothing at 95 % and something at 90 %."""
    a = made(lambda document: set_samples(document, 0, [0.10, 0.11, 0.12]))
    b = another(lambda document: set_samples(document, 0, [0.20, 0.21, 0.22]))
    strict, lax = rank_of(compare([a], [b])), rank_of(compare([a], [b], level=0.9))

    assert strict.interval is not None
    assert strict.interval.level == pytest.approx(0.9)
    assert (strict.verdict, strict.why) == (Verdict.UNDECIDED, Why.FEW_SAMPLES)
    assert (lax.verdict, lax.why) == (Verdict.SLOWER, None)


@pytest.mark.parametrize(
    ("times", "verdict", "why"),
    [
        ([0.20, 0.21, 0.22, 0.23], Verdict.SLOWER, None),
        ([0.05, 0.06, 0.07, 0.08], Verdict.FASTER, None),
        ([0.10, 0.11, 0.12, 0.14], Verdict.UNDECIDED, Why.HOLDS_ONE),
    ],
)
def test_four_samples_each_may_conclude(times: list[float], verdict: Verdict, why: Why | None) -> None:
    """DIFF-08, DIFF-10: Steps of one launch conclude something of these launches, and say what they are."""
    a = made(lambda document: set_samples(document, 0, [0.10, 0.11, 0.12, 0.13]))
    b = another(lambda document: set_samples(document, 0, times))
    rank = rank_of(compare([a], [b]))

    assert (rank.verdict, rank.why, rank.basis) == (verdict, why, Basis.ADJACENT_STEPS)
    assert (rank.a.count, rank.b.count) == (4, 4)


def test_launches_are_what_counts_where_there_are_several() -> None:
    """DIFF-08: With four launches on each side their retained times are the samples, and steps are not."""
    sides = [
        [
            made(
                lambda document, at=at, base=base: (
                    document.update(run_id=f"{at}{base}"),
                    set_samples(document, 0, [base + 0.001 * at, 5.0, 0.001]),
                )
            )
            for at in range(4)
        ]
        for base in (0.1, 0.2)
    ]
    found = compare(*sides)
    rank = rank_of(found)

    assert found.timing is not None
    assert found.timing.launches == (4, 4)
    assert (rank.basis, rank.a.count, rank.verdict) == (Basis.LAUNCHES, 4, Verdict.SLOWER)
    assert not any("how far launches" in caveat for caveat in found.caveats)


def test_other_prompts_conclude_nothing() -> None:
    """DIFF-07: Prompts that differ are a finding, and forbid a conclusion; unknown ones are no match."""

    def other(document: Document) -> None:
        set_samples(document, 0, [1.0, 1.1, 1.2, 1.3])
        fpm(document, 0)["benchmark_measurement"]["prompts"]["sha256"] = "0" * 64

    def silent(document: Document) -> None:
        prompts = {"status": "unavailable", "sha256": None, "requests": []}
        fpm(document, 0)["benchmark_measurement"]["prompts"] = prompts

    a = made(lambda document: set_samples(document, 0, [0.1, 0.11, 0.12, 0.13]))
    differing, unknown = compare([a], [another(other)]), compare([a], [another(silent)])

    assert rank_of(differing).verdict is Verdict.NOT_COMPARABLE
    assert rank_of(differing).why is Why.PROMPTS_DIFFER
    assert differing.has_findings
    assert rank_of(unknown).prompts is None
    assert unknown.timing is not None
    assert (unknown.timing.prompts.same, unknown.timing.prompts.unknown) == (2, 1)


@pytest.mark.parametrize(
    ("regime", "why"),
    [("real_kv", Why.PREPARED_DIFFERENTLY), ("legacy", Why.ONE_SAMPLE), ("fake_fallback", Why.ONE_SAMPLE)],
)
def test_real_and_made_up_kv_are_not_the_same_work(regime: str, why: Why) -> None:
    """DIFF-07: Nothing is concluded across them; made-up KV is the same with the warm-up off and on."""

    def prepare(document: Document) -> None:
        fpm(document, 1)["benchmark_measurement"]["preparation"]["kv_seed_regime"] = regime
        fpm(document, 1)["benchmark_measurement"]["estimate"]["raw_sample_indices"] = [1]

    def once(document: Document) -> None:
        fpm(document, 1)["benchmark_measurement"]["estimate"]["raw_sample_indices"] = [1]

    assert rank_of(compare([made(once)], [another(prepare)]), 1).why is why


def test_a_time_of_zero_has_no_ratio() -> None:
    """DIFF-10: A time of 0 on either side is named, and divides nothing."""
    found = compare([made(lambda document: set_wall(document, 0, 0.0))], [another()])

    assert rank_of(found).why is Why.NO_TIME
    assert found.timing is not None
    assert found.timing.points[0].ratio is None
    assert [one.points for one in found.timing.phases] == [1, 1]


def test_ranks_are_held_against_the_same_rank() -> None:
    """DIFF-06: Each rank has its own ratio; no rank is compared with another."""
    documents = made_run(ranks=2)
    later = made_run(ranks=2)
    for one in later:
        one["run_id"] = "e" * 32
        fpm(one, 0, 1)["wall_time"] *= 3
    found = compare([read(documents[0])], [read(later[1])])

    assert found.timing is not None
    assert [rank.ratio for rank in found.timing.points[0].ranks] == [1.0, 3.0]


def test_graphs_that_engines_reported_are_told_apart_and_never_called_equal() -> None:
    """SHOW-08: Another reported mode is counted; no report on one side is not known."""

    def say(document: Document) -> None:
        sample = fpm(document, 0)["benchmark_measurement"]["raw_fpms"][0]["benchmark_sample"]
        sample["cudagraph"]["runtime_mode"] = "PIECEWISE"

    found = compare([made()], [another(say)])

    assert [rank_of(found, at).dispatch_differs for at in range(3)] == [True, False, None]
    assert found.timing is not None
    assert found.timing.dispatch_differs == 1


def test_what_chance_makes_is_no_finding() -> None:
    """DIFF-11: One of 40 points outside its interval is what chance makes; all of them are a finding."""

    def timed(slow: int) -> Any:
        def change(document: Document) -> None:
            for at in range(40):
                base = 0.2 if at < slow else 0.1
                set_samples(document, at, [base + 0.01 * step for step in range(4)])
                document["iteration_groups"][at]["point"]["total_kv_read_tokens"] = 64 * at

        return change

    a = made(timed(0), points=40)
    one, every = (compare([a], [another(timed(slow), points=40)]) for slow in (1, 40))

    assert one.timing is not None
    assert (one.timing.chance.decided, one.timing.chance.tests) == (1, 40)
    assert one.timing.chance.expected == pytest.approx(2)
    assert not one.has_findings
    assert every.has_findings


def test_the_median_of_a_phase_has_an_interval() -> None:
    """DIFF-12: The ratios of each phase are summed up, with where their median lies."""

    def slower(document: Document) -> None:
        for at in range(20):
            wall = document["iteration_groups"][at]["wall_time"]
            set_wall(document, at, wall * (1.1 + 0.001 * at))

    found = compare([made(points=20)], [another(slower, points=20)])

    assert found.timing is not None
    assert [one.phase for one in found.timing.phases] == ["prefill", "decode"]
    assert all(one.interval and 1.1 <= one.interval.low < one.interval.high for one in found.timing.phases)


def test_a_repetition_is_another_launch_of_the_same() -> None:
    """DIFF-13: The same launch, another grid and another setting are refused as repetitions."""
    a = made()

    assert unlike(a, another()) is None
    assert unlike(a, made()) == "it is the same launch"
    assert (
        unlike(a, another(lambda document: document.update(grid_digest="0" * 64)))
        == "its grid is another one"
    )
    reason = unlike(a, changed("config.mode", "decode"))
    assert reason is not None
    assert reason.startswith("config.mode is ")


def test_runs_that_are_not_whole_are_caveats() -> None:
    """DIFF-03: That a run is partial, or both files are of one launch, is said."""
    partial = another(lambda document: document.update(status="partial", valid=False, stop_reason="timeout"))
    found = compare([made()], [partial])
    same = compare([made()], [made()])

    assert 'B is partial, not valid, stopped by "timeout"' in found.caveats
    assert any("of one launch" in caveat for caveat in same.caveats)
    assert any("of one launch" in caveat for caveat in compare([made()], [another(), made()]).caveats)


def test_the_key_is_that_of_the_coordinate() -> None:
    """DIFF-01: What points are found by is the identity that writers record."""
    (document,) = made_run(ranks=1)
    recorded = [fpm(document, at)["benchmark_measurement"]["point_key"] for at in range(3)]

    assert [point.key for point in read(document).points] == recorded
    assert recorded[0] == point_key(document["iteration_groups"][0]["point"])
