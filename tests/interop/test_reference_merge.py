"""Our merge beside that of ai-dynamo 1.6.1, on files that are damaged in one place."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from damaged_ranks import damaged

from forwardpass.artifact.merge import merge_ranks, reference_order
from forwardpass.artifact.rules import Level
from forwardpass.artifact.run import BytesSource, examine
from forwardpass.errors import ArtifactError

CASES = json.loads((Path(__file__).parent / "reference_merge_verdicts.json").read_text())["cases"]

RULES = {
    "are missing run_id": {"run"},
    "are missing grid_digest": {"run"},
    "produced incomplete results": {"status", "coverage", "counts", "outcome"},
    "invalid global DP size": {"dp"},
    "iteration group is incomplete": {"group-ranks"},
    "iteration group rank mismatch": {"group-ranks"},
    "group point id mismatch": {"group-ids"},
    "exactly one FPM": {"group-fpm"},
    "FPM counter mismatch": {"group-fpm", "results"},
    "FPM rank mismatch": {"group-fpm", "results"},
    "run_id mismatch": {"run", "rank-agreement"},
    "grid mismatch": {"run", "rank-agreement"},
    "rank metadata mismatch": {"dp"},
    "global DP size mismatch": {"dp"},
    "iteration groups differ": {"groups-equal"},
    "timing": {"timing"},
    "point mismatch": {"results"},
    "local result differs": {"results"},
}
"""What the reference says -> the rules of ours that say it. Where it stumbles (TypeError) it says nothing."""


def documents(case: dict[str, Any]) -> list[BytesSource]:
    """Return the damaged files."""
    return [
        BytesSource(f"/bench/r{rank}.json", json.dumps(document).encode(), rank)
        for rank, document in enumerate(damaged(case))
    ]


def merged(case: dict[str, Any]) -> str | None:
    """Return what stands for our merged document, ``None`` if we refuse."""
    try:
        merge = merge_ranks(
            documents(case), output=Path("/bench/m.json"), sidecar=Path("/bench/p.json"), expected=[0, 1]
        )
    except ArtifactError:
        return None
    document = merge.document()
    document.pop("engine", None)
    document.pop("worker_probe_path", None)
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def test_we_take_and_refuse_what_the_reference_does() -> None:
    """MERGE-14, MERGE-17, ART-11: Of hundreds of damaged pairs ours takes none that the reference refuses,
    and merges the others into the same document; it refuses beside them only other schemas, engines that
    differ (which 1.6.1 does not compare), and truth values in the place of numbers.
    """
    verdicts: Counter[str] = Counter()
    wrong = []
    for case in CASES:
        ours, theirs = merged(case), case.get("merged")
        verdicts["same" if ours == theirs else "stricter" if ours is None else "other"] += 1
        beyond = case["path"][0] in ("artifact_type", "schema_version", "engine") or (
            case["change"] in (["set", True], ["set", False])
        )
        if ours != theirs and not (ours is None and beyond):
            wrong.append((case, ours))

    assert not wrong
    assert verdicts["same"] > 700
    assert len({case.get("refused") for case in CASES}) > 25


@pytest.mark.parametrize("text", RULES)
def test_we_stop_where_the_reference_does(text: str) -> None:
    """MERGE-17: Where the reference refuses, the first of our problems in its order is of a rule that says
    the same, also where one change breaks several rules.
    """
    found: Counter[str] = Counter()
    for case in CASES:
        if text in case.get("refused", ""):
            run = examine(documents(case), expected=[0, 1])
            problems = reference_order(run.findings.of(Level.MERGE), run.reference.name)
            found[problems[0].rule] += 1

    assert found
    assert set(found) <= RULES[text]
