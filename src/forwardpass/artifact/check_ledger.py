"""Knows the rules about a rank's ledger of warm-ups, by itself and beside the points that it went before."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from forwardpass.artifact import rules
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.shape import Path
from forwardpass.bench.evidence import (
    PointPreparation,
    RecordedWarmups,
    UnavailableWarmups,
    ValidationStatus,
    WarmupKind,
    WarmupLedger,
    WarmupRecord,
    WarmupStatus,
)

__all__ = ["Use", "check_ledger", "check_ledger_strictly", "check_uses", "check_uses_strictly"]

Use = tuple[Path, PointPreparation, int | None]
"""Where a point's preparation stands, what it says, and the first pass of the point if it is known."""


def check_ledger(ledger: WarmupLedger, file: str, path: Path, rank: int, findings: Findings) -> None:
    """Ask whether each attempt of a ledger agrees with itself."""
    for at, one in enumerate(ledger.records):
        here = (*path, "records", at)
        begin, end, count = one.forward_index_start, one.forward_index_end, one.observed_forward_count

        def say(name: str, value: object, accepted: str, here: Path = here) -> None:
            findings.add(rules.LEDGER, file, (*here, name), value, accepted, ranks=[rank])

        validation = one.validation.status
        if validation is ValidationStatus.PASSED and one.status is not WarmupStatus.COMPLETED:
            say("status", one.status, '"completed": its validation passed')
        if validation is ValidationStatus.FAILED and one.status is not WarmupStatus.FAILED:
            say("status", one.status, '"failed": its validation failed')
        if one.status is WarmupStatus.COMPLETED and end is None:
            say("forward_index_end", end, "a pass: it is completed")
        if begin is not None and end is not None:
            if end < begin:
                say("forward_index_end", end, f"at least {begin}, where it began")
            elif count is not None and count != end - begin:
                say("observed_forward_count", count, f"{end - begin}, from its first to its last pass")


def check_ledger_strictly(
    ledger: WarmupLedger, file: str, path: Path, rank: int, points: int, findings: Findings
) -> None:
    """Ask what a strict reader asks of a ledger beside ``points`` results."""
    last_start, last_before = -1, 0
    for at, one in enumerate(ledger.records):
        here = (*path, "records", at)

        def say(name: str, value: object, accepted: str, here: Path = here) -> None:
            findings.add(rules.CONSUMER_LEDGER, file, (*here, name), value, accepted, ranks=[rank])

        running = one.status is WarmupStatus.RUNNING
        if running != (one.forward_index_end is None):
            say("forward_index_end", one.forward_index_end, "null exactly while it runs")
        begin, before = one.forward_index_start, one.completed_points_before
        if begin is None and not _may_have_no_pass(one):
            say("forward_index_start", begin, "a pass: only a replica may fail before its first")
        if begin is not None and begin < last_start:
            say("forward_index_start", begin, f"at least {last_start}, where the one before began")
        if before < last_before or before > points:
            say("completed_points_before", before, f"{last_before} … {points}")
        if one.kind is WarmupKind.GLOBAL and before:
            say("completed_points_before", before, "0: the global warm-up comes first")
        last_start = begin if begin is not None else last_start
        last_before = max(last_before, before)


def check_uses(
    ledger: WarmupLedger | None, uses: Iterable[Use], file: str, rank: int, findings: Findings
) -> None:
    """Ask whether the attempts that are said to have gone before each point are there, and were over.

    Without a ledger (a rank whose file was not read) there is nothing to ask.
    """
    if ledger is None:
        return
    over = _over_at(ledger.records)
    for path, preparation, first in uses:
        at = (*path, "warmup_records_before")
        count = preparation.warmup_records_before
        if isinstance(ledger, UnavailableWarmups):
            if count is not None:
                findings.add(
                    rules.LEDGER_USE, file, at, count, "null: the ledger is unavailable", ranks=[rank]
                )
            continue
        if count is None or count > len(ledger.records):
            words = f"at most {len(ledger.records)}, the attempts in the ledger"
            findings.add(rules.LEDGER_USE, file, at, count, words, ranks=[rank])
            continue
        running, end = over[count]
        if running is not None:
            words = f"no attempt that still runs (record {running} does)"
            findings.add(rules.LEDGER_USE, file, at, count, words, ranks=[rank])
        if first is not None and end > first:
            words = f"attempts that ended by pass {first}, the point's first (one ended at {end})"
            findings.add(rules.LEDGER_USE, file, at, count, words, ranks=[rank])


def check_uses_strictly(
    ledger: WarmupLedger | None, uses: Iterable[Use], file: str, rank: int, findings: Findings
) -> None:
    """Ask whether each point counts the attempts that began before it, and the points that did."""
    starts = [one.completed_points_before for one in ledger.records] if ledger is not None else []
    for position, (path, preparation, _) in enumerate(uses):
        before = preparation.completed_points_before
        if before != position:
            findings.add(
                rules.CONSUMER_PREPARATION,
                file,
                (*path, "completed_points_before"),
                before,
                f"{position}, the results before it",
                ranks=[rank],
            )
        if isinstance(ledger, RecordedWarmups):
            wanted = sum(start <= before for start in starts)
            if preparation.warmup_records_before not in (wanted, None):
                findings.add(
                    rules.CONSUMER_LEDGER,
                    file,
                    (*path, "warmup_records_before"),
                    preparation.warmup_records_before,
                    f"{wanted}, the attempts that began by then",
                    ranks=[rank],
                )


def _may_have_no_pass(one: WarmupRecord) -> bool:
    return (
        one.kind is WarmupKind.EAGER_SHAPE
        and one.status is WarmupStatus.FAILED
        and one.observed_forward_count in (0, None)
    )


def _over_at(records: Sequence[WarmupRecord]) -> list[tuple[int | None, int]]:
    """Return for each number of attempts the first of them that runs still, and where the last ended."""
    over: list[tuple[int | None, int]] = [(None, 0)]
    for at, one in enumerate(records):
        running, end = over[-1]
        if running is None and one.status is WarmupStatus.RUNNING:
            running = at
        over.append((running, max(end, one.forward_index_end or 0)))
    return over
