"""Each rule for a benchmark's files, broken in one place."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from made_run import broken, everywhere, examined, retained, rules_of

from forwardpass.artifact.rules import ALL, Level
from forwardpass.testing.artifacts import made_run

Document = dict[str, Any]
Change = Callable[[Document], Any]


def at(*path: str | int, value: Any) -> Change:
    """Return what sets a place of a document."""

    def change(document: Document) -> None:
        here: Any = document
        for step in path[:-1]:
            here = here[step]
        here[path[-1]] = value

    return change


def without(*path: str | int) -> Change:
    """Return what removes a place of a document."""

    def change(document: Document) -> None:
        here: Any = document
        for step in path[:-1]:
            here = here[step]
        del here[path[-1]]

    return change


def in_pass(group: int, *path: str | int, value: Any) -> Change:
    """Return what sets a place of rank 0's retained pass, in its group and in its results."""

    def change(document: Document) -> None:
        for fpm in retained(document, group):
            at(*path, value=value)(fpm)

    return change


M = "benchmark_measurement"
PASS = [f"$.iteration_groups[{number}].rank_results[0].fpms[0]" for number in range(3)]
SAMPLE = f"{PASS[1]}.{M}.raw_fpms[1].benchmark_sample"
IN_SAMPLE = (M, "raw_fpms", 1, "benchmark_sample")
GROUP: tuple[str | int, ...] = ("iteration_groups", 1)

