"""Knows the command that records the streams of engines that run already."""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from forwardpass.cli.live_status import LiveStatus
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_json
from forwardpass.cli.recording import Recording, RecordingResult, draw_id, plane_words, stop_on_signals
from forwardpass.cli.stream_options import checked_flags, choose_targets
from forwardpass.cli.summary_view import counted, format_bytes, summary_of_files
from forwardpass.cli.terminal import printable
from forwardpass.config import variables as v
from forwardpass.config.settings import CaptureMode, RelaySettings, Sources, TraceSettings
from forwardpass.counters import DropReason
from forwardpass.errors import ConfigError
from forwardpass.plane.urls import find_plane
from forwardpass.trace.policy import TraceDecision
from forwardpass.trace.sink import TraceCounts

__all__ = ["exit_code", "record", "record_sources"]

SUMMARY_BYTES = 200_000_000
"""Uncompressed trace up to which the closing summary reads the files again (about two seconds)."""

_FLAGS = {
    "output": ("--output", v.OUTPUT_PATH),
    "mode": ("--mode", v.MODE),
    "sample_interval_ms": ("--sample-interval-ms", v.SAMPLE_INTERVAL_MS),
    "roll_bytes": ("--roll-bytes", v.ROLL_BYTES),
    "max_segments": ("--max-segments", v.MAX_SEGMENTS),
    "fsync": ("--fsync", v.FSYNC),
    "producer_id": ("--producer-id", v.PRODUCER_ID),
    "endpoint": ("--endpoint", v.ENDPOINT),
    "plane": ("--plane", v.PLANE),
}
_HARMLESS = {DropReason.MALFORMED.value}
"""Drops that are no loss of a row: what was refused was no forward pass."""


def _setting_options(command: Any) -> Any:
    """Add one option per entry of ``_FLAGS``, all of them texts that the table of variables checks."""
    for name, (flag, variable) in reversed(_FLAGS.items()):
        help_text = f"{variable.meaning} [{variable.name}]"
        command = click.option(flag, name, metavar=_METAVARS.get(name, "TEXT"), help=help_text)(command)
    return command


_METAVARS = {
    "output": "PREFIX",
    "mode": "full|sampled",
    "sample_interval_ms": "MS",
    "roll_bytes": "BYTES",
    "max_segments": "N",
    "fsync": "never|segment|flush",
    "producer_id": "ID",
    "endpoint": "NS.COMPONENT.NAME",
    "plane": "URL",
}


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--ranks", type=WholeNumber(1, 4096), help="Ranks to record, from the base port or URL on.")
@_setting_options
@click.option("--seconds", type=Number(0, above=True), help="Stop by itself after so long.")
@click.option("--json", "as_json", is_flag=True, help="What was recorded as JSON instead of a summary.")
@click.option("--quiet", is_flag=True, help="No words while it runs.")
def record(
    urls: tuple[str, ...],
    ranks: int | None,
    seconds: float | None,
    as_json: bool,
    quiet: bool,
    **texts: str | None,
) -> int:
    """Record the forward passes of engines that run already.

    Without a URL it records this machine's engine: one rank (or --ranks) from the base port on,
    DYN_FORWARDPASS_METRIC_PORT or 20380. It may be started before the engine, and goes on when the
    engine comes back. Ctrl-C or SIGTERM stops it without losing what was received; a second one kills it.

    Every pass is recorded (mode full) unless --mode or DYN_FPM_MODE says otherwise.

    Exit code 1 if nothing arrived, 2 for a setting that is not accepted, 3 if nothing can be written
    there, 4 if rows were lost on their way to the disk.

    \b
    Examples:
      forwardpass record --ranks 2 --output /var/tmp/run1
      forwardpass record tcp://10.0.0.7:20380 --seconds 60 --json
      forwardpass record ipc:///tmp/fpm --ranks 4 --mode sampled
    """
    log_to_stderr(logging.WARNING)
    sources = record_sources(texts)
    targets = choose_targets(urls, ranks, sources)
    relay = RelaySettings.load(sources)
    _check_plane(relay.plane_url, flag_given=texts.get("plane") is not None)
    recording = Recording(
        targets,
        trace=TraceDecision(True, TraceSettings.load(sources)),
        relay=relay,
        drawn_id=draw_id(),
        sources=sources,
    )
    if not quiet:
        streams = ", ".join(target.url for target in targets)
        say(f"recording {printable(streams, 400)} as producer {printable(recording.producer_id)}")
        say(f"{plane_words(relay)}; Ctrl-C stops")
    return asyncio.run(_run(recording, seconds, as_json=as_json, quiet=quiet))


def record_sources(texts: Mapping[str, str | None], env: Mapping[str, str] | None = None) -> Sources:
    """Return where settings come from: the flags, then the environment, then ``record``'s own default.

    That default is the mode: an explicit command to record means every pass.
    """
    flags = checked_flags((flag, variable, texts.get(name)) for name, (flag, variable) in _FLAGS.items())
    sources = Sources(env, flags)
    if sources.resolve(v.MODE).source == "default":
        sources = Sources(env, {**flags, v.MODE.name: CaptureMode.FULL.value})
    return sources


def _check_plane(url: str | None, *, flag_given: bool) -> None:
    """Refuse a plane that nobody provides before anything is said or opened."""
    if url is None:
        return
    try:
        find_plane(url)
    except ConfigError as error:
        if flag_given:
            raise ConfigError("--plane", error.value, error.accepted) from error
        raise


async def _run(recording: Recording, seconds: float | None, *, as_json: bool, quiet: bool) -> int:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await recording.start()
        useless = not recording.tracing and not recording.has_plane
        if not useless:
            await LiveStatus(recording, quiet=quiet).follow(stop, seconds)
        result = await recording.finish()
    if useless:
        return Exit.INPUT  # the log has said what is wrong with the path
    _report(result, as_json=as_json, quiet=quiet)
    return exit_code(result)


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


def _report(result: RecordingResult, *, as_json: bool, quiet: bool) -> None:
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
