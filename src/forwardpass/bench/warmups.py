"""Knows which warm-ups ran and which passes they covered; claims nothing about graphs, kernels or caches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from forwardpass.bench.evidence import (
    RecordedWarmups,
    ValidationStatus,
    WarmupKind,
    WarmupRecord,
    WarmupStatus,
    WarmupValidation,
)

__all__ = ["Warmup", "Warmups"]


class Warmup(Struct, eq=False):
    """One attempt while it runs, and after."""

    kind: WarmupKind
    shape: Mapping[str, Any]
    completed_points_before: int
    start: int
    """Index of the first pass that it can cover."""
    end: int | None = None
    """Index after the last one; ``None`` while it runs."""
    failed: bool = False
    validation: WarmupValidation = WarmupValidation(ValidationStatus.NOT_PERFORMED, None)
    first: Mapping[str, Any] | None = None
    """``scheduled_requests`` of the first pass that it saw."""
    last: Mapping[str, Any] | None = None

    def record(self) -> WarmupRecord:
        """Return it as it stands in the artifact.

        A replica that failed before it came to a pass has no start.
        """
        status = WarmupStatus.FAILED if self.failed else WarmupStatus.COMPLETED
        unseen = self.failed and self.first is None and self.kind is WarmupKind.EAGER_SHAPE
        return WarmupRecord(
            kind=self.kind,
            requested_shape=dict(self.shape),
            status=WarmupStatus.RUNNING if self.end is None else status,
            validation=self.validation,
            forward_index_start=None if unseen else self.start,
            forward_index_end=self.end,
            completed_points_before=self.completed_points_before,
            observed_forward_count=0 if unseen else None if self.end is None else self.end - self.start,
            first_scheduled_requests=None if self.first is None else dict(self.first),
            last_scheduled_requests=None if self.last is None else dict(self.last),
        )


class Warmups:
    """Every attempt, in the order in which they began. Two may be open at once: a replica and its own
    seeding.
    """

    def __init__(self) -> None:
        self._all: list[Warmup] = []
        self._open: list[Warmup] = []

    def __len__(self) -> int:
        """Return how many attempts there were."""
        return len(self._all)

    def begin(
        self, kind: WarmupKind, shape: Mapping[str, Any], *, next_forward: int, completed_points: int
    ) -> Warmup:
        """Begin an attempt that covers the passes from ``next_forward`` on."""
        warmup = Warmup(kind, shape, completed_points, next_forward)
        self._all.append(warmup)
        self._open.append(warmup)
        return warmup

    def observe(self, scheduled: Mapping[str, Any]) -> None:
        """Note a pass with tokens, by its ``scheduled_requests``; every open attempt saw it."""
        for warmup in self._open:
            warmup.first = warmup.first or scheduled
            warmup.last = scheduled

    def finish(
        self,
        warmup: Warmup,
        *,
        next_forward: int,
        failed: bool = False,
        validation: WarmupValidation | None = None,
    ) -> None:
        """End an attempt before pass ``next_forward``. Ending it again changes nothing."""
        if warmup.end is None:
            self._open.remove(warmup)
            warmup.end, warmup.failed = next_forward, failed
            warmup.validation = validation or warmup.validation

    def abort(self, *, next_forward: int) -> None:
        """End every open attempt as failed."""
        for warmup in list(self._open):
            self.finish(warmup, next_forward=next_forward, failed=True)

    def ledger(self) -> RecordedWarmups:
        """Return the attempts as they stand in the artifact."""
        return RecordedWarmups(tuple(warmup.record() for warmup in self._all))