ONE_RANK: list[tuple[str, str, Change, str]] = [
    # clause, rule, what is done to the only rank's file, the path that is named
    ("ART-04", "status", at("status", value="done"), "$.status"),
    ("ART-04", "status", at("status", value="failed"), "$.status"),
    ("ART-05", "coverage", at("coverage", value=[]), "$.coverage"),
    ("ART-05", "coverage", at("coverage", "expected_points", value=-1), "$.coverage.expected_points"),
    ("ART-05", "coverage", at("coverage", "completed_points", value=True), "$.coverage.completed_points"),
    ("ART-05", "coverage", without("coverage", "skipped_points"), "$.coverage.skipped_points"),
    ("ART-05", "coverage", at("coverage", "expected_points", value=2), "$.coverage"),
    ("ART-06", "counts", at("skipped_points", value=None), "$.skipped_points"),
    ("ART-06", "counts", at("missing_phases", value="prefill"), "$.missing_phases"),
    ("ART-06", "counts", lambda d: d["results"].pop(), "$.results"),
    ("ART-06", "counts", lambda d: d["iteration_groups"].pop(), "$.iteration_groups"),
    ("ART-06", "counts", at("coverage", "skipped_points", value=1), "$.skipped_points"),
    ("ART-06", "counts", at("results", value={}), "$.results"),
    ("ART-07", "outcome", at("valid", value=False), "$.valid"),
    ("ART-07", "outcome", at("usable", value=False), "$.usable"),
    ("ART-07", "outcome", at("stop_reason", value="timeout"), "$.stop_reason"),
    ("ART-07", "outcome", at("coverage", "expected_points", value=4), "$.coverage"),
    ("ART-07", "outcome", at("missing_phases", value=["decode"]), "$.missing_phases"),
    ("ART-07", "outcome", at("error", value="no"), "$.error"),
    ("ART-07", "outcome", at("status", value="partial"), "$.valid"),
    ("ART-09", "format", without("error"), "$.error"),
    ("ART-09", "format", without("missing_phases"), "$.missing_phases"),
    ("ART-08", "verdict", at("timing_valid", value=False), "$.timing_valid"),
    ("ART-09", "format", without("config", "mode"), "$.config.mode"),
    ("ART-09", "format", at("limits", "block_size", value="16"), "$.limits.block_size"),
    ("ART-09", "format", at("kvwarm", value={}), "$.kvwarm.enabled"),
    (
        "ART-09",
        "format",
        at(*GROUP, "point", "sample_reasons", value=[1]),
        "$.iteration_groups[1].point.sample_reasons[0]",
    ),
    ("ART-10", "fpm-format", in_pass(1, "version", value=True), "$.results[1].fpms[0].version"),
    (
        "ART-10",
        "fpm-format",
        in_pass(1, "benchmark_sample", value=None),
        "$.results[1].fpms[0].benchmark_sample",
    ),
    (
        "ART-10",
        "measured-shape",
        in_pass(1, "scheduled_requests", "num_decode_requests", value=3),
        f"{PASS[1]}.scheduled_requests.num_decode_requests",
    ),
    ("ART-10", "row-order", lambda d: d["results"].reverse(), "$.results[0].point.benchmark_id"),
    ("MERGE-01", "run", at("run_id", value=""), "$.run_id"),
    ("MERGE-01", "run", without("grid_digest"), "$.grid_digest"),
    ("MERGE-02", "protocol", at("measurement_protocol", value=[]), "$.measurement_protocol"),
    (
        "MERGE-02",
        "protocol",
        at("measurement_protocol", "schema_version", value=2),
        "$.measurement_protocol.schema_version",
    ),
    (
        "MERGE-03",
        "protocol",
        at("measurement_protocol", "execution_evidence", "timing_clock", value="wall"),
        "$.measurement_protocol.execution_evidence.timing_clock",
    ),
    ("MERGE-03", "ledger", without("warmup_evidence"), "$.warmup_evidence"),
    ("MERGE-04", "dp", at("dp", "size", value=0), "$.dp.size"),
    ("MERGE-04", "dp", at("dp", "rank", value=3), "$.dp.rank"),
    ("MERGE-05", "group-ids", at("iteration_groups", value=[]), "$.iteration_groups"),
    ("MERGE-05", "group-ids", at(*GROUP, "benchmark_id", value=0), "$.iteration_groups[1].benchmark_id"),
    ("MERGE-05", "group-ids", at(*GROUP, "benchmark_id", value=3), "$.iteration_groups[2].benchmark_id"),
    (
        "MERGE-05",
        "group-ids",
        at(*GROUP, "point", "benchmark_id", value=9),
        "$.iteration_groups[1].point.benchmark_id",
    ),
    ("MERGE-05", "group-ranks", at(*GROUP, "complete", value=False), "$.iteration_groups[1].complete"),
    ("MERGE-05", "group-ranks", at(*GROUP, "complete", value=1), "$.iteration_groups[1].complete"),
    (
        "MERGE-05",
        "group-ranks",
        at(*GROUP, "expected_dp_ranks", value=[0, 1]),
        "$.iteration_groups[1].expected_dp_ranks",
    ),
    ("MERGE-05", "group-ranks", at(*GROUP, "rank_results", value=[]), "$.iteration_groups[1].rank_results"),
    (
        "MERGE-05",
        "group-ranks",
        at(*GROUP, "rank_results", 0, "dp_rank", value=1),
        "$.iteration_groups[1].rank_results",
    ),
    (
        "MERGE-06",
        "group-fpm",
        at(*GROUP, "rank_results", 0, "fpms", value=[]),
        "$.iteration_groups[1].rank_results[0].fpms",
    ),
    ("MERGE-06", "group-fpm", in_pass(1, "counter_id", value=9), f"{PASS[1]}.counter_id"),
    ("MERGE-06", "group-fpm", in_pass(1, "dp_rank", value=1), f"{PASS[1]}.dp_rank"),
    ("MERGE-07", "group-wall-time", at(*GROUP, "wall_time", value=0.125), "$.iteration_groups[1].wall_time"),
    ("MERGE-07", "group-wall-time", in_pass(1, "wall_time", value="1"), f"{PASS[1]}.wall_time"),
    ("MERGE-08", "contiguous-ids", at(*GROUP, "benchmark_id", value=9), "$.iteration_groups"),
    ("MERGE-12", "timing", at("timing", "started_at", value=None), "$.timing.started_at"),
    ("MERGE-12", "timing", at("timing", "completed_at", value=3), "$.timing.completed_at"),
    (
        "MERGE-12",
        "timing",
        at("timing", "benchmark_elapsed_seconds", value=-1),
        "$.timing.benchmark_elapsed_seconds",
    ),
    (
        "MERGE-12",
        "timing",
        at("timing", "benchmark_elapsed_seconds", value=0.5),
        "$.timing.measured_iteration_seconds",
    ),
    (
        "MERGE-12",
        "timing",
        at("timing", "measured_iteration_seconds", value=0.5),
        "$.timing.measured_iteration_seconds",
    ),
    ("MERGE-12", "timing", at("timing", value=None), "$.timing"),
    (
        "MERGE-13",
        "results",
        at("results", 1, "point", "benchmark_id", value=1),
        "$.results[1].point.benchmark_id",
    ),
    (
        "MERGE-13",
        "results",
        at("results", 1, "point", "benchmark_id", value=7),
        "$.results[1].point.benchmark_id",
    ),
    (
        "MERGE-13",
        "results",
        at("results", 1, "point", "batch_size", value=7),
        "$.results[1].point.batch_size",
    ),
    ("MERGE-13", "results", at("results", 1, "fpms", value=[]), "$.results[1].fpms"),
    (
        "MERGE-13",
        "results",
        at("results", 1, "fpms", 0, "wall_time", value=7),
        "$.results[1].fpms[0].wall_time",
    ),
    ("MERGE-13", "results", at("results", 1, "fpms", 0, "x", value=7), "$.results[1].fpms[0].x"),
    (
        "EVID-01",
        "protocol-format",
        at("measurement_protocol", "content_seed", value=0),
        "$.measurement_protocol.content_seed",
    ),
    (
        "EVID-01",
        "protocol-format",
        without("measurement_protocol", "preparation", "giant_kv_repeats"),
        "$.measurement_protocol.preparation.giant_kv_repeats",
    ),
    ("EVID-02", "measurement", in_pass(1, M, value=[]), f"$.results[1].fpms[0].{M}"),
    (
        "EVID-02",
        "measurement",
        in_pass(1, M, "schema_version", value=2),
        f"$.results[1].fpms[0].{M}.schema_version",
    ),
    ("EVID-02", "measurement", in_pass(1, M, "dp_rank", value=1), f"{PASS[1]}.{M}.dp_rank"),
    ("EVID-02", "measurement", in_pass(1, M, "point_key", value=""), f"{PASS[1]}.{M}.point_key"),
    (
        "EVID-02",
        "measurement",
        in_pass(1, M, "preparation", "grid_digest", value="x"),
        f"{PASS[1]}.{M}.preparation.grid_digest",
    ),
    ("EVID-05", "sample", in_pass(1, M, "raw_fpms", value=[]), f"{PASS[1]}.{M}.raw_fpms"),
    (
        "EVID-05",
        "sample",
        in_pass(1, M, "raw_fpms", 1, "counter_id", value=1),
        f"{PASS[1]}.{M}.raw_fpms[1].counter_id",
    ),
    (
        "EVID-05",
        "sample",
        in_pass(1, M, "raw_fpms", 1, "dp_rank", value=False),
        f"{PASS[1]}.{M}.raw_fpms[1].dp_rank",
    ),
    (
        "EVID-05",
        "sample",
        in_pass(1, M, "raw_fpms", 1, "worker_id", value="x"),
        f"{PASS[1]}.{M}.raw_fpms[1].worker_id",
    ),
    ("EVID-05", "sample", in_pass(1, *IN_SAMPLE, "sample_index", value=2), f"{SAMPLE}.sample_index"),
    ("EVID-05", "sample", in_pass(1, *IN_SAMPLE, "forward_index", value=20), f"{SAMPLE}.forward_index"),
    ("EVID-05", "sample", in_pass(1, *IN_SAMPLE, value=None), f"{SAMPLE}"),
    (
        "EVID-06",
        "sample-timing",
        in_pass(1, *IN_SAMPLE, "timing", "basis", value="x"),
        f"{SAMPLE}.timing.basis",
    ),
    (
        "EVID-06",
        "sample-timing",
        in_pass(1, *IN_SAMPLE, "timing", "start_monotonic", value=0.5),
        f"{SAMPLE}.timing.start_monotonic",
    ),
    (
        "EVID-06",
        "sample-timing",
        in_pass(1, *IN_SAMPLE, "timing", "end_monotonic", value=0.5),
        f"{SAMPLE}.timing.start_monotonic",
    ),
    (
        "EVID-07",
        "dispatch",
        in_pass(1, *IN_SAMPLE, "cudagraph", "num_paddings", value=1),
        f"{SAMPLE}.cudagraph.num_paddings",
    ),
    (
        "EVID-07",
        "dispatch",
        in_pass(1, *IN_SAMPLE, "cudagraph", "num_padded_tokens", value=1),
        f"{SAMPLE}.cudagraph.num_padded_tokens",
    ),
    (
        "EVID-07",
        "dispatch",
        in_pass(1, *IN_SAMPLE, "cudagraph", "runtime_mode", value=""),
        f"{SAMPLE}.cudagraph.runtime_mode",
    ),
    (
        "EVID-07",
        "dispatch",
        in_pass(2, M, "raw_fpms", 0, "benchmark_sample", "cudagraph", "runtime_mode", value="FULL"),
        f"{PASS[2]}.{M}.raw_fpms[0].benchmark_sample.cudagraph.runtime_mode",
    ),
    (
        "EVID-07",
        "dispatch",
        in_pass(2, M, "raw_fpms", 0, "benchmark_sample", "cudagraph", "status", value="x"),
        f"{PASS[2]}.{M}.raw_fpms[0].benchmark_sample.cudagraph.status",
    ),
    (
        "EVID-08",
        "estimate",
        in_pass(1, M, "estimate", "raw_sample_indices", value=[2, 3]),
        f"{PASS[1]}.{M}.estimate.raw_sample_indices",
    ),
    (
        "EVID-08",
        "estimate",
        in_pass(1, M, "estimate", "raw_sample_indices", value=[1, 2, 9]),
        f"{PASS[1]}.{M}.estimate.raw_sample_indices",
    ),
    (
        "EVID-08",
        "estimate",
        in_pass(1, M, "estimate", "method", value="single_step"),
        f"{PASS[1]}.{M}.estimate.method",
    ),
    (
        "EVID-08",
        "estimate",
        in_pass(1, M, "estimate", "method", value="last_step"),
        f"{PASS[1]}.{M}.estimate.raw_sample_indices",
    ),
    ("EVID-08", "estimate", in_pass(1, "wall_time", value=0.3), f"{PASS[1]}.wall_time"),
    (
        "EVID-09",
        "forward-order",
        in_pass(2, M, "raw_fpms", 0, "benchmark_sample", "forward_index", value=21),
        f"{PASS[2]}.{M}.raw_fpms[0].benchmark_sample.forward_index",
    ),
    (
        "EVID-10",
        "ledger-use",
        in_pass(1, M, "preparation", "warmup_records_before", value=3),
        f"{PASS[1]}.{M}.preparation.warmup_records_before",
    ),
    (
        "EVID-10",
        "ledger-use",
        in_pass(1, M, "preparation", "warmup_records_before", value=None),
        f"{PASS[1]}.{M}.preparation.warmup_records_before",
    ),
    (
        "EVID-10",
        "ledger-use",
        at("warmup_evidence", value={"status": "unavailable", "records": []}),
        f"{PASS[0]}.{M}.preparation.warmup_records_before",
    ),
    (
        "EVID-10",
        "ledger-use",
        at("warmup_evidence", "records", 1, "forward_index_end", value=11),
        f"{PASS[0]}.{M}.preparation.warmup_records_before",
    ),
    (
        "EVID-10",
        "ledger-use",
        at("warmup_evidence", "records", 0, "status", value="running"),
        f"{PASS[0]}.{M}.preparation.warmup_records_before",
    ),
    ("EVID-11", "ledger", at("warmup_evidence", "status", value="x"), "$.warmup_evidence.status"),
    ("EVID-11", "ledger", at("warmup_evidence", "status", value="unavailable"), "$.warmup_evidence.records"),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 0, "kind", value="x"),
        "$.warmup_evidence.records[0].kind",
    ),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 1, "status", value="failed"),
        "$.warmup_evidence.records[1].status",
    ),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 1, "validation", "status", value="failed"),
        "$.warmup_evidence.records[1].status",
    ),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 0, "forward_index_end", value=None),
        "$.warmup_evidence.records[0].forward_index_end",
    ),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 1, "forward_index_end", value=4),
        "$.warmup_evidence.records[1].forward_index_end",
    ),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 0, "observed_forward_count", value=4),
        "$.warmup_evidence.records[0].observed_forward_count",
    ),
    (
        "EVID-11",
        "ledger-format",
        without("warmup_evidence", "records", 0, "requested_shape"),
        "$.warmup_evidence.records[0].requested_shape",
    ),
    (
        "EVID-12",
        "consumer-protocol",
        at("measurement_protocol", "execution_evidence", "more", value=1),
        "$.measurement_protocol.execution_evidence.more",
    ),
    (
        "EVID-12",
        "consumer-sample",
        in_pass(1, *IN_SAMPLE, "cudagraph", "runtime_mode", value="EAGER"),
        f"{SAMPLE}.cudagraph.runtime_mode",
    ),
    (
        "EVID-12",
        "consumer-sample",
        in_pass(1, M, "raw_fpms", 0, "wall_time", value=0),
        f"{PASS[1]}.{M}.raw_fpms[0].wall_time",
    ),
    (
        "EVID-12",
        "consumer-preparation",
        in_pass(1, M, "preparation", "completed_points_before", value=2),
        f"{PASS[1]}.{M}.preparation.completed_points_before",
    ),
    (
        "EVID-12",
        "consumer-preparation",
        at("results", 1, "kv_seed_regime", value="real_kv"),
        f"{PASS[1]}.{M}.preparation.kv_seed_regime",
    ),
    (
        "EVID-13",
        "consumer-ledger",
        at("warmup_evidence", "records", 0, "completed_points_before", value=1),
        "$.warmup_evidence.records[0].completed_points_before",
    ),
    (
        "EVID-13",
        "consumer-ledger",
        at("warmup_evidence", "records", 1, "forward_index_start", value=None),
        "$.warmup_evidence.records[1].forward_index_start",
    ),
    (
        "EVID-13",
        "consumer-ledger",
        at("warmup_evidence", "records", 0, "forward_index_start", value=6),
        "$.warmup_evidence.records[1].forward_index_start",
    ),
    (
        "EVID-13",
        "consumer-ledger",
        at("warmup_evidence", "records", 0, "status", value="running"),
        "$.warmup_evidence.records[0].forward_index_end",
    ),
    (
        "EVID-13",
        "consumer-ledger",
        in_pass(1, M, "preparation", "warmup_records_before", value=1),
        f"{PASS[1]}.{M}.preparation.warmup_records_before",
    ),
    (
        "EVID-14",
        "prompts",
        in_pass(1, M, "prompts", "requests", 0, "num_tokens", value=1),
        f"{PASS[1]}.{M}.prompts.sha256",
    ),
    (
        "EVID-14",
        "prompts",
        in_pass(1, M, "prompts", "sha256", value=None),
        f"$.results[1].fpms[0].{M}.prompts.sha256",
    ),
]

