"""Knows the command that runs a self-benchmark on the simulated engine, each rank in a process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import click

from forwardpass.bench.config import load_bench_config
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.cli.bench_launch import BenchResult, RankEnd, finish, run_ranks
from forwardpass.cli.bench_mock import GRAPHS
from forwardpass.cli.bench_options import RUN_ROWS, bench_options
from forwardpass.cli.bench_progress import BenchProgress
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber
from forwardpass.cli.output import say, write_json
from forwardpass.cli.recording import draw_id, stop_on_signals
from forwardpass.cli.terminal import printable
from forwardpass.config import bench_variables as v
from forwardpass.config.settings import PublisherSettings, Sources, process_environment
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_faults import (
    BENCH_FAULTS,
    BenchFault,
    check_bench_faults,
    parse_bench_fault,
)
from forwardpass.engines.mock.bench_worker import Job
from forwardpass.engines.mock.bench_worker import Progress as RankProgress
from forwardpass.engines.mock.config import MockConfig

__all__ = ["run"]


def _fault_help() -> str:
    rows = [
        f"  {kind}  {spec.meaning}" + (f" [{spec.default:g}]" if spec.high else "")
        for kind, spec in BENCH_FAULTS.items()
    ]
    return "\n".join(["\b", "Kinds of fault, what VALUE means and its default:", *rows])


@click.command(epilog=_fault_help())
@click.option(
    "--engine", type=click.Choice(("mock",)), default="mock", show_default=True, help="What to measure."
)
@click.option(
    "--dp", "ranks", type=WholeNumber(1, 64), default=1, show_default=True, help="Data-parallel ranks."
)
@bench_options(RUN_ROWS)
@click.option(
    "--async", "async_scheduling", is_flag=True, help="Schedule a pass before the last one's output."
)
@click.option(
    "--noise", type=Number(0, 0.3), default=0.02, show_default=True, help="Spread of a pass's time."
)
@click.option(
    "--seed", type=WholeNumber(), default=0, show_default=True, help="The same seed, the same times."
)
@click.option(
    "--fault",
    "fault_texts",
    multiple=True,
    metavar="KIND=RANK[:VALUE][@POINT]",
    help="Let a rank go wrong, from the start or at a point; may be repeated.",
)
@click.option(
    "--sync-seconds",
    type=Number(0.01, 3600),
    help="Longest wait of ranks for each other, instead of 10; 30 times that in the first agreement.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document: status, counts and files.")
@click.option("--quiet", is_flag=True, help="No progress and no words but errors.")
def run(
    engine: str,
    ranks: int,
    flags: Mapping[str, str],
    async_scheduling: bool,
    noise: float,
    seed: int,
    fault_texts: tuple[str, ...],
    sync_seconds: float | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Measure an engine point by point, and write its artifacts.

    Every rank is a process and writes a file of its own; the files are merged, and what the workers say of
    themselves is written beside the merged one. The simulated engine takes simulated time: what it measures
    in minutes is there in seconds. Without --benchmark-mode both phases are measured.

    Ctrl-C or SIGTERM ends all ranks; their files say what was measured until then, and why it ended.

    A run with a skipped point is not merged: nobody may use it. With --fault something goes wrong on
    purpose.

    Exit code 1 if points are missing (some were skipped or the time was up), 2 for a setting that is not
    accepted, 3 if a file cannot be read or written, 4 if a rank failed, 130 if it was interrupted.

    \b
    Examples:
      forwardpass bench run --engine mock --dp 4 --benchmark-output-path /tmp/bench.json
      forwardpass bench run --benchmark-mode decode --benchmark-timeout 30 --json
      forwardpass bench run --dp 2 --fault late-output=1@5 --fault crash=0@9
    """
    log_to_stderr(logging.WARNING)
    faults = tuple(parse_bench_fault(text) for text in fault_texts)
    check_bench_faults(faults, ranks)
    jobs = _jobs(
        flags,
        ranks,
        MockConfig(
            max_model_len=4096, num_blocks=8192, async_scheduling=async_scheduling, noise=noise, seed=seed
        ),
        faults,
        sync_seconds,
    )
    with BenchProgress(ranks, quiet=quiet or as_json) as bar:
        ends, interrupted = asyncio.run(
            _run(jobs, lambda rank, progress: bar.take(rank, progress.settled, progress.expected))
        )
    result = finish(jobs, ends)
    if as_json:
        write_json(result)
    elif not quiet:
        _show(result)
    for line in (*(f"skipped: {skip}" for skip in result.skips), *result.errors):
        say(printable(line))
    if interrupted:
        return Exit.INTERRUPTED
    if result.errors:
        return Exit.PARTIAL
    return Exit.DONE if result.status == "complete" and not result.skipped else Exit.FINDING


def _jobs(
    flags: Mapping[str, str],
    ranks: int,
    engine: MockConfig,
    faults: tuple[BenchFault, ...],
    sync_seconds: float | None,
) -> list[Job]:
    environment = process_environment()
    mode = environment.get(v.MODE.name) or "agg"
    sources = Sources({**environment, v.MODE.name: mode}, flags)
    config = load_bench_config(sources)
    assert config is not None  # there is a mode
    bench = BenchEnvironment.load(sources)
    port = PublisherSettings.load(sources).base_port + ranks
    worker = draw_id()
    return [
        Job(
            engine=MockBenchConfig(engine=engine, graph=GRAPHS),
            config=bench.applied_to(config),
            environment=bench,
            worker_id=worker,
            rank=rank,
            size=ranks,
            port=port,
            leg_seconds=sync_seconds,
            faults=tuple(fault for fault in faults if fault.dp_rank == rank),
        )
        for rank in range(ranks)
    ]


async def _run(
    jobs: list[Job], on_progress: Callable[[int, RankProgress], None]
) -> tuple[list[RankEnd], bool]:
    stop = asyncio.Event()
    with stop_on_signals(stop):
        ends = await run_ranks(jobs, on_progress, stop)
    return ends, stop.is_set()


def _show(result: BenchResult) -> None:
    click.echo(
        f"{result.status}: {result.points:,} points measured, {result.skipped:,} skipped, on each rank"
    )
    for path in result.rank_files:
        click.echo(f"  {printable(path)}")
    if result.skips:
        click.echo("not merged: a run with skipped points is nobody's to use")
    if result.merged is not None:
        click.echo(f"merged: {printable(result.merged)}")
    if result.worker_probe is not None:
        click.echo(f"what the workers said: {printable(result.worker_probe)}")
