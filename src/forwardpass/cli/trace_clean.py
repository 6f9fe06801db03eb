"""Knows the command that removes what producers left behind: ``trace clean``.

Exit codes: 0 done, also if there was nothing to do; 2 wrong use; 3 the folder cannot be read; 4 some
files could not be deleted.
"""

from __future__ import annotations

import re

import click

from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import refused
from forwardpass.cli.output import aligned, ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import format_bytes, format_time
from forwardpass.clock import SystemClock
from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError
from forwardpass.trace.stale import StaleProducer, remove, stale_producers, survey

__all__ = ["clean"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_AGE = re.compile(r"([0-9]{1,9})([smhd])\Z")


def _age_option(ctx: click.Context, param: click.Parameter, value: str) -> int:
    match = _AGE.match(value.strip())
    if match is None:
        raise refused(param, value, "a number and s, m, h or d, such as 12h")
    return int(match[1]) * _UNITS[match[2]]


@click.command()
@click.argument("prefix", required=False)
@click.option(
    "--older-than",
    "older_than_seconds",
    default="1d",
    show_default=True,
    callback=_age_option,
    help="Only producers that wrote nothing for so long (a number and s, m, h or d).",
)
@click.option("--yes", is_flag=True, help="Delete. Without it the command only shows what it would delete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def clean(prefix: str | None, older_than_seconds: int, yes: bool, as_json: bool) -> int:
    """Remove the files of producers that are gone.

    A worker that restarts is a new producer with files of its own, and retention only ever removes a
    producer's own. This removes all files of those that wrote nothing for a while. A producer one of
    whose files is open in some process of this host is never touched.

    PREFIX is the one they were recorded with; without it: DYN_FPM_OUTPUT_PATH, or /tmp/dynamo-fpm.

    Exit code 4 if some files could not be deleted.

    \b
    Examples:
      forwardpass trace clean /tmp/dynamo-fpm
      forwardpass trace clean --older-than 7d --yes
    """
    chosen = Sources().value(variables.OUTPUT_PATH) if prefix is None else _prefix_of(prefix)
    before = SystemClock().unix_ms() - older_than_seconds * 1000
    stale = stale_producers(survey(chosen), before)
    errors = [error for producer in stale for error in remove(producer)] if yes else []
    with ending_quietly():
        if as_json:
            write_json(
                {"prefix": chosen, "deleted": yes, "producers": stale, "errors": list(map(str, errors))}
            )
        elif stale:
            write_lines(_table(stale))
    for error in errors:
        say(f"not deleted: {error}")
    if not as_json:
        say(_words(stale, yes))
    return Exit.PARTIAL if errors else Exit.DONE


def _prefix_of(text: str) -> str:
    try:
        prefix: str = variables.OUTPUT_PATH.parse(text)
    except ValueError as error:
        raise ConfigError("PREFIX", text, variables.OUTPUT_PATH.accepted) from error
    return prefix


def _table(stale: list[StaleProducer]) -> list[str]:
    rows = [
        (
            producer.producer,
            str(len(producer.paths)),
            format_bytes(producer.size),
            format_time(producer.written_unix_ms),
        )
        for producer in stale
    ]
    return aligned([("producer", "files", "size", "last written"), *rows])


def _words(stale: list[StaleProducer], deleted: bool) -> str:
    if not stale:
        return "no producer here is gone for so long"
    total = format_bytes(sum(producer.size for producer in stale))
    return f"{total} deleted" if deleted else f"{total} would be deleted; add --yes to do it"