TWO_RANKS: list[tuple[str, str, Change, str]] = [
    # clause, rule, what is done to rank 1's file, the path that is named
    ("MERGE-02", "protocol", without("measurement_protocol"), "$.measurement_protocol"),
    (
        "MERGE-02",
        "protocol",
        at("measurement_protocol", "content_seed", value="1"),
        "$.measurement_protocol.content_seed",
    ),
    ("MERGE-04", "dp", at("dp", "rank", value=0), "$.dp.rank"),
    ("MERGE-04", "dp", at("dp", "size", value=3), "$.dp.size"),
    ("MERGE-09", "rank-agreement", at("status", value="partial"), "$.status"),
    ("MERGE-09", "rank-agreement", at("coverage", "x", value=1), "$.coverage.x"),
    ("MERGE-09", "rank-agreement", at("stop_reason", value="timeout"), "$.stop_reason"),
    ("MERGE-09", "rank-agreement", at("run_id", value="0" * 32), "$.run_id"),
    ("MERGE-09", "rank-agreement", at("grid_digest", value="0" * 64), "$.grid_digest"),
    ("MERGE-10", "engine-identity", at("engine", "model", "dtype", value="float16"), "$.engine.model.dtype"),
    ("MERGE-10", "engine-identity", at("engine", "graph", value={}), "$.engine"),
    (
        "MERGE-11",
        "groups-equal",
        at(*GROUP, "point", "batch_size", value=3),
        "$.iteration_groups[1].point.batch_size",
    ),
    ("MERGE-11", "groups-equal", lambda d: d["iteration_groups"].pop(), "$.iteration_groups"),
    ("MERGE-11", "groups-equal", at(*GROUP, "rank_results", 0, "fpms", 0, "x", value=1), f"{PASS[1]}.x"),
    (
        "MERGE-12",
        "timing",
        without("timing", "benchmark_elapsed_seconds"),
        "$.timing.benchmark_elapsed_seconds",
    ),
    (
        "MERGE-13",
        "results",
        at("results", 0, "fpms", 0, "worker_id", value="x"),
        "$.results[0].fpms[0].worker_id",
    ),
    ("ART-04", "status", at("status", value="x"), "$.status"),
    (
        "EVID-11",
        "ledger",
        at("warmup_evidence", "records", 0, "status", value="x"),
        "$.warmup_evidence.records[0].status",
    ),
]


