"""Knows how to show each setting, its value and where it came from."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from enum import Enum
from typing import Any

import click

from forwardpass.cli.consequence import consequence, shown
from forwardpass.cli.main import Exit
from forwardpass.cli.output import aligned, ending_quietly, say, write_json, write_lines
from forwardpass.cli.terminal import printable, terminal_width
from forwardpass.config.plane_variables import NATS_SERVER
from forwardpass.config.settings import Resolved, Sources
from forwardpass.config.variables import FPM_TRACE, PLANE
from forwardpass.plane.shown import shown_url
from forwardpass.wire.keys import Endpoint

__all__ = ["env"]

_HIDDEN = "(set, not shown)"
_URLS = (PLANE, NATS_SERVER)
"""Variables whose values may hold a password."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
@click.option("--set", "only_set", is_flag=True, help="Only variables that are set.")
def env(as_json: bool, only_set: bool) -> int:
    """Show each variable, its value, where that came from, and what it means.

    Exit code 2 if a variable has a value that is not accepted.

    \b
    Examples:
      forwardpass env
      forwardpass env --json | jq '.variables[] | select(.source != "default")'
    """
    sources = Sources()
    rows = [row for row in sources.all() if not only_set or row.source != "default"]
    invalid = [row for row in rows if row.error is not None]
    if as_json:
        write_json({"variables": [_as_document(row) for row in rows], "valid": not invalid})
    elif not rows:
        say("no variable is set; every setting has its default")
    else:
        with ending_quietly():
            write_lines(_table(rows, width=terminal_width(sys.stdout)))
    trace_on = bool(sources.resolve(FPM_TRACE).value)
    for row in invalid:
        say(f"{row.error}; {consequence(row, trace_on)}")
    return Exit.USAGE if invalid else Exit.DONE


def _table(rows: Sequence[Resolved], *, width: int | None) -> list[str]:
    """Return the settings as lines; what does not fit beside them on a terminal stands below each."""
    cells = [("variable", "value", "from"), *((row.variable.name, _cell(row), row.source) for row in rows)]
    meanings = ["meaning", *(row.variable.meaning for row in rows)]
    beside = aligned([(*row, meaning) for row, meaning in zip(cells, meanings, strict=True)], left=4)
    if width is None or max(map(len, beside)) <= width:
        return beside
    first, *others = aligned(cells, left=3)
    lines = [first]
    for line, meaning in zip(others, meanings[1:], strict=True):
        wrapped = textwrap.wrap(meaning, max(20, width), initial_indent="    ", subsequent_indent="    ")
        lines += [line, *wrapped]
    return lines


def _cell(row: Resolved) -> str:
    if row.variable.secret and row.value:
        return _HIDDEN
    text = shown(row.value) if row.error is None else f"{row.error.value!r} (invalid)"
    return printable(shown_url(text) if row.variable in _URLS else text)


def _as_document(row: Resolved) -> dict[str, Any]:
    plain = str(row.value) if isinstance(row.value, Endpoint | Enum) else row.value
    if row.variable.secret and plain:
        plain = _HIDDEN
    if row.variable in _URLS and plain:
        plain = shown_url(plain)
    default = row.variable.default
    return {
        "name": row.variable.name,
        "value": plain,
        "default": str(default) if isinstance(default, Endpoint | Enum) else default,
        "source": row.source,
        "feature": row.variable.feature.value,
        "accepted": row.variable.accepted,
        "meaning": row.variable.meaning,
        "since": row.variable.since,
        "found": None if row.error is None else row.error.value,
    }
