"""Knows which parts of the ``engine`` block must agree between ranks, and what is said where they do not.

A rank whose engine could not be looked at is not compared: it is named in the merged file instead.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from forwardpass.artifact.differences import differences

__all__ = ["NOT_COMPARED", "Divergence", "compare_engines", "identity_of", "is_degraded", "merged_engine"]

NOT_COMPARED: tuple[tuple[str, ...], ...] = (
    ("resolved",),
    ("resolved_scope",),
    ("resolution",),
    ("worker_probe",),
    ("attention", "backend_resolved"),
    ("attention", "mla_prefill_backend_resolved"),
    ("attention", "resolution"),
    ("parallel", "data_parallel_rank"),
)
"""What workers say after the run, and which rank it is. All else is compared."""

MISSING = "missing engine block"
KEY_SET = "key set"

Engines = Sequence[tuple[int, Any]]
"""``(rank, engine block)`` in the order of ranks; anything but an object counts as missing."""


class Divergence(Struct, frozen=True):
    """A part of the engine in which a rank differs from the reference rank."""

    field: str
    """A key of the block, or ``key set`` where only keys are missing on one side."""
    path: tuple[str | int, ...]
    """Where it first differs."""
    ranks: tuple[int, int]
    values: tuple[Any, Any]


def identity_of(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a block that is compared."""
    kept = dict(engine)
    for path in NOT_COMPARED:
        if len(path) == 1:
            kept.pop(path[0], None)
        elif isinstance(kept.get(path[0]), dict):
            kept[path[0]] = {key: value for key, value in kept[path[0]].items() if key != path[1]}
    return kept


def is_degraded(engine: Any) -> bool:
    """Say whether a block is missing or its capture failed."""
    return not isinstance(engine, dict) or bool(engine.get("capture_error"))


def compare_engines(engines: Engines) -> list[Divergence]:
    """Return every top-level part in which a good rank differs from the first good one."""
    good = [(rank, identity_of(engine)) for rank, engine in engines if not is_degraded(engine)]
    found: list[Divergence] = []
    for rank, other in good[1:]:
        found += _divergences(good[0], (rank, other))
    return found


def merged_engine(engines: Engines) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """Return the merged file's block and the capture errors of the ranks; no block if no rank has one."""
    if not any(isinstance(engine, dict) for _, engine in engines):
        return None, {}
    errors = {
        str(rank): str(engine["capture_error"]) if isinstance(engine, dict) else MISSING
        for rank, engine in engines
        if is_degraded(engine)
    }
    good = [engine for _, engine in engines if not is_degraded(engine)]
    reference = engines[0][1] if isinstance(engines[0][1], dict) else {}
    block = copy.deepcopy(good[0] if good else reference)
    if isinstance(block.get("parallel"), dict):
        block["parallel"]["data_parallel_rank"] = None
    if errors:
        block["capture_errors"] = errors
    return block, errors


def _divergences(
    reference: tuple[int, dict[str, Any]], other: tuple[int, dict[str, Any]]
) -> list[Divergence]:
    ranks = (reference[0], other[0])
    left, right = reference[1], other[1]
    found = []
    for key in [key for key in left if key in right]:
        first = next(differences(left[key], right[key], (key,)), None)
        if first is not None:
            found.append(Divergence(key, first[0], ranks, (first[1], first[2])))
    if not found and left.keys() != right.keys():
        only = sorted(left.keys() - right.keys()), sorted(right.keys() - left.keys())
        found.append(Divergence(KEY_SET, (), ranks, only))
    return found
