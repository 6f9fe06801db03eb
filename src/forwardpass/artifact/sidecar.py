"""Knows the file with the workers' replies beside a merged file: made, written, read, and put to use.

Neither the rank files nor the merged file are touched; only a served copy gets the verdict.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct

from forwardpass.artifact.probe import ProbeFailed, ProbeReplies, ProbeSkipped
from forwardpass.artifact.probe_view import ProbeResult, judge_probe, judge_view
from forwardpass.artifact.read import PROBE_SCHEMA, Kind, read_artifact
from forwardpass.artifact.shape import found
from forwardpass.atomic import write_atomically
from forwardpass.errors import ArtifactError, MalformedArtifact, UnknownSchema

__all__ = [
    "NoSidecar",
    "RankProbe",
    "Sidecar",
    "applied",
    "build_sidecar",
    "read_sidecar",
    "sidecar_beside",
    "write_sidecar",
]


class RankProbe(ProbeResult, frozen=True, kw_only=True):
    """What the replies amount to for one rank."""

    rank_file: str


class Sidecar(Struct, frozen=True, kw_only=True):
    """The whole file."""

    schema: Literal["dynamo.fpm.benchmark_worker_probe"]
    schema_version: Literal[1]
    run_id: str
    """That of the merged file it belongs to."""
    merged_output_path: str
    rank_files: tuple[str, ...]
    merged: ProbeResult
    """For all ranks together."""
    ranks: dict[str, RankProbe]
    """For each rank whose file was merged."""


class NoSidecar(Struct, frozen=True):
    """There is no evidence of the workers, which does not mean that they agree."""

    reason: str
    mismatch: bool = False
    """Whether there is a file, but of another run."""


def build_sidecar(
    document: Mapping[str, Any], outcome: ProbeReplies | ProbeFailed | ProbeSkipped
) -> Sidecar | None:
    """Return what the workers' replies amount to beside a valid merged ``document``.

    ``None`` without an engine block: there is nothing that they could resolve.
    """
    engine = document.get("engine")
    if not isinstance(engine, dict):
        return None
    expected = list(document["dp"]["ranks"])
    responses, failure = judge_probe(outcome)
    ranks = {
        str(rank): _rank_probe(judge_view(responses, failure, engine, [rank]), name)
        for rank, name in zip(document["dp"]["source_ranks"], document["rank_files"], strict=True)
    }
    return Sidecar(
        schema="dynamo.fpm.benchmark_worker_probe",
        schema_version=1,
        run_id=document["run_id"],
        merged_output_path=document["merged_output_path"],
        rank_files=tuple(document["rank_files"]),
        merged=judge_view(responses, failure, engine, expected),
        ranks=ranks,
    )


def write_sidecar(path: Path, sidecar: Sidecar) -> None:
    """Write it whole or not at all. Raises :class:`ArtifactPathError`, which a launcher only warns about."""
    write_atomically(path, [msgspec.json.format(msgspec.json.encode(sidecar), indent=2)])


def read_sidecar(path: Path) -> Sidecar:
    """Return the sidecar at ``path``. Raises :class:`~forwardpass.errors.ArtifactError`."""
    file = read_artifact(path)
    if file.kind is not Kind.PROBE:
        raise UnknownSchema(file.name, file.kind.value, 2, f"{PROBE_SCHEMA} in version 1")
    try:
        return msgspec.convert(file.head, Sidecar)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise MalformedArtifact(file.name, str(error) or "nested too deeply") from error


def sidecar_beside(path: Path, document: Mapping[str, Any]) -> Sidecar | NoSidecar:
    """Return the sidecar at ``path`` if it is of the same run as the merged ``document``."""
    try:
        sidecar = read_sidecar(path)
    except ArtifactError as error:
        missing = "no post-run worker evidence: "
        return NoSidecar(missing + (str(error) if path.exists() else f"{path} is not there"))
    if sidecar.run_id != document.get("run_id"):
        ours, theirs = found(document.get("run_id")), found(sidecar.run_id)
        return NoSidecar(f"{path}: found run_id {theirs}, expected {ours}; it is not used", mismatch=True)
    return sidecar


def applied(document: Mapping[str, Any], result: ProbeResult | None) -> dict[str, Any]:
    """Return a copy of a merged ``document`` to serve, its engine block with the verdict of all ranks.

    Everything else stays as it was captured; without an engine block, or without a result, all does.
    """
    served = copy.deepcopy(dict(document))
    engine = served.get("engine")
    if result is None or not isinstance(engine, dict):
        return served
    verdict = msgspec.to_builtins(result)
    for name in ("resolved", "resolved_scope", "resolution", "worker_probe"):
        engine[name] = verdict[name]
    if isinstance(engine.get("attention"), dict) and result.attention is not UNSET:
        engine["attention"].update(verdict["attention"])
    return served


def _rank_probe(result: ProbeResult, rank_file: str) -> RankProbe:
    return RankProbe(
        rank_file=rank_file, **{name: getattr(result, name) for name in result.__struct_fields__}
    )
