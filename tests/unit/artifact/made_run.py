"""Knows what tests do with made-up files of a benchmark: examine them, break them, find passes in them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from forwardpass.artifact.findings import Problem
from forwardpass.artifact.rules import Level
from forwardpass.artifact.run import BytesSource, Run, examine

OUTPUT = Path("/bench/results_merged.json")
SIDECAR = Path("/bench/results_merged_worker_probe.json")


def sources(documents: list[dict[str, Any]]) -> list[BytesSource]:
    """Return documents as files in memory, named by their place."""
    return [
        BytesSource(f"rank{at}.json", json.dumps(document, indent=2).encode(), at)
        for at, document in enumerate(documents)
    ]


def examined(documents: list[dict[str, Any]], *, full: bool = True) -> Run:
    """Go through documents."""
    return examine(sources(documents), full=full)


def broken(documents: list[dict[str, Any]], *levels: Level) -> list[Problem]:
    """Return the problems of documents, of all levels or of some."""
    return examined(documents).findings.of(*(levels or tuple(Level)))


def rules_of(problems: list[Problem]) -> set[str]:
    """Return the names of the rules that are broken."""
    return {problem.rule for problem in problems}


def everywhere(documents: list[dict[str, Any]], change: Any) -> list[dict[str, Any]]:
    """Return a copy with ``change`` applied to every document."""
    copies = copy.deepcopy(documents)
    for document in copies:
        change(document)
    return copies


def retained(document: dict[str, Any], group: int = 0, rank: int = 0) -> list[dict[str, Any]]:
    """Return a retained pass wherever a document has it: in its group, and in the rank's own results."""
    passes = [document["iteration_groups"][group]["rank_results"][rank]["fpms"][0]]
    if document["dp"].get("rank") == rank:
        passes.append(document["results"][group]["fpms"][0])
    return passes
