"""Knows the command that collects the forward passes of a fleet from a stream of JetStream."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections.abc import Sequence
from typing import Any

import click
import msgspec

from forwardpass.cli.amounts import bytes_option, seconds_option
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_json
from forwardpass.cli.recording import stop_on_signals
from forwardpass.cli.stream_options import checked_flags
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.clock import Clock, SystemClock
from forwardpass.collect.collector import CollectCounts, Collector
from forwardpass.collect.output import Output, SegmentOutput
from forwardpass.collect.sort import CollectedRow
from forwardpass.columnar.collected import CollectedDataset
from forwardpass.config import variables as v
from forwardpass.config.settings import CaptureMode, Fsync, Sources, TraceSettings
from forwardpass.errors import ConfigError
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.nats.consumer import open_consumer
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.plane.nats.stream import StreamSettings
from forwardpass.plane.shown import shown_url
from forwardpass.quiet import QuietLog
from forwardpass.trace.record import MessageId

__all__ = ["collect"]

PARQUET_SECONDS = 10.0
"""Rows of Parquet that wait to become files; a third of the time that the server waits for us."""
_BATCHES = {"trace": 1000, "parquet": 50_000}
_KEEP_ALL = 2**62
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


class _DatasetOutput:
    """A dataset as an output of the collector."""

    def __init__(self, folder: str, name: str) -> None:
        self._dataset = CollectedDataset(folder, name)
        self._log = QuietLog(logging.getLogger(__name__))

    def written_before(self, most: int) -> list[MessageId]:
        """Return the messages that are there already."""
        return self._dataset.messages(most)

    def write(self, rows: Sequence[CollectedRow]) -> list[bool]:
        """Write all rows, or none."""
        if not rows:
            return []
        done = self._dataset.write([row.line for row in rows], [row.message_id.sequence for row in rows])
        if not done:
            self._log.warning("disk", f"rows cannot be written: {self._dataset.last_error}; they come again")
        return [done] * len(rows)

    def close(self) -> None:
        """Do nothing: files are whole."""

    @property
    def files(self) -> tuple[str, ...]:
        """The files written here."""
        return self._dataset.files


@click.command()
@click.option(
    "--nats",
    "url",
    default="nats:",
    metavar="URL",
    show_default=True,
    help="Servers; nats: means those of NATS_SERVER.",
)
@click.option(
    "--output", metavar="PREFIX", help=f"Prefix of traces, or folder of Parquet [{v.OUTPUT_PATH.name}]."
)
@click.option("--format", "form", type=click.Choice(["trace", "parquet"]), default="trace", show_default=True)
@click.option(
    "--stream",
    default="forward-passes",
    metavar="NAME",
    show_default=True,
    help="Stream; made if it is missing.",
)
@click.option(
    "--durable",
    default="forwardpass-collect",
    metavar="NAME",
    show_default=True,
    help="Consumer that all collectors of a fleet share; made if it is missing.",
)
@click.option("--name", metavar="NAME", help="Name of this collector in its files; drawn by default.")
@click.option(
    "--batch",
    type=WholeNumber(1, 100_000),
    help="Messages that are written and acknowledged together [1000; parquet 50000].",
)
@click.option(
    "--batch-seconds",
    type=Number(0.1, 300),
    help="Longest time that a message waits for its batch [1; parquet 10].",
)
@click.option(
    "--fsync",
    metavar="never|segment|flush",
    help="When bytes are forced to the disk: flush is before a message is acknowledged [flush].",
)
@click.option("--roll-bytes", metavar="BYTES", help=f"{v.ROLL_BYTES.meaning} [{v.ROLL_BYTES.name}]")
@click.option(
    "--max-segments", type=WholeNumber(1), help="Segments of this collector to keep; all by default."
)
@click.option(
    "--stream-max-bytes",
    default="4GiB",
    callback=bytes_option,
    metavar="SIZE",
    show_default=True,
    help="Size of a stream that is made here.",
)
@click.option(
    "--stream-max-age",
    default="24h",
    callback=seconds_option,
    metavar="TIME",
    show_default=True,
    help="Longest time that a stream that is made here keeps a message.",
)
@click.option(
    "--stream-replicas",
    type=WholeNumber(1, 5),
    default=1,
    show_default=True,
    help="Copies of a stream that is made here.",
)
@click.option(
    "--ack-wait",
    type=Number(1, 3600),
    default=30,
    metavar="SECONDS",
    show_default=True,
    help="Time after which a consumer that is made here delivers again.",
)
@click.option("--seconds", type=Number(0, above=True), help="Stop by itself after so long.")
@click.option("--until-empty", is_flag=True, help="Stop by itself once nothing is left, for anybody.")
@click.option("--json", "as_json", is_flag=True, help="What was collected as JSON.")
@click.option("--quiet", is_flag=True, help="No words while it runs.")
def collect(
    url: str, as_json: bool, quiet: bool, seconds: float | None, until_empty: bool, **given: Any
) -> int:
    """Collect the forward passes of a fleet, from a stream of JetStream into traces or Parquet.

    Every publisher on the NATS plane is collected, whatever its endpoint. Any number of collectors may share
    the work, on any machines; each message goes to one of them, and is acknowledged once its row is on the
    disk. A collector that dies loses nothing: what it had not acknowledged comes again, and `trace merge`
    gives each message once. Ctrl-C or SIGTERM ends it after its last batch; a second one kills it.

    Exit code 1 if nothing arrived, 2 for a setting that is not accepted, 3 if the server cannot be reached or
    nothing can be written there, 4 if the disk refused rows to the end.

    \b
    Examples:
      forwardpass collect --nats nats://10.0.0.7:4222 --output /var/tmp/fleet
      forwardpass collect --output /data/passes --format parquet --batch-seconds 60 --ack-wait 300
      forwardpass collect --until-empty --json && forwardpass trace merge /tmp/dynamo-fpm --to all.jsonl.gz
    """
    log_to_stderr(logging.WARNING)
    sources = Sources(flags=_flags(given))
    stream = StreamSettings(
        stream=given["stream"],
        durable=given["durable"],
        max_bytes=given["stream_max_bytes"],
        max_age_seconds=given["stream_max_age"],
        replicas=given["stream_replicas"],
        ack_wait_seconds=given["ack_wait"],
    )
    stream.check()
    NatsSettings.load(url, sources)  # before anything is looked for
    name = _name(given["name"])
    clock = SystemClock()
    batch = given["batch"] or _BATCHES[given["form"]]
    wait = given["batch_seconds"] or (PARQUET_SECONDS if given["form"] == "parquet" else 1.0)
    if wait > stream.ack_wait_seconds / 2:
        raise ConfigError(
            "--batch-seconds", wait, f"at most half of --ack-wait ({stream.ack_wait_seconds:g})"
        )
    output = _output(given["form"], sources, given["max_segments"], name, clock)

    async def run() -> Collector:
        source = await open_consumer(url, stream, PlaneContext(sources, clock))
        try:
            collector = Collector(source, output, clock, batch=batch, batch_seconds=wait)
            known = await collector.prepare()
            if not quiet:
                say(_beginning(stream.stream, url, name, known))
            await _until_stopped(collector, seconds, until_empty=until_empty)
        finally:
            await source.close()
            await asyncio.to_thread(output.close)
        return collector

    done = asyncio.run(run())
    _report(done.counts, name, output.files, as_json=as_json, quiet=quiet)
    if done.failing:
        return Exit.PARTIAL
    return Exit.DONE if done.counts.received else Exit.FINDING


def _beginning(stream: str, url: str, name: str, known: int) -> str:
    there = f"; {known:,} latest messages are there already" if known else ""
    return f"collecting stream {stream} of {printable(shown_url(url))} as {name}{there}; Ctrl-C stops"


def _flags(given: dict[str, Any]) -> dict[str, str]:
    options = (("output", v.OUTPUT_PATH), ("fsync", v.FSYNC), ("roll_bytes", v.ROLL_BYTES))
    return checked_flags((f"--{name.replace('_', '-')}", row, given[name]) for name, row in options)


def _name(given: str | None) -> str:
    if given is None:
        return f"collector-{secrets.token_hex(4)}"
    if _NAME.fullmatch(given) is None:
        raise ConfigError("--name", given, "1 to 64 letters, digits, - and _")
    return given


def _output(form: str, sources: Sources, max_segments: int | None, name: str, clock: Clock) -> Output:
    if form == "parquet":
        return _DatasetOutput(sources.value(v.OUTPUT_PATH), name)
    settings = msgspec.structs.replace(
        TraceSettings.load(sources), mode=CaptureMode.FULL, max_segments=max_segments or _KEEP_ALL
    )
    if sources.resolve(v.FSYNC).source == "default":
        settings = msgspec.structs.replace(settings, fsync=Fsync.FLUSH)
    return SegmentOutput(settings, name, clock)


async def _until_stopped(collector: Collector, seconds: float | None, *, until_empty: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    timer = loop.call_later(seconds, stop.set) if seconds is not None else None
    with stop_on_signals(stop):
        await collector.run(stop, until_empty=until_empty)
    if timer is not None:
        timer.cancel()


def _report(counts: CollectCounts, name: str, files: Sequence[str], *, as_json: bool, quiet: bool) -> None:
    if as_json:
        write_json({"name": name, **msgspec.to_builtins(counts), "files": list(files)})
    elif not quiet:
        say(_summary(counts, len(files)))


def _summary(counts: CollectCounts, files: int) -> str:
    """Return what was done in one line; what did not happen is left out."""
    parts = [
        f"received {counts.received:,}",
        f"wrote {counted(counts.written, 'row')} in {counted(files, 'file')}",
        f"acknowledged {counts.acknowledged:,}",
    ]
    others = (
        ("redelivered", counts.redelivered),
        ("duplicates dropped", counts.duplicates),
        ("malformed and given up", counts.malformed),
        ("refused by the disk", counts.not_written),
        ("not confirmed", counts.unconfirmed),
    )
    return "; ".join([*parts, *(f"{count:,} {words}" for words, count in others if count)])
