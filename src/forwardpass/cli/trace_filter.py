"""Knows which rows a person asked for: of which worker and rank, and from which time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from typing import Any

import click

from forwardpass.cli.numbers import WholeNumber, refused
from forwardpass.trace.row_filter import RowFilter

__all__ = ["filter_options", "moment_option"]


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


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options that choose rows; it gets them as ``wanted``, a :class:`RowFilter`."""

    @click.option("--worker", help="Only rows of this worker_id.")
    @click.option("--rank", type=WholeNumber(0), help="Only rows of this data-parallel rank.")
    @click.option(
        "--since",
        callback=moment_option,
        help="Only rows observed at or after this time (ISO 8601 or Unix ms).",
    )
    @click.option("--until", callback=moment_option, help="Only rows observed before this time.")
    @wraps(command)
    def with_filter(
        *arguments: Any,
        worker: str | None,
        rank: int | None,
        since: int | None,
        until: int | None,
        **options: Any,
    ) -> Any:
        wanted = RowFilter(worker=worker, rank=rank, since_unix_ms=since, until_unix_ms=until)
        return command(*arguments, wanted=wanted, **options)

    return with_filter
