"""Knows the rules about a merged file: that it is what its ranks' files merge into, as far as it can tell."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from forwardpass.artifact import rules
from forwardpass.artifact.blocks import MergedRow
from forwardpass.artifact.check_evidence import EvidenceCheck
from forwardpass.artifact.check_groups import Groups, are_all, check_groups
from forwardpass.artifact.check_head import (
    check_contract_strictly,
    check_outcome,
    check_run,
    merged_head,
)
from forwardpass.artifact.check_ledger import (
    check_ledger,
    check_ledger_strictly,
    check_uses,
    check_uses_strictly,
)
from forwardpass.artifact.differences import differences
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.model import MergedArtifact
from forwardpass.artifact.paths_to_rules import row_rule
from forwardpass.artifact.read import GROUPS, RESULTS, ArtifactFile, decode_part, same_bytes
from forwardpass.artifact.rules import Rule
from forwardpass.artifact.shape import Path, fit, found
from forwardpass.errors import MalformedArtifact

__all__ = ["check_merged"]

_strict_row_decoder = msgspec.json.Decoder(MergedRow)


class _RowText(Struct):
    point: dict[str, Any]
    fpms: list[Raw]
    kv_seed_regime: Any = UNSET


_row_decoder = msgspec.json.Decoder(_RowText)


def check_merged(file: ArtifactFile) -> Findings:
    """Return what is wrong with a merged file, the strict reader's rules included.

    Raises :class:`~forwardpass.errors.MalformedArtifact` for text that is no JSON.
    """
    try:
        check = _Merged(file)
        check.head_rules()
        check.rows()
        check.ledgers()
    except RecursionError as error:
        raise MalformedArtifact(file.name, "nested too deeply") from error
    return check.findings


class _Merged:
    def __init__(self, file: ArtifactFile) -> None:
        self.findings = Findings()
        self._file = file
        self._head: MergedArtifact = merged_head(file, self.findings)
        self._size = self._head.dp.global_size
        protocol = self._head.measurement_protocol
        self._promised = protocol is not UNSET and protocol.execution_evidence is not UNSET
        self._groups = Groups()
        self._regimes: dict[tuple[int, int], str] = {}
        """Of a rank's pass in a group, as its measurement says."""

    def head_rules(self) -> None:
        """Check everything but results and ledgers."""
        file, head = self._file, self._head
        check_run(file, self.findings)
        check_contract_strictly(file, self.findings)
        check_outcome(file, head, self.findings, ranks=self._size)
        self._dp()
        evidence = EvidenceCheck(
            file.name,
            self.findings,
            file.head.get("grid_digest"),
            head.measurement_protocol is not UNSET,
            self._promised,
            full=True,
        )
        self._groups = check_groups(file, self._size, evidence, self.findings)
        self._timing()
        if head.worker_probe_path is not UNSET and head.engine is UNSET:
            self._say(rules.MERGED, ("worker_probe_path",), head.worker_probe_path, "nothing without engine")

    def rows(self) -> None:
        """Check that the results are the groups' passes, by id and then by rank."""
        groups, rows = self._groups, self._file.results or []
        order = sorted(range(len(groups.ids)), key=groups.ids.__getitem__)
        self._regimes = {
            (rank, at): preparation.kv_seed_regime
            for rank, uses in groups.preparations.items()
            for at, preparation, _ in uses
        }
        places = ((at, rank) for at in order for rank in range(self._size))
        for row, (text, (at, rank)) in enumerate(zip(rows, places, strict=False)):
            self._row(row, text, at, rank)

    def ledgers(self) -> None:
        """Check the ledger of every rank."""
        ledgers = self._head.rank_warmup_evidence
        here = "rank_warmup_evidence"
        if not self._promised:
            if ledgers is not UNSET:
                self._say(rules.LEDGER_UNASKED, (here,), "there", "nothing: no execution_evidence")
            return
        names = [] if ledgers is UNSET else list(ledgers)
        numbers = [
            int(name) if name.isascii() and name.isdigit() and len(name) < 10 else -1 for name in names
        ]
        if not are_all(numbers, self._size):
            there = UNSET if ledgers is UNSET else names
            self._say(rules.LEDGER, (here,), there, "a ledger of each rank, in order")
        for rank, (name, ledger) in zip(numbers, ({} if ledgers is UNSET else ledgers).items(), strict=True):
            path: Path = (here, name)
            check_ledger(ledger, self._file.name, path, rank, self.findings)
            points = len(self._groups.ids)
            check_ledger_strictly(ledger, self._file.name, path, rank, points, self.findings)
            if rank in self._head.dp.source_ranks:
                uses = list(self._groups.uses(rank))
                check_uses(ledger, uses, self._file.name, rank, self.findings)
                check_uses_strictly(ledger, uses, self._file.name, rank, self.findings)

    def _dp(self) -> None:
        dp = self._head.dp
        if not are_all(dp.ranks, dp.global_size):
            words = f"0 … {dp.global_size - 1}, all {dp.global_size} ranks"
            self._say(rules.DP, ("dp", "ranks"), list(dp.ranks), words)
        sources = list(dp.source_ranks)
        if not sources or sources != sorted(set(sources)) or sources[-1] >= dp.global_size:
            self._say(rules.DP, ("dp", "source_ranks"), sources, "some of the ranks, in order")
        if dp.managed_size != len(sources):
            words = f"{len(sources)}, the source_ranks"
            self._say(rules.DP, ("dp", "managed_size"), dp.managed_size, words)
        if len(self._head.rank_files) != len(sources):
            self._say(
                rules.MERGED, ("rank_files",), list(self._head.rank_files), "one file of each source rank"
            )

    def _timing(self) -> None:
        timing = self._head.timing
        elapsed, each = timing.benchmark_elapsed_seconds, timing.rank_benchmark_elapsed_seconds
        if list(each) != [str(rank) for rank in self._head.dp.source_ranks]:
            here = ("timing", "rank_benchmark_elapsed_seconds")
            self._say(rules.MERGED, here, each, "seconds of each source rank, in order")
        elif each and elapsed != max(each.values()):
            here = ("timing", "benchmark_elapsed_seconds")
            self._say(rules.TIMING, here, elapsed, f"{max(each.values())!r}, the slowest rank's")
        measured = sum(self._groups.walls)
        given = timing.measured_iteration_seconds
        if not math.isclose(given, measured, rel_tol=1e-9, abs_tol=1e-12):
            here = ("timing", "measured_iteration_seconds")
            self._say(rules.TIMING, here, given, f"{measured!r}, the sum of the groups' wall times")

    def _row(self, at: int, text: Raw, group: int, rank: int) -> None:
        path: Path = (RESULTS, at)
        try:
            _strict_row_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = decode_part(text, self._file.name, f"{RESULTS}[{at}]")
            fit(value, MergedRow, path, self.findings.misfit(self._file.name, row_rule))
        try:
            row = _row_decoder.decode(text)
        except msgspec.MsgspecError:
            return
        regime = self._regimes.get((rank, group), row.kv_seed_regime)
        if row.kv_seed_regime is not UNSET and row.kv_seed_regime != regime:
            where = (*path, "kv_seed_regime")
            words = f"{regime!r}, as its measurement says"
            self._say(rules.CONSUMER_PREPARATION, where, row.kv_seed_regime, words)
        wanted = {**self._groups.points[group], "dp_rank": rank}
        if row.point != wanted:
            self._differ(row.point, wanted, (*path, "point"), rank)
        passes = self._groups.fpms[group].get(rank)
        if passes is None or (len(passes) == len(row.fpms) and all(map(same_bytes, row.fpms, passes))):
            return
        ours = [decode_part(one, self._file.name, RESULTS) for one in row.fpms]
        theirs = [decode_part(one, self._file.name, GROUPS) for one in passes]
        if ours != theirs:
            self._differ(ours, theirs, (*path, "fpms"), rank)

    def _differ(self, ours: Any, theirs: Any, path: Path, rank: int) -> None:
        for where, mine, wanted in differences(ours, theirs, path):
            self.findings.add(
                rules.RESULTS,
                self._file.name,
                where,
                mine,
                f"{found(wanted)}, as its group has",
                ranks=[rank],
                values=(mine, wanted),
            )

    def _say(self, rule: Rule, path: Path, value: Any, accepted: str) -> None:
        self.findings.add(rule, self._file.name, path, value, accepted)
