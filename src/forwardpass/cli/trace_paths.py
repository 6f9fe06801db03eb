"""Knows how the commands that read traces are told which, and what else they have in common."""

from __future__ import annotations

from pathlib import Path

import click

from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, TracePathError
from forwardpass.trace.reader import find_segments

__all__ = ["find", "named", "paths_argument", "unverified_option"]

paths_argument = click.argument("paths", nargs=-1, metavar="[PREFIX|FOLDER|FILE]...")
unverified_option = click.option(
    "--unverified", is_flag=True, help="Also the whole rows of torn members, which no checksum proves."
)


def find(paths: tuple[str, ...]) -> list[Path]:
    """Return the files of a trace, the configured one if none is named.

    Raises :class:`~forwardpass.errors.ConfigError` for an empty name, which is a shell variable that is not
    set, and :class:`~forwardpass.errors.TracePathError` where nothing is.
    """
    chosen = named(paths)
    try:
        return find_segments(chosen)
    except TracePathError as error:
        if paths:
            raise
        reason = f"no trace there; name one, or set {variables.OUTPUT_PATH.name}"
        raise TracePathError(chosen[0], reason) from error


def named(paths: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that were given, or the configured prefix; raises as :func:`find` for an empty one."""
    if "" in paths:
        raise ConfigError("PREFIX", "", "a prefix, a folder or a file")
    return paths or (str(Sources().value(variables.OUTPUT_PATH)),)
