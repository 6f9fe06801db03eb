"""Knows the command that records a TensorRT-LLM server by asking for its statistics."""

from __future__ import annotations

import asyncio
import logging

import click

from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say
from forwardpass.cli.polling import PolledRecording
from forwardpass.cli.record_options import check_plane, record_sources, setting_options
from forwardpass.cli.record_report import exit_code, report
from forwardpass.cli.recording import draw_id, plane_words, stop_on_signals
from forwardpass.cli.terminal import printable
from forwardpass.config.settings import RelaySettings, TraceSettings
from forwardpass.engines.trtllm.endpoint import parse_endpoint
from forwardpass.engines.trtllm.poller import POLL_SECONDS, fetch_over_http
from forwardpass.trace.policy import TraceDecision

__all__ = ["trtllm"]


@click.command()
@click.option("--metrics-url", required=True, metavar="URL", help="The server, as http://HOST:PORT.")
@click.option(
    "--ranks", type=WholeNumber(1, 1024), default=1, show_default=True, help="Its attention-DP ranks."
)
@click.option(
    "--interval",
    type=Number(0.05, 60),
    default=POLL_SECONDS,
    show_default=True,
    help="Seconds between two polls.",
)
@setting_options
@click.option("--seconds", type=Number(0, above=True), help="Stop by itself after so long.")
@click.option("--json", "as_json", is_flag=True, help="What was recorded as JSON instead of a summary.")
@click.option("--quiet", is_flag=True, help="No words while it runs.")
def trtllm(
    metrics_url: str,
    ranks: int,
    interval: float,
    seconds: float | None,
    as_json: bool,
    quiet: bool,
    **texts: str | None,
) -> int:
    """Record a TensorRT-LLM server from its iteration statistics.

    It asks the server's /metrics for the iterations since the last time, again and again; the server needs
    enable_iter_perf_stats. Whoever else asks the same address takes rows away. A build whose statistics lack
    the token counts that a forward pass is made of is said to do so, and nothing is recorded.

    Every pass is recorded (mode full) unless --mode or DYN_FPM_MODE says otherwise. Ctrl-C or SIGTERM stops
    it after a last poll; a second one kills it.

    Exit code 1 if nothing arrived, 2 for a setting that is not accepted, 3 if nothing can be written
    there, 4 if rows were lost on their way to the disk.

    \b
    Examples:
      forwardpass trtllm --metrics-url http://127.0.0.1:8000
      forwardpass trtllm --metrics-url http://10.0.0.7:8000 --ranks 4 --output /var/tmp/run1 --seconds 60
    """
    log_to_stderr(logging.WARNING)
    endpoint = parse_endpoint(metrics_url)
    sources = record_sources(texts)
    relay = RelaySettings.load(sources)
    check_plane(relay.plane_url, flag_given=texts.get("plane") is not None)
    recording = PolledRecording(
        fetch_over_http(endpoint),
        endpoint.url,
        ranks=ranks,
        trace=TraceDecision(True, TraceSettings.load(sources)),
        relay=relay,
        worker_id=draw_id(),
        sources=sources,
        interval_seconds=interval,
    )
    if not quiet:
        say(f"polling {printable(endpoint.url)} as producer {printable(recording.producer_id)}")
        say(f"{plane_words(relay)}; Ctrl-C stops")
    return asyncio.run(_run(recording, seconds, as_json=as_json, quiet=quiet))


async def _run(recording: PolledRecording, seconds: float | None, *, as_json: bool, quiet: bool) -> int:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await recording.start()
        useless = not recording.tracing and not recording.has_plane
        if not useless:
            await recording.follow(stop, seconds)
        result = await recording.finish()
    if useless:
        return Exit.INPUT  # the log has said what is wrong with the path
    report(result, as_json=as_json, quiet=quiet)
    if not quiet:
        for line in recording.losses():
            say(line)
    return exit_code(result)
