"""Knows how spans of time (``12h``) and sizes (``500MB``, ``2GiB``) are written on the command line."""

from __future__ import annotations

import re

import click

from forwardpass.cli.numbers import refused

__all__ = ["bytes_option", "seconds_option"]

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SPAN = re.compile(r"([0-9]{1,9})([smhd])\Z")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,18}) ?([kmgt]?)(i?)b?\Z", re.IGNORECASE)


def seconds_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the seconds of an option's span of time; raises for anything else."""
    if value is None:
        return None
    match = _SPAN.match(value.strip())
    if match is None:
        raise refused(param, value, "a number and s, m, h or d, such as 12h")
    return int(match[1]) * _SECONDS[match[2]]


def bytes_option(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Return the bytes of an option's size (powers of 1000, with an i of 1024); raises for anything else."""
    if value is None:
        return None
    match = _SIZE.match(value.strip())
    if match is None or (match[3] and not match[2]):
        raise refused(param, value, "a size in bytes, such as 500MB or 2GiB")
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2].lower()]
    return int(match[1]) * unit
