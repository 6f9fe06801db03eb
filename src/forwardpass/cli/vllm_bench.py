"""Knows what ``vllm serve`` does around an engine that measures itself first: watch it, stop it, say how it
was.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from forwardpass.bench.config import BenchConfig, load_bench_config
from forwardpass.bench.engine_config import to_engine
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.handover import Handover, OnFailure, Order, Outcome, Verdict
from forwardpass.cli.bench_progress import BenchProgress
from forwardpass.cli.child import SignalPasser
from forwardpass.cli.main import Exit
from forwardpass.cli.output import say
from forwardpass.cli.terminal import printable
from forwardpass.config.settings import Sources
from forwardpass.engines.vllm.arguments import ServeArguments
from forwardpass.engines.vllm.bench_launch import bench_arguments, bench_environment, refuse_launch
from forwardpass.engines.vllm.launch import InstalledVllm, LaunchPlan

__all__ = ["SelfBenchmark", "wanted_benchmark"]

logger = logging.getLogger(__name__)

WATCH_SECONDS = 0.25
STOP_SECONDS = 20.0
"""How long the ranks may take to end in order; then the server gets the signal that asked for it."""
_EXITS = {Verdict.INTERRUPTED: Exit.INTERRUPTED, Verdict.REFUSED: Exit.USAGE}


class SelfBenchmark:
    """One benchmark of one launch. Close it when the server has ended: its folder goes."""

    def __init__(
        self,
        config: BenchConfig,
        environment: BenchEnvironment,
        on_failure: OnFailure,
        facts: ServeArguments,
        *,
        quiet: bool,
    ) -> None:
        self._config, self._environment = config, environment
        self._quiet = quiet
        self._handover = Handover(Path(tempfile.mkdtemp(prefix="forwardpass-bench-")))
        self.arguments = bench_arguments(facts)
        self._handover.give(Order(to_engine(config), on_failure, await_server=bool(self.arguments)))
        self._stopping = False

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._handover.folder, ignore_errors=True)

    def child_environment(self, plan: LaunchPlan, worker_id: str) -> dict[str, str]:
        """Return the server's whole environment."""
        return bench_environment(plan, self._handover.folder, self._config, self._environment, worker_id)

    @asynccontextmanager
    async def watching(self, signals: SignalPasser, ranks: int) -> AsyncIterator[None]:
        """Show how far it is while the context is open, and end it in order when a signal comes."""
        signals.keep = lambda number: self._keep(signals, number)
        watch = asyncio.create_task(self._watch(ranks))
        try:
            yield
        finally:
            watch.cancel()
            await asyncio.wait({watch})

    @property
    def served(self) -> bool:
        """Whether the server came so far as to answer requests."""
        outcome = self._handover.outcome()
        return outcome is not None and outcome.serving

    def exit_status(self, status: int) -> int:
        """Say how it was if the server did not serve, and return the status to end with."""
        outcome = self._handover.outcome()
        if outcome is None:
            if self._handover.led:
                say("forwardpass: the server ended before the self-benchmark did")
            return status or Exit.PARTIAL
        if outcome.serving:
            return status
        say(f"forwardpass: {printable(_failure(outcome))}")
        return _EXITS.get(outcome.verdict, Exit.PARTIAL)

    def _keep(self, signals: SignalPasser, number: signal.Signals) -> bool:
        """Deal with the first signal during the run: the ranks end after the point that they are at."""
        ends = number in (signal.SIGINT, signal.SIGTERM)
        if not ends or self._stopping or not self._handover.led or self._handover.outcome() is not None:
            return False
        self._stopping = True
        self._handover.ask_to_stop()
        say("forwardpass: ending the self-benchmark after this point; the same signal again ends it now")
        asyncio.get_running_loop().call_later(STOP_SECONDS, self._insist, signals, number)
        return True

    def _insist(self, signals: SignalPasser, number: signal.Signals) -> None:
        logger.warning("the self-benchmark did not end within %g s; the server is ended", STOP_SECONDS)
        signals.pass_on(number)

    async def _watch(self, ranks: int) -> None:
        while not self._handover.led:
            await asyncio.sleep(WATCH_SECONDS)
        with BenchProgress(ranks, quiet=self._quiet, lines=True) as bar:
            while (outcome := self._handover.outcome()) is None:
                for rank, progress in self._handover.progress().items():
                    bar.take(rank, progress.settled, progress.expected, progress.point)
                await asyncio.sleep(WATCH_SECONDS)
        self._announce(outcome)

    def _announce(self, outcome: Outcome) -> None:
        for warning in outcome.warnings:
            logger.warning("%s", warning)
        if not outcome.serving:
            return
        if outcome.verdict is Verdict.FAILED:
            logger.error("%s; serving all the same, as --benchmark-on-failure says", outcome.message)
            return
        if outcome.verdict is Verdict.PARTIAL:
            logger.warning("the self-benchmark's time was up before all points were measured")
        if not self._quiet:
            say(
                f"self-benchmark {outcome.verdict.value}: {outcome.points:,} points measured, "
                f"{outcome.skipped:,} skipped, on each rank; {printable(str(outcome.merged))}, "
                "and at /fpm/perf_metrics"
            )


def wanted_benchmark(
    sources: Sources,
    on_failure: str,
    installed: InstalledVllm,
    facts: ServeArguments,
    environment: Mapping[str, str],
    *,
    quiet: bool,
) -> SelfBenchmark | None:
    """Return the benchmark that was asked for, ``None`` if none was.

    Raises :class:`~forwardpass.errors.ConfigError` and :class:`~forwardpass.errors.ManifestError` for what
    cannot be measured: unlike a trace, a benchmark that was asked for is not left out.
    """
    config = load_bench_config(sources)
    if config is None or facts.only_help:
        return None
    refuse_launch(config, facts, installed, environment)
    return SelfBenchmark(config, BenchEnvironment.load(sources), OnFailure(on_failure), facts, quiet=quiet)


def _failure(outcome: Outcome) -> str:
    files = f"; {', '.join(outcome.rank_files)}" if outcome.rank_files else ""
    if outcome.verdict is Verdict.INTERRUPTED:
        return f"interrupted: {outcome.points:,} points were measured until then{files}"
    if outcome.verdict is Verdict.REFUSED:
        return f"the engine cannot be measured: {outcome.message}"
    return f"the engine was not measured, so the server did not start: {outcome.message}{files}"
