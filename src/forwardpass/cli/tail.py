"""Knows the command that shows forward passes as they happen."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from typing import Any

import click

from forwardpass.cli.live_status import SilenceWatch
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_bytes
from forwardpass.cli.stream_options import choose_targets
from forwardpass.cli.summary_view import counted
from forwardpass.cli.tail_lines import LiveLines
from forwardpass.cli.tail_plane import choose_plane, follow_plane
from forwardpass.cli.tail_view import HEADER
from forwardpass.cli.terminal import printable
from forwardpass.clock import SystemClock
from forwardpass.config import variables as v
from forwardpass.config.settings import Sources
from forwardpass.relay.cadence import MAX_TICK_SECONDS
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget

__all__ = ["tail"]


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--ranks", type=WholeNumber(1, 4096), help="Ranks to read, from the base port or URL on.")
@click.option("--rank", type=WholeNumber(0), help="Show only this rank.")
@click.option("--plane", metavar="URL", help="Read this event plane instead of raw streams.")
@click.option("--endpoint", metavar="NS.COMPONENT.NAME", help=f"{v.ENDPOINT.meaning} [{v.ENDPOINT.name}]")
@click.option("--limit", type=WholeNumber(1), help="Stop after so many lines.")
@click.option("--seconds", type=Number(0, above=True), help="Stop after so long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def tail(
    urls: tuple[str, ...],
    ranks: int | None,
    rank: int | None,
    plane: str | None,
    endpoint: str | None,
    limit: int | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Show forward passes as they happen: one line each, until Ctrl-C.

    Without a URL it reads this machine's engine: one rank (or --ranks) from the base port on,
    DYN_FORWARDPASS_METRIC_PORT or 20380. The columns: when the message was received, its worker, rank and
    counter; the kind of pass and its time; prompts, their tokens computed and read from cache; sequences
    in decode and their context; requests waiting and their tokens. With --json every field is there,
    unknown ones too. With --plane it reads what relays publish to an event plane: all workers and ranks of
    the endpoint.

    Exit code 1 if nothing arrived.

    \b
    Examples:
      forwardpass tail --ranks 2
      forwardpass tail tcp://10.0.0.7:20380 --json | jq .fpm.wall_time
      forwardpass tail --plane nats://10.0.0.9:4222 --endpoint dynamo.backend.generate
    """
    log_to_stderr()
    view = choose_plane(plane, endpoint, streams=bool(urls) or ranks is not None)
    if view is not None:
        lines = LiveLines(as_json=as_json, limit=limit, rank=rank)
        return _run(lines, follow_plane(lines, view, seconds, _write), header=not as_json)
    if ranks is None and rank is not None and not urls:
        ranks = rank + 1
    targets = choose_targets(urls, ranks, Sources())
    if rank is not None:
        targets = tuple(target for target in targets if target.dp_rank in (rank, None))
    lines = LiveLines(as_json=as_json, data_parallel=len(targets) > 1, limit=limit, rank=rank)
    return _run(lines, _follow(lines, targets, seconds), header=not as_json)


def _run(lines: LiveLines, follow: Coroutine[Any, Any, None], *, header: bool) -> int:
    """Follow to the end; say what could not be read, and return the exit code."""
    try:
        asyncio.run(_with_header(follow, header=header))
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if lines.unreadable:
            unreadable = counted(lines.unreadable, "message")
            say(f"{unreadable} could not be read; the last one: {printable(lines.last_fault)}")
    return Exit.DONE if lines.shown else Exit.FINDING


async def _with_header(follow: Coroutine[Any, Any, None], *, header: bool) -> None:
    try:
        if header:
            _write([HEADER])
        await follow
    finally:
        follow.close()


async def _follow(lines: LiveLines, targets: Sequence[RelayTarget], seconds: float | None) -> None:
    clock, silence = SystemClock(), SilenceWatch()
    group = RelayGroup(targets, trace=None, on_payload=lines.note, clock=clock)
    await group.start()
    try:
        began = clock.monotonic()
        while not lines.finished:
            await asyncio.sleep(MAX_TICK_SECONDS)
            _write(lines.take())
            elapsed = clock.monotonic() - began
            for words in silence.note(elapsed, group.stats()):
                say(words)
            if seconds is not None and elapsed >= seconds:
                return
    finally:
        await group.stop(0.0)
        _write(lines.take())


def _write(lines: list[str]) -> None:
    """Write lines at once, in UTF-8: they are JSON, or a table of such text."""
    if lines:
        write_bytes(line.encode(errors="backslashreplace") for line in lines)
