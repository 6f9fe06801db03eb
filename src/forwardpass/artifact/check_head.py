"""Knows the rules about one file as a whole: how its run ended, and whether its counts say the same."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec import UNSET

from forwardpass.artifact import rules
from forwardpass.artifact.blocks import Status
from forwardpass.artifact.differences import differences
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.model import MergedArtifact, RankArtifact
from forwardpass.artifact.paths_to_rules import head_rule, merged_head_rule
from forwardpass.artifact.read import GROUPS, RESULTS, ArtifactFile
from forwardpass.artifact.rules import Rule
from forwardpass.artifact.shape import fit, found
from forwardpass.bench.evidence import EXECUTION_EVIDENCE

__all__ = [
    "check_contract",
    "check_contract_strictly",
    "check_outcome",
    "check_run",
    "check_timing",
    "dp_size",
    "ended",
    "merged_head",
    "rank_head",
]

_GRANTED: dict[str, Any] = {"stop_reason": None, "error": None, "skipped_points": [], "missing_phases": []}
"""What a merge, the reference's too, reads out of a key that is missing; the format wants it there."""
SLACK = 1e-12
"""By how much, in seconds, what was measured may exceed what elapsed."""


def rank_head(file: ArtifactFile, findings: Findings) -> RankArtifact:
    """Return the typed view of a rank's file without its rows; misfits are noted."""
    ranks = [rank] if type(rank := _dp(file).get("rank")) is int else []
    document = _without_rows(file, findings)
    return fit(document, RankArtifact, (), findings.misfit(file.name, head_rule, ranks))


def merged_head(file: ArtifactFile, findings: Findings) -> MergedArtifact:
    """Return the typed view of a merged file without its rows; misfits are noted."""
    document = _without_rows(file, findings)
    return fit(document, MergedArtifact, (), findings.misfit(file.name, merged_head_rule))


def dp_size(file: ArtifactFile) -> int | None:
    """Return how many ranks a rank's file says there are, ``None`` if it is no number of at least 1."""
    size = _dp(file).get("size")
    return size if type(size) is int and size >= 1 else None


def ended(head: RankArtifact | MergedArtifact) -> Status:
    """Return how the run ended; files from before that was written down say only whether they are valid."""
    if head.status is not UNSET:
        return head.status
    return Status.COMPLETE if head.valid else Status.FAILED


def check_run(file: ArtifactFile, findings: Findings) -> None:
    """Ask for the two ids by which files belong together."""
    for name, words in (("run_id", "the id of a run"), ("grid_digest", "the digest of a grid")):
        value = file.head.get(name, UNSET)
        if not value or value is UNSET:
            findings.add(rules.RUN, file.name, (name,), value, words)


def check_contract(file: ArtifactFile, head: RankArtifact, findings: Findings) -> bool:
    """Ask whether warm-ups are recorded exactly if the protocol promises it; return whether it does."""
    protocol = head.measurement_protocol
    promised = protocol is not UNSET and protocol.execution_evidence is not UNSET
    if promised and head.warmup_evidence is UNSET:
        findings.add(
            rules.LEDGER, file.name, ("warmup_evidence",), UNSET, "a ledger, as the protocol promises"
        )
    if not promised and "warmup_evidence" in file.head:
        value = file.head["warmup_evidence"]
        findings.add(
            rules.LEDGER_UNASKED,
            file.name,
            ("warmup_evidence",),
            value,
            "nothing: the protocol has no execution_evidence",
        )
    return promised


def check_contract_strictly(file: ArtifactFile, findings: Findings) -> None:
    """Ask whether the promise is word for word the documented one: a strict reader compares the whole of
    it.
    """
    protocol = file.head.get("measurement_protocol")
    promise = protocol.get("execution_evidence", UNSET) if isinstance(protocol, dict) else UNSET
    for path, there, wanted in differences(promise, msgspec.to_builtins(EXECUTION_EVIDENCE)):
        if promise is not UNSET:
            where = ("measurement_protocol", "execution_evidence", *path)
            findings.add(rules.CONSUMER_PROTOCOL, file.name, where, there, found(wanted))


def check_outcome(
    file: ArtifactFile, head: RankArtifact | MergedArtifact, findings: Findings, *, ranks: int = 1
) -> None:
    """Ask whether status, coverage, lists and verdicts agree. A merged file counts ``ranks`` times."""
    outcome = _Outcome(file, head, findings)
    outcome.coverage(ranks)
    status = ended(head)
    if status is Status.COMPLETE:
        outcome.complete()
    elif status is Status.PARTIAL:
        outcome.partial()
    else:
        outcome.failed()
    outcome.timing_verdict()


