"""Knows what a run has come to so far: results, skips, warm-ups, and how far its passes are counted."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from forwardpass.bench.grid import Grid
from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.outcome import SkipReason
from forwardpass.bench.points import Point
from forwardpass.bench.samples import Sample
from forwardpass.bench.sync.messages import RankResult
from forwardpass.bench.warmups import Warmups

__all__ = ["Measured", "RunLog", "Skipped"]


class Measured(Struct, frozen=True):
    """A point with a result."""

    point: Point
    """As recorded: with the reasons of its execution and the coordinate that was measured."""
    kv_seed_regime: str
    ranks: tuple[RankResult, ...]
    """What every rank retained, ascending by rank, with its evidence."""
    samples: tuple[Sample, ...]
    """This rank's own passes, before any was chosen."""

    def own(self, dp_rank: int) -> dict[str, Any]:
        """Return the pass that ``dp_rank`` retained."""
        return next(rank.fpms[0] for rank in self.ranks if rank.dp_rank == dp_rank)

    @property
    def wall_time(self) -> float:
        """Return the slowest rank's time, in seconds."""
        return max(float(rank.fpms[0]["wall_time"]) for rank in self.ranks)


class Skipped(Struct, frozen=True):
    """A point without a result."""

    point: Point
    kv_seed_regime: str
    reason: SkipReason


class RunLog(Struct):
    """Everything that the artifact of one rank is made from. The session writes it, readers read it."""

    dp_rank: int = 0
    dp_size: int = 1
    run_id: str = ""
    """32 hex digits; rank 0's for all ranks."""
    grid: Grid | None = None
    """``None`` until it was built and agreed on."""
    capacity: CapacityEnvelope | None = None
    """What all ranks can hold."""
    measured: list[Measured] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    warmups: Warmups = field(default_factory=Warmups)
    next_forward: int = 0
    """Index of the next pass with tokens."""
    started_at_unix_ms: int | None = None
    completed_at_unix_ms: int | None = None
    elapsed_seconds: float | None = None
    """From the first step of the benchmark to its end."""
    stopped: bool = False
    """The time was up before all points had run."""
    error: str | None = None

    @property
    def settled_points(self) -> int:
        """Return how many points have a result or a reason for none."""
        return len(self.measured) + len(self.skipped)
