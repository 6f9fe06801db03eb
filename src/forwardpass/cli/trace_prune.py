"""Knows the command that removes what producers left behind: ``trace prune``.

Exit codes: 0 done, also if there was nothing to do; 2 wrong use; 3 the folder cannot be read; 4 some
files could not be deleted.
"""

from __future__ import annotations

import click

from forwardpass.cli.amounts import bytes_option, seconds_option
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import WholeNumber
from forwardpass.cli.output import aligned, ending_quietly, say, write_json, write_lines
from forwardpass.cli.summary_view import format_bytes, format_time
from forwardpass.clock import SystemClock
from forwardpass.config import variables
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError
from forwardpass.trace.stale import StaleProducer, beyond, remove, stale_producers, survey

__all__ = ["prune"]


@click.command()
@click.argument("prefix", required=False)
@click.option(
    "--older-than",
    "older_than_seconds",
    default="1d",
    show_default=True,
    callback=seconds_option,
    help="Only producers that wrote nothing for so long (a number and s, m, h or d).",
)
@click.option(
    "--keep-producers",
    type=WholeNumber(0),
    help="Remove only until so many producers are left, those that live included; the oldest go first.",
)
@click.option(
    "--keep-bytes",
    callback=bytes_option,
    help="Remove only until all files together are no larger (500MB, 2GiB); the oldest producers go first.",
)
@click.option("--yes", is_flag=True, help="Delete. Without it the command only shows what it would delete.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def prune(
    prefix: str | None,
    older_than_seconds: int,
    keep_producers: int | None,
    keep_bytes: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Remove the files of producers that are gone.

    A worker that restarts is a new producer with files of its own, and retention only ever removes a
    producer's own. This removes all files of those that wrote nothing for a while, or, with --keep-producers
    or --keep-bytes, of as many of them as must go. A producer one of whose files is open in some process of
    this host is never touched, and neither are other files.

    PREFIX is the one they were recorded with; without it: DYN_FPM_OUTPUT_PATH, or /tmp/dynamo-fpm.

    Exit code 4 if some files could not be deleted.

    \b
    Examples:
      forwardpass trace prune /tmp/dynamo-fpm
      forwardpass trace prune --older-than 7d --yes
      forwardpass trace prune /var/log/fpm --older-than 1h --keep-bytes 20GB --yes
    """
    chosen = Sources().value(variables.OUTPUT_PATH) if prefix is None else _prefix_of(prefix)
    before = SystemClock().unix_ms() - older_than_seconds * 1000
    segments = survey(chosen)
    stale = beyond(stale_producers(segments, before), segments, producers=keep_producers, size=keep_bytes)
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
        return "nothing to remove: no producer is gone for so long, or the limits hold"
    total = format_bytes(sum(producer.size for producer in stale))
    return f"{total} deleted" if deleted else f"{total} would be deleted; add --yes to do it"
