"""How spans of time and sizes are written on the command line."""

from __future__ import annotations

import click
import pytest

from forwardpass.cli.amounts import bytes_option, seconds_option
from forwardpass.errors import ConfigError

OPTION = click.Option(["--amount"])
CONTEXT = click.Context(click.Command("test"))


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("12B", 12), ("500MB", 500_000_000), ("500 mb", 500_000_000), ("2GiB", 2 << 30),
     ("1k", 1000), ("1Ki", 1024), ("3T", 3_000_000_000_000)],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    """Powers of 1000, or of 1024 with an i; the B may be left out."""
    assert bytes_option(CONTEXT, OPTION, text) == size


@pytest.mark.parametrize("text", ["", "B", "1.5G", "-1", "1iB", "1PB", "١"])
def test_what_is_no_size(text: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"--amount=.*500MB or 2GiB"):
        bytes_option(CONTEXT, OPTION, text)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), (" 12h ", 43_200), ("7d", 604_800)])
def test_spans(text: str, seconds: int) -> None:
    """A number and a unit."""
    assert seconds_option(CONTEXT, OPTION, text) == seconds


@pytest.mark.parametrize("text", ["", "12", "1.5h", "h", "1w", "-1d"])
def test_what_is_no_span(text: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError, match=r"--amount=.*such as 12h"):
        seconds_option(CONTEXT, OPTION, text)


def test_nothing_stays_nothing() -> None:
    """An option that was not given has no amount."""
    assert bytes_option(CONTEXT, OPTION, None) is None
    assert seconds_option(CONTEXT, OPTION, None) is None
