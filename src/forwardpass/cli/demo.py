"""Knows the command that shows in a few seconds what this package does: simulate, record, sum up."""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

import click

from forwardpass.analyze.summary import Summary, summarize
from forwardpass.cli.demo_engine import CONNECT_SECONDS, DemoEngine, start_engine
from forwardpass.cli.demo_view import Board, choose_progress
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.mock import MockResult
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say
from forwardpass.cli.recording import Recording, RecordingResult, draw_id, stop_on_signals
from forwardpass.cli.summary_view import format_count, render_summary
from forwardpass.config.settings import (
    CaptureMode,
    RelaySettings,
    Sources,
    TraceSettings,
    process_environment,
)
from forwardpass.engines.mock.source import SOURCE
from forwardpass.errors import ConfigError
from forwardpass.relay.targets import local_targets
from forwardpass.trace.policy import TraceDecision
from forwardpass.trace.reader import TraceReader

__all__ = ["demo"]


@click.command()
@click.option(
    "--seconds", type=Number(0.5, 3600), default=12.0, show_default=True,
    help="How long the engine is under load.",
)  # fmt: skip
@click.option("--ranks", type=WholeNumber(1, 16), default=2, show_default=True, help="Data-parallel ranks.")
@click.option(
    "--output", metavar="DIR", help="Folder for the trace; without it a new one for temporary files."
)
@click.option(
    "--seed", type=WholeNumber(), default=0, show_default=True, help="The same seed, the same requests."
)
def demo(seconds: float, ranks: int, output: str | None, seed: int) -> int:
    """Record a simulated engine for a few seconds and sum it up.

    Starts the simulated engine in a process of its own, under the load of a small chat service, records
    every forward pass of it through real sockets into real trace files, and reads them back. Needs no
    GPU, no model and no network. Settings from the environment do not count here.

    Exit code 1 if nothing arrived, 3 if the folder cannot be written, 130 if it was ended early.

    \b
    Examples:
      forwardpass demo
      forwardpass demo --seconds 60 --ranks 4 --output demo-output
    """
    log_to_stderr(logging.WARNING)
    if output == "":
        raise ConfigError("--output", output, "a folder, or no --output for a new one")
    folder = Path(output if output is not None else tempfile.mkdtemp(prefix="forwardpass-demo-"))
    settings = TraceSettings(output_prefix=str(folder / "demo"), mode=CaptureMode.FULL)
    return asyncio.run(_run(seconds, ranks, seed, settings))


async def _run(seconds: float, ranks: int, seed: int, settings: TraceSettings) -> int:
    worker_id, board, stop = draw_id(), Board(ranks), asyncio.Event()
    with stop_on_signals(stop):
        engine = await start_engine(
            ranks=ranks, seconds=seconds, seed=seed, worker_id=worker_id, environment=process_environment()
        )
        try:
            recording = Recording(
                local_targets(engine.base_port, ranks),
                trace=TraceDecision(True, settings),
                relay=RelaySettings(),
                drawn_id=worker_id,
                sources=Sources({}),
                on_payload=board.note,
                engine=SOURCE,
            )
            await recording.start()
            if not recording.tracing:
                await recording.finish()
                return Exit.INPUT  # the log has said what is wrong with the folder
            say(f"recording a simulated engine: {ranks} ranks on 127.0.0.1, ports {engine.base_port} and up,")
            say(f"to {settings.output_prefix}.*, for {seconds:g} s; Ctrl-C ends it early")
            await _follow(engine, recording, board, stop, seconds)
            result = await recording.finish()
            counted = await engine.result()
        finally:
            await engine.kill()
    return _report(result, counted, settings, interrupted=stop.is_set())


async def _follow(
    engine: DemoEngine, recording: Recording, board: Board, stop: asyncio.Event, seconds: float
) -> None:
    """Show how it goes until the engine has ended, by itself or because it was asked to."""
    progress = choose_progress(seconds)
    asked = asyncio.create_task(stop.wait())
    try:
        while not engine.finished.done():
            waiting = [engine.finished] if stop.is_set() else [engine.finished, asked]
            await asyncio.wait(
                waiting, timeout=progress.interval_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if stop.is_set():
                engine.interrupt()
            trace = recording.trace_counts()
            elapsed = max(0.0, recording.elapsed_seconds - CONNECT_SECONDS)
            if not engine.finished.done():
                progress.show(elapsed, board.ranks(), trace.written if trace is not None else 0)
    finally:
        asked.cancel()
        progress.close()


def _report(
    result: RecordingResult, counted: MockResult, settings: TraceSettings, *, interrupted: bool
) -> int:
    reader = TraceReader(result.files)
    summary = summarize(reader)
    click.echo(f"\n{render_summary(summary, reader.report)}\n")
    say(_proof(summary, counted))
    say(_further(settings.output_prefix))
    if interrupted:
        return Exit.INTERRUPTED
    return Exit.DONE if summary.passes else Exit.FINDING


def _proof(summary: Summary, counted: MockResult) -> str:
    passes = sum(rank.passes for rank in counted.ranks)
    held = "every one of them" if summary.passes == passes else f"{format_count(summary.passes)} of them"
    return f"The engine counted {format_count(passes)} passes by itself; the trace holds {held}."


def _further(prefix: str) -> str:
    command, path = _own_command(), shlex.quote(prefix)
    lines = {
        "this page again": f"{command} trace stats {path}",
        "one row": f"{command} trace cat {path} | head -n 1",
        "such an engine": f"{command} mock --ranks 2",
        "its passes, live": f"{command} tail --ranks 2",
        "with a real vLLM": f"{command} vllm serve MODEL --fpm-trace",
    }
    width = max(map(len, lines))
    return "\n".join(["", "Look further:", *(f"  {what:<{width}}  {line}" for what, line in lines.items())])


def _own_command() -> str:
    """Return how a person can call this program again from where they are."""
    if shutil.which("forwardpass"):
        return "forwardpass"
    called = Path(sys.argv[0])
    return str(called) if called.name == "forwardpass" else f"{shlex.quote(sys.executable)} -m forwardpass"