def named(cases: list[tuple[str, str, Change, str]]) -> list[Any]:
    return [pytest.param(*case, id=f"{case[0]} {case[3]} {number}") for number, case in enumerate(cases)]


@pytest.mark.parametrize(("clause", "rule", "change", "path"), named(ONE_RANK))
def test_a_broken_rule_is_named(clause: str, rule: str, change: Change, path: str) -> None:
    """ART-04, ART-05, ART-06, ART-07, ART-08, ART-09, ART-10, ART-12, MERGE-01, MERGE-02, MERGE-03, MERGE-04,
    MERGE-05, MERGE-06, MERGE-07, MERGE-08, MERGE-12, MERGE-13, EVID-01, EVID-02, EVID-05, EVID-06, EVID-07,
    EVID-08, EVID-09, EVID-10, EVID-11, EVID-12, EVID-13, EVID-14: What is wrong in one file is found by its
    rule, at its path, under its clause.
    """
    (document,) = made_run(ranks=1)
    change(document)
    found = [(one.rule, one.path) for one in broken([document])]

    assert (rule, path) in found
    assert next(one for one in ALL if one.name == rule).clause == clause or clause == "MERGE-03"


@pytest.mark.parametrize(("clause", "rule", "change", "path"), named(TWO_RANKS))
def test_a_rank_that_differs_is_named(clause: str, rule: str, change: Change, path: str) -> None:
    """MERGE-02, MERGE-04, MERGE-09, MERGE-10, MERGE-11, ART-12: What differs between ranks is found with both
    ranks and, where both have one, both values; and a rank's own faults are found in its own file.
    """
    documents = made_run()
    change(documents[1])
    problems = [one for one in broken(documents, Level.MERGE) if (one.rule, one.path) == (rule, path)]

    assert len(problems) == 1
    assert problems[0].file == "rank1.json"
    if rule in ("protocol", "rank-agreement", "engine-identity", "groups-equal"):
        assert problems[0].ranks == (0, 1)
        assert clause == problems[0].clause
    if rule in ("protocol", "rank-agreement", "engine-identity") and path != "$.engine":
        assert len(set(problems[0].values)) == 2


