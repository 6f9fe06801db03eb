"""Knows the rules about one rank's file beside the first rank's: what must be the same, and its results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct

from forwardpass.artifact import rules
from forwardpass.artifact.blocks import ResultRow
from forwardpass.artifact.check_groups import Groups
from forwardpass.artifact.differences import differences
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.paths_to_rules import row_rule
from forwardpass.artifact.read import GROUPS, RESULTS, ArtifactFile, decode_part, same_bytes
from forwardpass.artifact.rules import Rule
from forwardpass.artifact.shape import Path, fit, found

__all__ = ["AGREED", "check_agreement", "check_groups_equal", "check_protocol", "check_results"]

AGREED = ("status", "coverage", "stop_reason", "run_id", "grid_digest")
"""What every rank's file must say alike, in the order in which it is asked."""


class _RowText(Struct):
    point: dict[str, Any]
    fpms: list[Raw]
    kv_seed_regime: Any = UNSET


_row_decoder = msgspec.json.Decoder(_RowText)
_strict_row_decoder = msgspec.json.Decoder(ResultRow)


def check_protocol(
    file: ArtifactFile, reference: ArtifactFile, ranks: Sequence[int], findings: Findings
) -> None:
    """Ask whether a rank was measured by the same protocol as the first rank."""
    _compare(rules.PROTOCOL, "measurement_protocol", file, reference, ranks, findings)


def check_agreement(
    file: ArtifactFile, reference: ArtifactFile, ranks: Sequence[int], findings: Findings
) -> None:
    """Ask whether a rank's file tells of the same run, ended in the same way."""
    for name in AGREED:
        _compare(rules.RANK_AGREEMENT, name, file, reference, ranks, findings)


def _stated(file: ArtifactFile, name: str) -> Any:
    """Return what a file says, or what it means by saying nothing."""
    if name == "status" and name not in file.head:
        return "complete" if file.head.get("valid") is True else "failed"
    return file.head.get(name, None if name == "stop_reason" else UNSET)


def check_groups_equal(
    file: ArtifactFile, reference: ArtifactFile, ranks: Sequence[int], findings: Findings
) -> None:
    """Ask whether the groups are the first rank's, value for value."""
    if file.groups is reference.groups or file.groups is None or reference.groups is None:
        return
    if len(file.groups) != len(reference.groups):
        there, wanted = f"{len(file.groups)} groups", f"{len(reference.groups)}, as rank {ranks[0]} has"
        findings.add(rules.GROUPS_EQUAL, file.name, (GROUPS,), there, wanted, ranks=ranks)
    for at, (ours, theirs) in enumerate(zip(file.groups, reference.groups, strict=False)):
        if same_bytes(ours, theirs):
            continue
        one = decode_part(ours, file.name, f"{GROUPS}[{at}]")
        other = decode_part(theirs, reference.name, f"{GROUPS}[{at}]")
        for path, mine, first in differences(one, other, (GROUPS, at)):
            findings.add(
                rules.GROUPS_EQUAL, file.name, path, mine, f"{found(first)}, as rank {ranks[0]} has",
                ranks=ranks, values=(first, mine),
            )  # fmt: skip


def check_results(
    file: ArtifactFile, groups: Groups, rank: int, findings: Findings, *, full: bool = False
) -> dict[int, Any]:
    """Ask whether a rank's results are its passes in the groups; return id -> KV regime of rows with one."""
    check = _Results(file, groups, rank, findings, full)
    for at, row in enumerate(file.results or ()):
        check.row(at, row)
    check.whole()
    return check.regimes


class _Results:
    def __init__(self, file: ArtifactFile, groups: Groups, rank: int, findings: Findings, full: bool) -> None:
        self.regimes: dict[int, Any] = {}
        self._file, self._groups, self._rank = file, groups, rank
        self._findings, self._full = findings, full
        self._index = {number: at for at, number in enumerate(groups.ids)}
        self._seen: set[int] = set()

    def row(self, at: int, text: Raw) -> None:
        path: Path = (RESULTS, at)
        row = self._decoded(text, path)
        if row is None:
            return
        number = row.point.get("benchmark_id")
        where = (*path, "point", "benchmark_id")
        if type(number) is not int or number not in self._index:
            self._say(rules.RESULTS, where, number, "the id of a group")
            return
        if number in self._seen:
            self._say(rules.RESULTS, where, number, "an id of its own")
        self._seen.add(number)
        if row.kv_seed_regime is not UNSET:
            regime = row.kv_seed_regime
            self.regimes[number] = sys.intern(regime) if type(regime) is str else regime
        if self._full and self._index[number] != at:
            self._say(rules.ROW_ORDER, where, number, "the order of the groups")
        point = self._groups.points[self._index[number]]
        if row.point != point:
            self._differ(row.point, point, (*path, "point"))
        self._passes(row.fpms, self._groups.fpms[self._index[number]].get(self._rank), path)

    def whole(self) -> None:
        if self._file.results is None:
            return
        for number in self._index:
            if number not in self._seen:
                self._say(rules.RESULTS, (RESULTS,), f"no result of point {number}", "one for each group")

    def _decoded(self, text: Raw, path: Path) -> _RowText | None:
        where = f"{RESULTS}[{path[1]}]"
        try:
            if self._full:
                _strict_row_decoder.decode(text)
            return _row_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = decode_part(text, self._file.name, where)
            note = self._findings.misfit(self._file.name, row_rule, [self._rank])
            fit(value, ResultRow, path, note)
        try:
            return _row_decoder.decode(text)
        except msgspec.MsgspecError:
            return None

    def _passes(self, passes: list[Raw], wanted: list[Raw] | None, path: Path) -> None:
        if len(passes) != 1:
            self._say(rules.RESULTS, (*path, "fpms"), f"{len(passes)} passes", "one")
        if wanted is None or (len(passes) == len(wanted) and all(map(same_bytes, passes, wanted))):
            return  # without one in the group a rule has said so
        ours = [decode_part(one, self._file.name, RESULTS) for one in passes]
        theirs = [decode_part(one, self._file.name, GROUPS) for one in wanted]
        if ours != theirs:
            self._differ(ours, theirs, (*path, "fpms"))

    def _differ(self, ours: Any, theirs: Any, path: Path) -> None:
        for where, mine, wanted in differences(ours, theirs, path):
            self._findings.add(
                rules.RESULTS, self._file.name, where, mine, f"{found(wanted)}, as its group has",
                ranks=[self._rank], values=(mine, wanted),
            )  # fmt: skip

    def _say(self, rule: Rule, path: Path, value: Any, accepted: str) -> None:
        self._findings.add(rule, self._file.name, path, value, accepted, ranks=[self._rank])


def _compare(
    rule: Rule,
    name: str,
    file: ArtifactFile,
    reference: ArtifactFile,
    ranks: Sequence[int],
    findings: Findings,
) -> None:
    ours, theirs = _stated(file, name), _stated(reference, name)
    for path, mine, first in differences(ours, theirs, (name,)):
        findings.add(
            rule,
            file.name,
            path,
            mine,
            f"{found(first)}, as rank {ranks[0]} has",
            ranks=ranks,
            values=(first, mine),
        )
