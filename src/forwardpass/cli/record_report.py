"""Knows what a command that recorded says at its end: a summary of the files, losses, the exit code."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import click
import msgspec

from forwardpass.cli.main import Exit
from forwardpass.cli.output import say, write_json
from forwardpass.cli.recording import RecordingResult
from forwardpass.cli.summary_view import counted, format_bytes, summary_of_files
from forwardpass.counters import DropReason
from forwardpass.trace.sink import TraceCounts

__all__ = ["exit_code", "report"]

SUMMARY_BYTES = 200_000_000
"""Uncompressed trace up to which the closing summary reads the files again (about two seconds)."""

_HARMLESS = {DropReason.MALFORMED.value}
"""Drops that are no loss of a row: what was refused was no forward pass."""


def exit_code(result: RecordingResult) -> Exit:
    """Return how a recording ended: no forward pass arrived, rows were lost, or all is well."""
    lost = 0
    if result.trace is not None:
        lost = sum(count for reason, count in result.trace.dropped.items() if reason not in _HARMLESS)
    if lost:
        return Exit.PARTIAL
    return Exit.DONE if _arrived(result) else Exit.FINDING


def _arrived(result: RecordingResult) -> bool:
    """Say whether a forward pass came, as far as can be told: without a trace nobody looks inside."""
    if result.trace is None:
        return bool(result.received)
    return bool(result.trace.written)


def report(result: RecordingResult, *, as_json: bool, quiet: bool) -> None:
    """Say what was recorded: as JSON or as a summary on stdout, and what was lost on stderr."""
    if as_json:
        write_json({**msgspec.to_builtins(result), "endpoint": str(result.endpoint)})
    elif result.trace is not None and result.files:
        _report_files(result.files, result.trace)
        if not quiet:
            prefix = result.files[0].rpartition(".jsonl")[0].rpartition(".")[0]
            say(f"look further: forwardpass trace stats {shlex.quote(prefix)}")
    if not result.received:
        say("nothing arrived; `forwardpass doctor` finds out why")
        return
    if not _arrived(result):
        say("no forward pass arrived; `forwardpass doctor` finds out why")
    if not quiet:
        for line in _losses(result):
            say(line)


def _report_files(files: Sequence[str], trace: TraceCounts) -> None:
    if trace.uncompressed_bytes <= SUMMARY_BYTES:
        click.echo(summary_of_files(files))
        return
    size = format_bytes(trace.compressed_bytes)
    click.echo("\n".join([f"{trace.written:,} rows, {size}, in {len(files)} files:", *files]))


def _losses(result: RecordingResult) -> list[str]:
    """Return one line for every kind of loss that the summary of the files cannot know."""
    lines = []
    bad = sum(relay.bad_frames for relay in result.relays)
    if bad:
        lines.append(f"{counted(bad, 'message')} skipped: the frames were not those of the raw stream")
    if result.trace is not None:
        lines += [
            f"{counted(count, 'payload')} not recorded: {why}" for why, count in result.trace.dropped.items()
        ]
    for relay in result.relays:
        dropped = relay.plane.dropped if relay.plane is not None else {}
        lines += [
            f"{counted(count, 'payload')} of {relay.url} not published: {why}"
            for why, count in dropped.items()
        ]
    return lines