def test_evidence_that_nobody_promised_is_refused() -> None:
    """EVID-03, EVID-04: Measurements without a protocol, and samples or a ledger without its promise of them,
    are named where they stand.
    """
    (whole,) = made_run(ranks=1)
    no_protocol = copy.deepcopy(whole)
    del no_protocol["measurement_protocol"]
    no_contract = copy.deepcopy(whole)
    del no_contract["measurement_protocol"]["execution_evidence"]

    assert rules_of(broken([no_protocol], Level.MERGE)) == {"measurement-unasked", "ledger-unasked"}
    assert rules_of(broken([no_contract], Level.MERGE)) == {"sample-unasked", "ledger-unasked"}


def test_a_measurement_that_was_promised_is_missed() -> None:
    """EVID-02, EVID-15: With a protocol a pass without a measurement is no pass with a default one."""
    (document,) = made_run(ranks=1)
    for fpm in retained(document, 1):
        del fpm["benchmark_measurement"]

    assert [one.path for one in broken([document], Level.MERGE)] == [f"{PASS[1]}.benchmark_measurement"]


def test_a_field_of_missing_evidence_is_missed() -> None:
    """EVID-15: An unavailable dispatch has its nulls; without one of them it is not taken for unavailable."""
    (document,) = made_run(ranks=1)
    for fpm in retained(document, 2):
        sample = fpm["benchmark_measurement"]["raw_fpms"][0]["benchmark_sample"]
        assert sample["cudagraph"]["status"] == "unavailable"
        del sample["cudagraph"]["runtime_mode"]

    assert rules_of(broken([document], Level.MERGE)) == {"dispatch"}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ranks": 1},
        {"ranks": 5, "points": 4},
        {"contract": False},
        {"protocol": False},
        {"engine": False},
    ],
    ids=str,
)
def test_sound_files_have_no_problems(options: dict[str, Any]) -> None:
    """ART-11, EVID-15: Files that keep every rule have no problem of any level, with and without evidence; an
    unavailable dispatch, prompt hash or ledger is as good as an observed one.
    """
    assert [one.text() for one in broken(made_run(**options))] == []


