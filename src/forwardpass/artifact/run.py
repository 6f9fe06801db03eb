"""Knows how the files of the ranks of one run are gone through, one at a time, and what is kept of each.

A file is dropped when it was checked: what stays is its head, its warm-ups and the KV regimes of its rows.
The groups stay once, as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import UNSET, Struct, UnsetType, field

from forwardpass.artifact import rules
from forwardpass.artifact.check_evidence import EvidenceCheck
from forwardpass.artifact.check_groups import Groups, check_groups
from forwardpass.artifact.check_head import (
    check_contract,
    check_contract_strictly,
    check_outcome,
    check_run,
    check_timing,
    dp_size,
    rank_head,
)
from forwardpass.artifact.check_ledger import (
    check_ledger,
    check_ledger_strictly,
    check_uses,
    check_uses_strictly,
)
from forwardpass.artifact.check_rank import (
    check_agreement,
    check_groups_equal,
    check_protocol,
    check_results,
)
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.identity import compare_engines
from forwardpass.artifact.model import RankArtifact
from forwardpass.artifact.read import (
    ArtifactFile,
    Kind,
    parse_artifact,
    rank_hint,
    read_artifact,
)
from forwardpass.artifact.shape import found
from forwardpass.bench.evidence import RecordedWarmups, UnavailableWarmups, WarmupLedger
from forwardpass.errors import MalformedArtifact, UnknownSchema

__all__ = ["BytesSource", "PathSource", "Rank", "RankSource", "Run", "examine"]


class RankSource(Protocol):
    """Something that gives one rank's file."""

    name: str

    def hint(self) -> int:
        """Return the rank that it seems to be of, for the order of reading."""
        ...

    def load(self, beside: ArtifactFile | None) -> ArtifactFile:
        """Return the file; see :func:`~forwardpass.artifact.read.read_artifact`."""
        ...


class PathSource:
    """A rank's file on the disk."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._path = path

    def hint(self) -> int:
        """Return the rank that its beginning names."""
        return rank_hint(self._path)

    def load(self, beside: ArtifactFile | None) -> ArtifactFile:
        """Read it."""
        return read_artifact(self._path, beside=beside)


class BytesSource:
    """A rank's file in memory."""

    def __init__(self, name: str, data: bytes, rank: int = 0) -> None:
        self.name = name
        self._data, self._rank = data, rank

    def hint(self) -> int:
        """Return the rank that was given."""
        return self._rank

    def load(self, beside: ArtifactFile | None) -> ArtifactFile:
        """Parse it."""
        return parse_artifact(self._data, self.name, beside=beside)


class Rank(Struct):
    """What is kept of one rank's file."""

    rank: int
    name: str
    head: dict[str, Any]
    ledger: WarmupLedger | UnsetType = UNSET
    regimes: dict[int, Any] = field(default_factory=dict)
    """Point -> KV regime, where the file names one."""


class Run(Struct):
    """The files of one run, gone through."""

    reference: ArtifactFile
    """The lowest rank's, without its results."""
    size: int | None
    ranks: list[Rank]
    groups: Groups
    findings: Findings
    promised: bool
    """Whether the protocol promises evidence of executions and warm-ups."""


def examine(
    sources: Sequence[RankSource], *, expected: Sequence[int] | None = None, full: bool = False
) -> Run:
    """Go through at least one file in the order of ranks, and check all that a merge asks.

    ``expected`` are the ranks that the sources must be of; without it their own ranks are taken. ``full``
    asks for the format and for a strict reader's rules as well. Raises what reading raises, nothing for what
    is wrong in the files (that is in ``findings``), and ``ValueError`` for not as many ranks as files.
    """
    if expected is not None:
        if len(expected) != len(sources):
            raise ValueError(f"{len(sources)} files for {len(expected)} ranks")
        return _examine(sources, expected, full)
    order = sorted(sources, key=lambda source: (source.hint(), source.name))
    run = _examine(order, None, full)
    by_rank = sorted(range(len(order)), key=lambda at: (run.ranks[at].rank, order[at].name))
    if by_rank != sorted(by_rank):  # the hints were wrong
        run = _examine([order[at] for at in by_rank], None, full)
    return run


def _examine(sources: Sequence[RankSource], expected: Sequence[int] | None, full: bool) -> Run:
    try:
        return _gone_through(sources, expected, full)
    except RecursionError as error:
        raise MalformedArtifact(sources[0].name, "this or another rank's is nested too deeply") from error


def _gone_through(sources: Sequence[RankSource], expected: Sequence[int] | None, full: bool) -> Run:
    first = sources[0].load(None)
    findings = Findings()
    fold = _Fold(first, findings, full)
    fold.add(first, None if expected is None else expected[0])
    first.results = None
    for at, source in enumerate(sources[1:], start=1):
        fold.add(source.load(first), None if expected is None else expected[at])
    fold.engines()
    fold.warmups()
    return fold.run


