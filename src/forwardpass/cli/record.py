"""Knows the command that records the streams of engines that run already."""

from __future__ import annotations

import asyncio
import logging

import click

from forwardpass.cli.engine_option import named_engine
from forwardpass.cli.live_status import LiveStatus
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say
from forwardpass.cli.record_options import check_plane, record_sources, setting_options
from forwardpass.cli.record_report import exit_code, report
from forwardpass.cli.recording import Recording, draw_id, plane_words, stop_on_signals
from forwardpass.cli.stream_options import choose_targets
from forwardpass.cli.terminal import printable
from forwardpass.config.settings import RelaySettings, TraceSettings
from forwardpass.trace.policy import TraceDecision

__all__ = ["exit_code", "record", "record_sources"]


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--ranks", type=WholeNumber(1, 4096), help="Ranks to record, from the base port or URL on.")
@click.option(
    "--engine",
    metavar="NAME",
    help="Engine that publishes there (vllm, sglang, …): the ledger then says what its wall_time measures.",
)
@setting_options
@click.option("--seconds", type=Number(0, above=True), help="Stop by itself after so long.")
@click.option("--json", "as_json", is_flag=True, help="What was recorded as JSON instead of a summary.")
@click.option("--quiet", is_flag=True, help="No words while it runs.")
def record(
    urls: tuple[str, ...],
    ranks: int | None,
    engine: str | None,
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
    check_plane(relay.plane_url, flag_given=texts.get("plane") is not None)
    recording = Recording(
        targets,
        trace=TraceDecision(True, TraceSettings.load(sources)),
        relay=relay,
        drawn_id=draw_id(),
        sources=sources,
        engine=named_engine(engine),
    )
    if not quiet:
        streams = ", ".join(target.url for target in targets)
        say(f"recording {printable(streams, 400)} as producer {printable(recording.producer_id)}")
        say(f"{plane_words(relay)}; Ctrl-C stops")
    return asyncio.run(_run(recording, seconds, as_json=as_json, quiet=quiet))


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
    report(result, as_json=as_json, quiet=quiet)
    return exit_code(result)
