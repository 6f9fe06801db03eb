"""Merged files, checked by themselves."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_run import OUTPUT, SIDECAR, sources

from forwardpass.artifact.check_merged import check_merged
from forwardpass.artifact.findings import Problem
from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.read import parse_artifact
from forwardpass.testing.artifacts import made_run

Document = dict[str, Any]
GROUP = "$.iteration_groups[0].wall_time"


def merged(**options: Any) -> Document:
    """Return a merged document."""
    return merge_ranks(sources(made_run(**options)), output=OUTPUT, sidecar=SIDECAR).document()


def problems(document: Document) -> list[Problem]:
    """Return what is wrong with it."""
    return check_merged(parse_artifact(json.dumps(document).encode(), "merged.json")).problems


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ranks": 1},
        {"ranks": 4, "points": 5},
        {"contract": False},
        {"protocol": False},
        {"engine": False},
    ],
    ids=str,
)
def test_what_is_merged_here_keeps_all_rules(options: dict[str, Any]) -> None:
    """MERGE-14: Our merged files have no problem of any level."""
    assert [one.text() for one in problems(merged(**options))] == []


def test_a_part_of_the_ranks_keeps_all_rules() -> None:
    """MERGE-14: So does a file that is merged from some of the ranks."""
    some = sources(made_run(ranks=3))[1:]
    document = merge_ranks(some, output=OUTPUT, sidecar=SIDECAR).document()

    assert [one.text() for one in problems(document)] == []


@pytest.mark.parametrize(
    ("rule", "change", "path"),
    [
        ("dp", lambda d: d["dp"].update(ranks=[0]), "$.dp.ranks"),
        ("dp", lambda d: d["dp"].update(source_ranks=[1, 0]), "$.dp.source_ranks"),
        ("dp", lambda d: d["dp"].update(managed_size=1), "$.dp.managed_size"),
        ("dp", lambda d: d["dp"].pop("global_size"), "$.dp.global_size"),
        ("merged", lambda d: d.update(rank_files=[]), "$.rank_files"),
        ("merged", lambda d: d.pop("engine"), "$.worker_probe_path"),
        (
            "merged",
            lambda d: d["timing"]["rank_benchmark_elapsed_seconds"].pop("1"),
            "$.timing.rank_benchmark_elapsed_seconds",
        ),
        (
            "timing",
            lambda d: d["timing"].update(benchmark_elapsed_seconds=1000.0),
            "$.timing.benchmark_elapsed_seconds",
        ),
        (
            "timing",
            lambda d: d["timing"].update(measured_iteration_seconds=1.0),
            "$.timing.measured_iteration_seconds",
        ),
        ("counts", lambda d: d["results"].pop(), "$.results"),
        ("counts", lambda d: d["coverage"].update(completed_points=3, expected_points=3), "$.results"),
        ("results", lambda d: d["results"].reverse(), "$.results[0].point.benchmark_id"),
        ("results", lambda d: d["results"][1]["point"].update(dp_rank=0), "$.results[1].point.dp_rank"),
        ("ledger", lambda d: d["rank_warmup_evidence"].pop("1"), "$.rank_warmup_evidence"),
        (
            "ledger",
            lambda d: d["rank_warmup_evidence"]["1"].update(status="x"),
            "$.rank_warmup_evidence[\"1\"].status",
        ),
        (
            "ledger-unasked",
            lambda d: d["measurement_protocol"].pop("execution_evidence"),
            "$.rank_warmup_evidence",
        ),
        ("group-wall-time", lambda d: d["iteration_groups"][0].update(wall_time=9.0), GROUP),
        (
            "consumer-preparation",
            lambda d: d["results"][0].update(kv_seed_regime="real_kv"),
            "$.results[0].kv_seed_regime",
        ),
        ("run", lambda d: d.update(run_id=None), "$.run_id"),
        ("outcome", lambda d: d.update(valid=False), "$.valid"),
        ("format", lambda d: d.pop("merged_output_path"), "$.merged_output_path"),
    ],
)  # fmt: skip
def test_a_broken_merged_file_is_named(rule: str, change: Callable[[Document], Any], path: str) -> None:
    """MERGE-14, ART-12: What is wrong with a merged file is found by its rule, at its path."""
    document = merged()
    change(document)

    assert (rule, path) in [(one.rule, one.path) for one in problems(document)]


WHOLE = merged()


def leaves(value: Any, path: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return the paths of all leaves."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in leaves(inner, (*path, key))]
    if isinstance(value, list):
        return [leaf for at, inner in enumerate(value) for leaf in leaves(inner, (*path, at))]
    return [path]


PLACES = leaves(WHOLE["results"], ("results",))


@settings(max_examples=80, deadline=None)
@given(path=st.sampled_from(PLACES))
def test_a_mutated_result_is_found(path: tuple[Any, ...]) -> None:
    """MERGE-14, MERGE-15: A result that is no longer what its group holds is found at its path. The KV regime
    alone stands nowhere else, unless there is evidence beside it.
    """
    document = copy.deepcopy(WHOLE)
    here: Any = document
    for step in path[:-1]:
        here = here[step]
    here[path[-1]] = ["other"]
    names = [one.path for one in problems(document)]

    assert any(name.startswith(f"$.results[{path[1]}]") for name in names)
