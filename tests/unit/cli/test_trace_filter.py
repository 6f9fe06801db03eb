"""Which rows are asked for."""

from __future__ import annotations

import click
import pytest

from forwardpass.cli.trace_filter import moment_option
from forwardpass.errors import ConfigError
from forwardpass.testing.traces import trace_record
from forwardpass.trace.row_filter import RowFilter

CONTEXT = click.Context(click.Command("x"))
OPTION = click.Option(["--since"])


@pytest.mark.parametrize(
    ("text", "unix_ms"),
    [
        ("1796042065007", 1_796_042_065_007),
        (" 0 ", 0),
        ("2026-11-30T12:34:25.007Z", 1_796_042_065_007),
        ("2026-11-30T13:34:25.007+01:00", 1_796_042_065_007),
        ("2026-11-30 12:34:25", 1_796_042_065_000),
        ("2026-11-30", 1_795_996_800_000),
    ],
)
def test_moments_may_be_written_in_two_ways(text: str, unix_ms: int) -> None:
    """Unix milliseconds, or ISO 8601, which is UTC without a zone."""
    assert moment_option(CONTEXT, OPTION, text) == unix_ms


def test_no_moment_is_none() -> None:
    """An option that was not given limits nothing."""
    assert moment_option(CONTEXT, OPTION, None) is None


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "12:00", "٣", "2026-13-01"])
def test_what_is_no_moment_is_wrong_use(text: str) -> None:
    """The option is named in the error."""
    with pytest.raises(ConfigError) as caught:
        moment_option(CONTEXT, OPTION, text)
    assert (caught.value.variable, caught.value.value) == ("--since", text)


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        (RowFilter(), True),
        (RowFilter(worker="4192", rank=0), True),
        (RowFilter(worker="4193"), False),
        (RowFilter(rank=1), False),
        (RowFilter(since_unix_ms=1000), True),
        (RowFilter(since_unix_ms=1001), False),
        (RowFilter(until_unix_ms=1000), False),
        (RowFilter(until_unix_ms=1001), True),
    ],
)
def test_every_condition_must_hold(wanted: RowFilter, kept: bool) -> None:
    """Worker and rank are equal; the time is at or after the first and before the second moment."""
    assert wanted.keeps(trace_record(0, observed_at_unix_ms=1000)) == kept
