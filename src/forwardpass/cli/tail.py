"""Knows the command that shows forward passes as they happen."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

import click

from forwardpass.cli.live_status import SilenceWatch
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_bytes
from forwardpass.cli.stream_options import choose_targets
from forwardpass.cli.summary_view import counted
from forwardpass.cli.tail_view import HEADER, decode_message, json_line, table_line
from forwardpass.cli.terminal import printable
from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import Sources
from forwardpass.errors import WireError
from forwardpass.relay.cadence import MAX_TICK_SECONDS
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget
from forwardpass.wire.frames import Frames

__all__ = ["LiveLines", "tail"]


class LiveLines:
    """Turns messages into lines, as they come in; at most ``limit`` lines, of ``rank`` only."""

    def __init__(
        self,
        *,
        as_json: bool,
        data_parallel: bool = False,
        limit: int | None = None,
        rank: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.unreadable = 0
        """Messages that could not be decoded or have no form in JSON."""
        self.last_fault = ""
        self.shown = 0
        self._as_json = as_json
        self._data_parallel = data_parallel
        self._limit = limit
        self._rank = rank
        self._clock: Clock = clock or SystemClock()
        self._lines: list[str] = []

    @property
    def finished(self) -> bool:
        """Whether the limit is reached."""
        return self._limit is not None and self.shown >= self._limit

    def note(self, dp_rank: int | None, frames: Frames) -> None:
        """Take a message; its line waits for :meth:`take`. ``dp_rank`` is the stream's, not the message's."""
        if self.finished:
            return
        try:
            message = decode_message(frames.payload)
        except WireError as error:
            self.unreadable += 1
            self.last_fault = str(error)
            return
        metrics = message.metrics
        if self._rank is not None and metrics.dp_rank != self._rank:
            return
        now = self._clock.unix_ms()
        self.shown += 1
        if self._as_json:
            self._lines.append(json_line(message, frames.seq, now))
        else:
            self._lines.append(table_line(metrics, now, data_parallel=self._data_parallel))

    def take(self) -> list[str]:
        """Return the lines that wait."""
        lines, self._lines = self._lines, []
        return lines


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@click.option("--ranks", type=WholeNumber(1, 4096), help="Ranks to read, from the base port or URL on.")
@click.option("--rank", type=WholeNumber(0), help="Show only this rank.")
@click.option("--limit", type=WholeNumber(1), help="Stop after so many lines.")
@click.option("--seconds", type=Number(0, above=True), help="Stop after so long.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document per line.")
def tail(
    urls: tuple[str, ...],
    ranks: int | None,
    rank: int | None,
    limit: int | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Show forward passes as they happen: one line each, until Ctrl-C.

    Without a URL it reads this machine's engine: one rank (or --ranks) from the base port on,
    DYN_FORWARDPASS_METRIC_PORT or 20380. The columns: when the message was received, its worker, rank and
    counter; the kind of pass and its time; prompts, their tokens computed and read from cache; sequences
    in decode and their context; requests waiting and their tokens. With --json every field is there,
    unknown ones too.

    Exit code 1 if nothing arrived.

    \b
    Examples:
      forwardpass tail --ranks 2
      forwardpass tail tcp://10.0.0.7:20380 --json | jq .fpm.wall_time
    """
    if ranks is None and rank is not None and not urls:
        ranks = rank + 1
    log_to_stderr()
    targets = choose_targets(urls, ranks, Sources())
    if rank is not None:
        targets = tuple(target for target in targets if target.dp_rank in (rank, None))
    lines = LiveLines(as_json=as_json, data_parallel=len(targets) > 1, limit=limit, rank=rank)
    try:
        asyncio.run(_follow(lines, targets, seconds, header=not as_json))
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if lines.unreadable:
            unreadable = counted(lines.unreadable, "message")
            say(f"{unreadable} could not be read; the last one: {printable(lines.last_fault)}")
    return Exit.DONE if lines.shown else Exit.FINDING


async def _follow(
    lines: LiveLines, targets: Sequence[RelayTarget], seconds: float | None, *, header: bool
) -> None:
    clock, silence = SystemClock(), SilenceWatch()
    group = RelayGroup(targets, trace=None, on_payload=lines.note, clock=clock)
    await group.start()
    try:
        began = clock.monotonic()
        if header:
            _write([HEADER])
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