def test_a_run_that_was_cut_short_is_sound() -> None:
    """ART-07: A partial run has ids 1 … k, is usable, and says that time ran out."""

    def cut(document: dict[str, Any]) -> None:
        document.update(status="partial", valid=False, stop_reason="timeout")
        document["coverage"]["expected_points"] = 9

    assert broken(everywhere(made_run(), cut)) == []


def test_files_from_before_status_and_usable_are_read() -> None:
    """ART-04, ART-11: A file without status is complete if it is valid, and failed otherwise."""

    def older(document: dict[str, Any]) -> None:
        del document["status"], document["usable"]

    documents = everywhere(made_run(), older)
    assert broken(documents) == []

    documents[1]["status"] = "complete"  # said or meant, it is the same
    assert broken(documents) == []

    documents[0]["valid"] = False
    assert "status" in rules_of(broken(documents, Level.MERGE))


def test_all_problems_are_listed_once() -> None:
    """ART-12: Several faults in one file are all listed, in the order of the checks and each once."""
    documents = made_run()
    for change in (
        at("run_id", value=None),
        at("dp", "size", value="2"),
        at("iteration_groups", 0, "wall_time", value=9.5),
        at("iteration_groups", 2, "rank_results", 1, "fpms", 0, "counter_id", value=4),
        at("results", 1, "point", "batch_size", value=0),
        at("error", value="boom"),
    ):
        change(documents[0])
    problems = broken(documents)
    places = [(one.rule, one.path, one.file) for one in problems]

    assert len(set(places)) == len(places)
    assert {"run", "dp", "group-wall-time", "group-fpm", "results", "outcome"} <= rules_of(problems)
    assert {"rank-agreement", "groups-equal"} <= rules_of(problems)