class _Outcome:
    """The questions about one file, each noted where its answer stands."""

    def __init__(self, file: ArtifactFile, head: RankArtifact | MergedArtifact, findings: Findings) -> None:
        self._file, self._head, self._findings = file, head, findings
        self._skips = len(head.skipped_points)

    def coverage(self, ranks: int) -> None:
        counted = self._head.coverage
        if counted.completed_points + counted.skipped_points > counted.expected_points:
            self._say(rules.COVERAGE, "coverage", "no more completed and skipped points than expected ones")
        rows = self._file.results
        if rows is not None and len(rows) != counted.completed_points:
            self._count(RESULTS, len(rows), counted.completed_points)
        groups = self._file.groups
        if groups is not None and len(groups) * ranks != counted.completed_points:
            self._count(GROUPS, len(groups), counted.completed_points // ranks)
        if self._skips * ranks != counted.skipped_points:
            self._count("skipped_points", self._skips, counted.skipped_points // ranks)

    def complete(self) -> None:
        self._wants(rules.OUTCOME, "valid", self._head.valid is True, "true: it is complete")
        self._wants(rules.OUTCOME, "usable", self._head.usable in (UNSET, True), "true: it is complete")
        self._wants(rules.OUTCOME, "stop_reason", self._head.stop_reason is None, "null: it is complete")
        counted = self._head.coverage
        whole = counted.completed_points == counted.expected_points
        self._wants(rules.OUTCOME, "coverage", whole, "all expected points completed: it is complete")
        self._nothing_amiss("it is complete")

    def partial(self) -> None:
        self._wants(rules.OUTCOME, "valid", self._head.valid is False, "false: it is partial")
        self._wants(rules.OUTCOME, "usable", self._head.usable is True, "true: partial files are usable")
        timeout = self._head.stop_reason == "timeout"
        self._wants(rules.OUTCOME, "stop_reason", timeout, '"timeout": it is partial')
        counted = self._head.coverage
        cut = counted.completed_points < counted.expected_points
        self._wants(rules.OUTCOME, "coverage", cut, "fewer completed than expected points: it is partial")
        self._nothing_amiss("it is partial")

    def failed(self) -> None:
        self._say(rules.STATUS, "status", '"complete" or "partial": a failed run is of no use')
        self._wants(rules.VERDICT, "valid", self._head.valid is False, "false: it failed")
        self._wants(rules.VERDICT, "usable", self._head.usable in (UNSET, False), "false: it failed")

    def timing_verdict(self) -> None:
        timing = self._head.timing
        elapsed, stamps = timing.benchmark_elapsed_seconds, (timing.started_at, timing.completed_at)
        measured = timing.measured_iteration_seconds
        sound = None not in stamps and elapsed is not None and measured <= elapsed + SLACK
        self._wants(
            rules.VERDICT,
            "timing_valid",
            self._head.timing_valid is sound,
            f"{str(sound).lower()}, as the timing says",
        )

    def _nothing_amiss(self, why: str) -> None:
        self._wants(rules.OUTCOME, "skipped_points", not self._skips, f"an empty list: {why}")
        self._wants(rules.OUTCOME, "missing_phases", not self._head.missing_phases, f"an empty list: {why}")
        self._wants(rules.OUTCOME, "error", self._head.error is None, f"null: {why}")

    def _wants(self, rule: Rule, name: str, answer: bool, accepted: str) -> None:
        if not answer:
            self._say(rule, name, accepted)

    def _count(self, name: str, there: int, wanted: int) -> None:
        words = f"{found(wanted)}, as the coverage says"
        self._findings.add(rules.COUNTS, self._file.name, (name,), f"{there} entries", words)

    def _say(self, rule: Rule, name: str, accepted: str) -> None:
        value = self._file.head.get(name, UNSET)
        self._findings.add(rule, self._file.name, (name,), value, accepted)


def check_timing(file: ArtifactFile, head: RankArtifact, measured: float, findings: Findings) -> None:
    """Ask whether a rank's timing is whole, and is the sum of the groups' wall times (``measured``)."""
    timing, name = head.timing, file.name
    for key in ("started_at", "completed_at"):
        if getattr(timing, key) is None:
            findings.add(rules.TIMING, name, ("timing", key), None, "a time")
    elapsed = timing.benchmark_elapsed_seconds
    if elapsed is None:
        findings.add(rules.TIMING, name, ("timing", "benchmark_elapsed_seconds"), None, "seconds")
    given = timing.measured_iteration_seconds
    at = ("timing", "measured_iteration_seconds")
    if not math.isclose(given, measured, rel_tol=1e-9, abs_tol=1e-12):
        findings.add(rules.TIMING, name, at, given, f"{measured!r}, the sum of the groups' wall times")
    elif elapsed is not None and given > elapsed + SLACK:
        findings.add(rules.TIMING, name, at, given, f"at most the {elapsed!r} that elapsed")


def _without_rows(file: ArtifactFile, findings: Findings) -> dict[str, Any]:
    """Return the head without its rows, and with what a merge takes for granted where it is missing."""
    empty: dict[str, Any] = {}
    for name, default in _GRANTED.items():
        if name not in file.head:
            findings.add(rules.FORMAT, file.name, (name,), UNSET, f"{found(default)}, if there is nothing")
            empty[name] = default
    if file.results is not None:
        empty[RESULTS] = []
    if file.groups is not None:
        empty[GROUPS] = []
    return {**file.head, **empty}


def _dp(file: ArtifactFile) -> dict[str, Any]:
    dp = file.head.get("dp")
    return dp if isinstance(dp, dict) else {}
