"""A rank's file, built of what its run has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_run import broken, rules_of

from forwardpass.artifact.blocks import Capacity, PointRecord, SkippedPoint
from forwardpass.artifact.build import (
    RunFacts,
    RunOutcome,
    build_rank_artifact,
    rank_text,
    write_rank_artifact,
)
from forwardpass.artifact.model import RankArtifact
from forwardpass.artifact.read import Kind, read_artifact
from forwardpass.artifact.rules import Level
from forwardpass.testing.artifacts import made_run

(DOCUMENT,) = made_run(ranks=1)
MADE = msgspec.convert(DOCUMENT, RankArtifact)


def built(**changes: Any) -> RankArtifact:
    """Build the made-up run's file, with something else in what came of it."""
    facts = RunFacts(**{name: getattr(MADE, name) for name in RunFacts.__struct_fields__})
    outcome = {
        "grid_digest": MADE.grid_digest,
        "capacity": Capacity(common=None),
        "expected_points": 3,
        "results": MADE.results,
        "iteration_groups": MADE.iteration_groups,
        "skipped_points": (),
        "missing_phases": (),
        "warmup_evidence": MADE.warmup_evidence,
        "started_at": MADE.timing.started_at,
        "completed_at": MADE.timing.completed_at,
        "elapsed_seconds": MADE.timing.benchmark_elapsed_seconds,
        "stopped": False,
        "error": None,
        **changes,
    }
    return build_rank_artifact(facts, RunOutcome(**outcome))


def skipped(point: PointRecord) -> SkippedPoint:
    return SkippedPoint(point=point, kv_seed_regime="skip", reason="no_fpm_before_deadline")


SKIPPED = (skipped(MADE.results[0].point),)


def document(artifact: RankArtifact) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(rank_text(artifact))
    return parsed


def test_a_whole_run_is_complete() -> None:
    """ART-04, ART-07, ART-08, ART-09: The file of a run that did everything keeps all rules, and
    is the document that its parts came from.
    """
    assert broken([document(built())]) == []
    assert document(built()) == DOCUMENT


@pytest.mark.parametrize(
    ("changes", "status", "valid", "usable", "stop_reason"),
    [
        ({"expected_points": 5, "stopped": True}, "partial", False, True, "timeout"),
        ({"stopped": True}, "complete", True, True, None),
        ({"error": "boom"}, "failed", False, False, None),
        ({"missing_phases": ("decode",)}, "complete", False, False, None),
        (
            {"expected_points": 4, "skipped_points": (skipped(MADE.results[0].point),)},
            "complete",
            False,
            False,
            None,
        ),
        ({"results": (), "iteration_groups": (), "stopped": True}, "partial", False, False, "timeout"),
        ({"elapsed_seconds": 0.5}, "complete", False, False, None),
        ({"completed_at": None}, "complete", False, False, None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_how_a_run_ends(
    changes: dict[str, Any], status: str, valid: bool, usable: bool, stop_reason: str | None
) -> None:
    """ART-04, ART-05, ART-06, ART-07, ART-08: What the file says of itself follows from what the run has."""
    found = document(built(**changes))

    assert (found["status"], found["valid"], found["usable"]) == (status, valid, usable)
    assert found["stop_reason"] == stop_reason
    assert rules_of(broken([found], Level.FORMAT)) == set()
    assert bool(rules_of(broken([found], Level.MERGE))) != usable


def test_the_file_is_written_and_read(tmp_path: Path) -> None:
    """ART-03, ART-09: It is indented JSON under its name, and reads back."""
    path = tmp_path / "results.json"
    size = write_rank_artifact(path, built())

    assert path.stat().st_size == size
    assert path.read_bytes().startswith(b'{\n  "schema_version": 2')
    file = read_artifact(path)
    assert file.kind is Kind.RANK
    assert file.document() == DOCUMENT
