"""Knows how files of any kind are validated: ranks of one run as a set, a sidecar with its document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from forwardpass.artifact import rules
from forwardpass.artifact.check_merged import check_merged
from forwardpass.artifact.findings import Findings, Problem
from forwardpass.artifact.names import sidecar_path
from forwardpass.artifact.read import ArtifactFile, Kind, read_artifact
from forwardpass.artifact.rules import Level
from forwardpass.artifact.run import PathSource, examine
from forwardpass.artifact.shape import fit
from forwardpass.artifact.sidecar import NoSidecar, Sidecar, sidecar_beside
from forwardpass.errors import ArtifactError

__all__ = ["FileSummary", "Unreadable", "Validation", "validate"]


class FileSummary(Struct, frozen=True, kw_only=True):
    """What a file is. Values are the file's own, as they stand there, sound or not."""

    file: str
    kind: Kind
    run_id: Any
    status: Any
    ranks: Any
    """The rank of a rank's file, the source ranks of a merged one."""
    groups: int | None
    """Points that were measured."""
    expected_points: Any
    protocol: bool
    """Whether it says how it was measured; files of ai-dynamo 1.6.1 and older do not."""
    engine: bool
    bytes: int


class Unreadable(Struct, frozen=True):
    """A file that is no artifact."""

    file: str
    reason: str


class Validation(Struct):
    """What was found in all files."""

    files: list[FileSummary] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    total: int = 0
    """Problems of the levels that were asked for; those beyond 10,000 of one set are not listed."""
    unreadable: list[Unreadable] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What is no problem and should be known."""


def validate(paths: Sequence[Path], *, strict: bool = False) -> Validation:
    """Return what is wrong with files: rank files of one run are checked as a set, others each by itself.

    A merged file is also held against the sidecar beside it. ``strict`` adds a strict reader's rules.
    """
    levels = tuple(Level) if strict else (Level.MERGE, Level.FORMAT)
    result = Validation()
    runs: dict[str, list[Path]] = {}
    for path in dict.fromkeys(paths):
        try:
            file = read_artifact(path)
            result.files.append(_summary(file, path))
            if file.kind is Kind.RANK:
                runs.setdefault(str(file.head.get("run_id")), []).append(path)
            else:
                _add(result, _findings(file, path, result.notes), levels)
        except ArtifactError as error:
            result.unreadable.append(Unreadable(str(path), str(error)))
    for group in runs.values():
        try:
            _add(result, examine([PathSource(path) for path in group], full=True).findings, levels)
        except ArtifactError as error:
            result.unreadable.append(Unreadable(str(group[0]), str(error)))
    return result


def _add(result: Validation, findings: Findings, levels: tuple[Level, ...]) -> None:
    listed = findings.of(*levels)
    result.problems += listed
    beyond = findings.total - len(findings.problems)
    result.total += len(listed) + beyond


def _findings(file: ArtifactFile, path: Path, notes: list[str]) -> Findings:
    if file.kind is Kind.PROBE:
        findings = Findings()
        fit(file.head, Sidecar, (), findings.misfit(file.name, lambda _: rules.PROBE_FORMAT))
        return findings
    findings = check_merged(file)
    beside = sidecar_path(path)
    sidecar = sidecar_beside(beside, file.head)
    if isinstance(sidecar, NoSidecar):
        if sidecar.mismatch:
            where = ("run_id",)
            value = file.head.get("run_id")
            findings.add(rules.PROBE_PAIR, file.name, where, value, f"that of {beside.name} beside it")
        elif "engine" in file.head:
            notes.append(f"{file.name}: {sidecar.reason}")
    return findings


def _summary(file: ArtifactFile, path: Path) -> FileSummary:
    head = file.head
    dp, coverage = (value if isinstance(value := head.get(name), dict) else {} for name in ("dp", "coverage"))
    return FileSummary(
        file=file.name,
        kind=file.kind,
        run_id=head.get("run_id"),
        status=head.get("status"),
        ranks=dp.get("rank") if file.kind is Kind.RANK else dp.get("source_ranks"),
        groups=None if file.groups is None else len(file.groups),
        expected_points=coverage.get("expected_points"),
        protocol="measurement_protocol" in head,
        engine="engine" in head,
        bytes=path.stat().st_size,
    )