def test_hostile_text_is_shown_escaped() -> None:
    """ART-12: Values and keys of a stranger's file are shown as ASCII, and cut."""
    (document,) = made_run(ranks=1)
    document["status"] = "\x1b[31m" + "x" * 500
    document["results"][0]["fpms"][0]["\x1b]0;title"] = 1
    texts = [one.text() for one in broken([document])]

    assert texts
    assert all(text.replace("…", "").isascii() and text.isprintable() for text in texts)
    assert all(len(text) < 400 for text in texts)


def test_unknown_fields_change_nothing() -> None:
    """ART-11: Fields of a newer version, at any depth and the same on all ranks, are no problem."""

    def newer(document: dict[str, Any]) -> None:
        document["new"] = {"a": [1]}
        for group in document["iteration_groups"]:
            group["new"] = 1
            group["rank_results"][0]["fpms"][0]["new"] = 1
        if document["dp"]["rank"] == 0:
            for row in document["results"]:
                row["fpms"][0]["new"] = 1

    assert broken(everywhere(made_run(), newer)) == []


def test_every_merge_rule_is_broken_here() -> None:
    """ART-12: Each rule of a merge has a case above."""
    cases = {rule for _, rule, _, _ in ONE_RANK + TWO_RANKS}
    elsewhere = {
        "no-ranks",
        "measurement-unasked",
        "sample-unasked",
        "ledger-unasked",
        "probe-pair",
        "probe-format",
        "merged",
    }

    assert {one.name for one in ALL} - cases == elsewhere
    assert examined(made_run()).findings.total == 0
