"""Knows which rows are wanted: of which worker and rank, and of which time."""

from __future__ import annotations

from msgspec import Struct

from forwardpass.trace.record import TraceRecord

__all__ = ["RowFilter"]


class RowFilter(Struct, frozen=True):
    """What to keep; ``None`` keeps all."""

    worker: str | None = None
    rank: int | None = None
    since_unix_ms: int | None = None
    """First observed time to keep."""
    until_unix_ms: int | None = None
    """First observed time not to keep."""

    def may_be_in(self, first_unix_ms: int | None, last_unix_ms: int | None) -> bool:
        """Say whether a file with rows observed between these times may hold wanted ones; yes if unknown."""
        early = self.until_unix_ms is None or first_unix_ms is None or first_unix_ms < self.until_unix_ms
        late = self.since_unix_ms is None or last_unix_ms is None or last_unix_ms >= self.since_unix_ms
        return early and late

    @property
    def keeps_all(self) -> bool:
        """Whether every row is wanted."""
        return self == RowFilter()

    def keeps(self, record: TraceRecord) -> bool:
        """Say whether a row is wanted."""
        observed = record.observed_at_unix_ms
        return (
            (self.worker is None or record.metrics.worker_id == self.worker)
            and (self.rank is None or record.metrics.dp_rank == self.rank)
            and (self.since_unix_ms is None or observed >= self.since_unix_ms)
            and (self.until_unix_ms is None or observed < self.until_unix_ms)
        )
