"""Knows the command that runs the simulated engine."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

import click
import msgspec

from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_json
from forwardpass.cli.recording import draw_id
from forwardpass.cli.stream_options import checked_flags
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.config.settings import PublisherSettings, Sources
from forwardpass.config.variables import METRIC_PORT
from forwardpass.engines.mock.build import build_cluster
from forwardpass.engines.mock.cluster import MockCluster, RankReport
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.faults import FAULTS, parse_fault
from forwardpass.engines.mock.load import realistic

__all__ = ["MockResult", "mock"]


class MockResult(msgspec.Struct, frozen=True):
    """What ``--json`` prints."""

    seconds: float
    """Of the engine's own time, which is simulated with ``--fast``."""
    ranks: tuple[RankReport, ...]


def _fault_help() -> str:
    rows = [
        f"  {kind}  {spec.meaning}" + ("" if spec.default is None else f" [{spec.default:g}]")
        for kind, spec in FAULTS.items()
    ]
    return "\n".join(["\b", "Kinds of fault, what VALUE means and its default:", *rows])


@click.command(epilog=_fault_help())
@click.option("--ranks", type=WholeNumber(1, 256), default=2, show_default=True, help="Data-parallel ranks.")
@click.option("--port", metavar="PORT", help=f"Base port; rank r uses base + r. [{METRIC_PORT.name}, 20380]")
@click.option("--seconds", type=Number(0, above=True), help="Stop by itself after so long.")
@click.option(
    "--seed", type=WholeNumber(), default=0, show_default=True, help="The same seed, the same requests."
)
@click.option(
    "--rate", type=Number(0, 10_000), default=12.0, show_default=True,
    help="Requests per second and rank, bursts apart.",
)  # fmt: skip
@click.option("--delay", type=Number(0, 3600), default=0.0, help="Seconds before the first request.")
@click.option(
    "--async", "async_scheduling", is_flag=True, help="Schedule a pass before the last one's output."
)
@click.option("--fast", is_flag=True, help="Simulate as fast as messages can be sent, not in real time.")
@click.option(
    "--fault", "fault_texts", multiple=True, metavar="KIND=RANK[:VALUE]@SECONDSs",
    help="Let something go wrong; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The closing counts as JSON.")
def mock(
    ranks: int,
    port: str | None,
    seconds: float | None,
    seed: int,
    rate: float,
    delay: float,
    async_scheduling: bool,
    fast: bool,
    fault_texts: tuple[str, ...],
    as_json: bool,
) -> int:
    """Run the simulated engine and publish its forward passes.

    Each rank is a continuous-batching scheduler with a paged KV cache and a cost model in place of a
    GPU, under the load of a small chat service with bursts. Its stream is that of a real engine. Ctrl-C
    or SIGTERM ends it, and it says what each rank did.

    Exit code 2 if a setting is not accepted or a port is taken.

    \b
    Examples:
      forwardpass mock --ranks 2 --seconds 60
      forwardpass mock --fault slow-rank=1:3.0@5s --fault restart=0@10s
      forwardpass mock --fast --seconds 600 --json
    """
    log_to_stderr(logging.WARNING)
    faults = tuple(parse_fault(text) for text in fault_texts)
    sources = Sources(flags=checked_flags([("--port", METRIC_PORT, port)]))
    settings = PublisherSettings.load(sources)
    settings = msgspec.structs.replace(
        settings, strict=True, worker_id=settings.worker_id or draw_id()
    )  # an engine whose only work is to publish need not go on when it cannot
    config = MockConfig(async_scheduling=async_scheduling, seed=seed)
    load = realistic(rate, start_seconds=delay)
    with _stopped_by_signals() as stopped:
        cluster = build_cluster(config, load, settings, ranks=ranks, faults=faults, fast=fast)
        try:
            _announce(cluster, settings)
            ran = cluster.run(seconds if seconds is not None else inf, give_up=stopped)
        finally:
            cluster.close()
    _report(MockResult(ran, cluster.report()), as_json=as_json)
    return Exit.DONE


def _announce(cluster: MockCluster, settings: PublisherSettings) -> None:
    for engine in cluster.engines:
        say(f"rank {engine.dp_rank} publishes on tcp://{settings.bind_host}:{engine.publisher.port}")
    say(f"worker {printable(settings.worker_id)}; Ctrl-C ends it")


def _report(result: MockResult, *, as_json: bool) -> None:
    if as_json:
        write_json(result)
        return
    for rank in result.ranks:
        did = rank.requests
        dropped = ", ".join(f"{count:,} dropped ({why})" for why, count in rank.published.dropped.items())
        click.echo(
            f"rank {rank.dp_rank}: {counted(rank.passes, 'pass', 'passes')} in {result.seconds:.1f} s; "
            f"{did.finished:,} of {counted(did.submitted, 'request')} finished, "
            f"{counted(did.preemptions, 'preemption')}; "
            f"{did.prefill_tokens:,} prefill and {did.decode_tokens:,} decode tokens; "
            f"{rank.published.delivered:,} sent, {dropped or '0 dropped'}"
        )


@contextmanager
def _stopped_by_signals() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether SIGINT or SIGTERM came; a second signal ends the process."""
    asked: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}

    def ask(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    for number in numbers:
        signal.signal(number, ask)
    try:
        yield lambda: bool(asked)
    finally:
        for number in numbers:
            signal.signal(number, before[number])