class _Fold:
    """The walk over the files."""

    def __init__(self, reference: ArtifactFile, findings: Findings, full: bool) -> None:
        self.run = Run(reference, dp_size(reference), [], Groups(), findings, False)
        self._full, self._findings = full, findings

    def add(self, file: ArtifactFile, expected: int | None) -> None:
        """Check one file beside the first."""
        if file.kind is not Kind.RANK:
            raise UnknownSchema(file.name, file.kind.value, 2, "the file of a rank")
        run, findings = self.run, self._findings
        head = rank_head(file, findings)
        rank = head.dp.rank
        is_first = not run.ranks
        ranks = (rank,) if is_first else (run.ranks[0].rank, rank)
        if is_first:
            check_run(file, findings)
        else:
            check_protocol(file, run.reference, ranks, findings)
        promised = check_contract(file, head, findings)
        if promised and head.warmup_evidence is not UNSET:
            check_ledger(head.warmup_evidence, file.name, ("warmup_evidence",), rank, findings)
        check_outcome(file, head, findings)
        if is_first:
            self._groups(file, head, promised)
        else:
            check_agreement(file, run.reference, ranks, findings)
        self._dp(file, rank, expected, ranks)
        if not is_first:
            check_groups_equal(file, run.reference, ranks, findings)
        check_timing(file, head, sum(run.groups.walls), findings)
        kept = Rank(rank, file.name, file.head, head.warmup_evidence)
        kept.regimes = check_results(file, run.groups, rank, findings, full=self._full)
        run.ranks.append(kept)

    def engines(self) -> None:
        """Compare the engine blocks of all ranks."""
        engines = [(rank.rank, rank.head.get("engine")) for rank in self.run.ranks]
        names = {rank.rank: rank.name for rank in self.run.ranks}
        for one in compare_engines(engines):
            path = ("engine", *one.path) if one.path else ("engine",)
            value = "other keys" if not one.path else one.values[1]
            words = f"{found(one.values[0])}, as rank {one.ranks[0]} has"
            self._findings.add(
                rules.ENGINE_IDENTITY, names[one.ranks[1]], path, value, words,
                ranks=one.ranks, values=one.values,
            )  # fmt: skip

    def warmups(self) -> None:
        """Ask of each rank's points which of its warm-ups went before them."""
        run, name = self.run, self.run.reference.name
        if not run.promised:
            return
        for rank in run.ranks:
            ledger = rank.ledger
            if not isinstance(ledger, RecordedWarmups | UnavailableWarmups):
                continue
            uses = list(run.groups.uses(rank.rank))
            check_uses(ledger, uses, name, rank.rank, self._findings)
            if self._full:
                points = len(run.groups.ids)
                path = ("warmup_evidence",)
                check_ledger_strictly(ledger, rank.name, path, rank.rank, points, self._findings)
                check_uses_strictly(ledger, uses, name, rank.rank, self._findings)
                self._regimes(rank, uses)

    def _groups(self, file: ArtifactFile, head: RankArtifact, promised: bool) -> None:
        evidence = EvidenceCheck(
            file.name,
            self._findings,
            file.head.get("grid_digest"),
            head.measurement_protocol is not UNSET,
            promised,
            self._full,
        )
        self.run.groups = check_groups(file, self.run.size, evidence, self._findings)
        self.run.promised = promised
        if self._full:
            check_contract_strictly(file, self._findings)

    def _dp(self, file: ArtifactFile, rank: int, expected: int | None, ranks: Sequence[int]) -> None:
        run, at = self.run, ("dp", "rank")
        if expected is not None and rank != expected:
            self._findings.add(rules.DP, file.name, at, rank, f"{expected}, its rank", ranks=[rank])
        elif any(other.rank == rank for other in run.ranks):
            self._findings.add(rules.DP, file.name, at, rank, "a rank of its own", ranks=[rank])
        elif run.size is not None and rank >= run.size:
            self._findings.add(rules.DP, file.name, at, rank, f"0 … {run.size - 1}", ranks=[rank])
        size = dp_size(file)
        if run.ranks and size != run.size:
            words = f"{run.size}, as rank {ranks[0]} has"
            values = (run.size, size)
            self._findings.add(rules.DP, file.name, ("dp", "size"), size, words, ranks=ranks, values=values)

    def _regimes(self, rank: Rank, uses: Sequence[Any]) -> None:
        for path, preparation, _ in uses:
            regime = rank.regimes.get(self.run.groups.ids[path[1]])
            if preparation.kv_seed_regime != regime:
                self._findings.add(
                    rules.CONSUMER_PREPARATION, self.run.reference.name, (*path, "kv_seed_regime"),
                    preparation.kv_seed_regime, f"{regime!r}, as its row says", ranks=[rank.rank],
                )  # fmt: skip
