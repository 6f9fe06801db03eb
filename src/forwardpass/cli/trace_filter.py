"""Knows which rows a person asked for: of which worker and rank, and from which time."""

from __future__ import annotations

from datetime import UTC, datetime

import click
from msgspec import Struct

from forwardpass.cli.numbers import refused
from forwardpass.trace.record import TraceRecord

__all__ = ["RowFilter", "moment_option"]


def moment_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return Unix milliseconds from an option's text: those, or an ISO 8601 time (UTC without a zone)."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return int(text[:20])
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        accepted = "Unix milliseconds or a time such as 2026-11-30T12:25:00Z"
        raise refused(param, value, accepted) from error


class RowFilter(Struct, frozen=True):
    """What to keep; ``None`` keeps all."""

    worker: str | None = None
    rank: int | None = None
    since_unix_ms: int | None = None
    """First observed time to keep."""
    until_unix_ms: int | None = None
    """First observed time not to keep."""

    def keeps(self, record: TraceRecord) -> bool:
        """Say whether a row is wanted."""
        observed = record.observed_at_unix_ms
        return (
            (self.worker is None or record.metrics.worker_id == self.worker)
            and (self.rank is None or record.metrics.dp_rank == self.rank)
            and (self.since_unix_ms is None or observed >= self.since_unix_ms)
            and (self.until_unix_ms is None or observed < self.until_unix_ms)
        )
