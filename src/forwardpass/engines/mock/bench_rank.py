"""Knows how one rank of the simulated engine measures itself, from its settings to its file."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from forwardpass.artifact.blocks import KvWarm
from forwardpass.artifact.build import write_rank_artifact
from forwardpass.artifact.engine import (
    AttentionBlock,
    EngineBlock,
    GraphBlock,
    KvCacheBlock,
    KvGroupBlock,
    ModelBlock,
    ParallelBlock,
    QuantizationBlock,
    SchedulerBlock,
    VersionsBlock,
)
from forwardpass.artifact.from_log import RankFacts, artifact_of
from forwardpass.artifact.names import rank_path
from forwardpass.atomic import remove_stale
from forwardpass.bench.config import BenchConfig
from forwardpass.bench.content.synthetic import without_text
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.garbage import hold_garbage
from forwardpass.bench.rank import RankRun
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.sync.group import Group
from forwardpass.engines.mock.bench_costs import PassCosts
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_engine import MockBenchEngine, SimulatedClock
from forwardpass.engines.mock.bench_faults import BenchFault
from forwardpass.engines.mock.bench_faulty import FaultyRank

__all__ = ["VOCABULARY", "MockRank", "engine_block"]

VOCABULARY = 32_000
INELIGIBLE = "dense_model_content_insensitive"
"""Why the simulated model gains nothing from real contexts: it has no experts."""


class MockRank(Struct, frozen=True, kw_only=True):
    """One rank of a simulated worker that measures itself."""

    engine: MockBenchConfig
    config: BenchConfig
    environment: BenchEnvironment
    worker_id: str = ""
    sync_port: int | None = None
    slow_factor: float = 1.0
    faults: tuple[BenchFault, ...] = ()
    on_progress: Callable[[RunLog], None] | None = None
    """Called after each point, with the log so far."""
    on_end: Callable[[], None] | None = None
    """Called before the file is written, which nothing may interrupt."""

    def measure(self, group: Group, *, clock: SimulatedClock | None = None) -> RunLog:
        """Run, and write this rank's file, whatever comes of the run; an older one is removed first.

        Raises what ended the run, after the file was written: :class:`~forwardpass.errors.BenchError` and its
        kind, :class:`~forwardpass.errors.EngineError`.
        """
        config = self.environment.applied_to(self.config)
        path = rank_path(Path(config.output_path), group.rank)
        remove_stale(path)
        clock = clock or SimulatedClock()
        limits = self.engine.engine
        costs = PassCosts(
            limits.cost,
            self.engine.graph,
            noise=limits.noise,
            seed=f"{limits.seed}/{group.rank}",
            request_limit=limits.max_num_seqs,
        )
        costs.slow_factor = self.slow_factor
        engine = MockBenchEngine(self.engine, costs, clock, dp_rank=group.rank, worker_id=self.worker_id)
        kind, stream = without_text(VOCABULARY)
        run = RankRun(config, self.environment, engine.driver, group, clock, stream, kind)
        if self.faults:
            FaultyRank(self.faults, engine, run.context)
        hold = hold_garbage(self.environment)
        try:
            self._go(engine, run)
        except BaseException as error:
            run.session.abort(error)  # an interruption may come from anywhere
            raise
        finally:
            if self.on_end is not None:
                self.on_end()
            hold.release(freeze_again=False)  # the process ends, or is a caller's
            write_rank_artifact(path, artifact_of(run.log, self._facts(run, engine, path)))
        return run.log

    def _go(self, engine: MockBenchEngine, run: RankRun) -> None:
        settled = 0
        while run.session.active:
            engine.turn(run.session)
            if run.log.settled_points != settled and self.on_progress is not None:
                settled = run.log.settled_points
                self.on_progress(run.log)

    def _facts(self, run: RankRun, engine: MockBenchEngine, path: Path) -> RankFacts:
        return RankFacts(
            config=run.config,
            output_path=str(path),
            layout=run.layout,
            capacity=run.capacity,
            protocol=run.protocol,
            num_blocks=self.engine.engine.num_blocks,
            vocab_size=VOCABULARY,
            sync_port=self.sync_port,
            kvwarm=KvWarm(
                enabled=self.environment.kv_warmup,
                warm_eligible=False,
                skip_reason=INELIGIBLE if self.environment.kv_warmup else "flag_off",
                dataset=None,
                stages=(),
                points_real_kv=0,
                points_fake_fallback=0,
                giant_kv_threshold=self.environment.giant_kv_threshold,
                giant_kv_repeats=self.environment.giant_kv_repeats,
            ),
            engine=engine_block(self.engine, run.log.dp_rank, run.log.dp_size),
        )


def engine_block(config: MockBenchConfig, dp_rank: int, dp_size: int) -> EngineBlock:
    """Return the provenance of the simulated engine, in the form of a real one's."""
    engine = config.engine
    return EngineBlock(
        attention=AttentionBlock(),
        kv_cache=KvCacheBlock(
            cache_dtype="bfloat16",
            block_size=engine.block_tokens,
            enable_prefix_caching=engine.prefix_caching,
            groups=(
                KvGroupBlock(type="SimulatedAttention", dtype="bfloat16", block_size=engine.block_tokens),
                *(
                    KvGroupBlock(type=f"Simulated_{group.kind.value}", block_size=group.block_size)
                    for group in config.more_groups
                ),
            ),
        ),
        quantization=QuantizationBlock(),
        scheduler=SchedulerBlock(
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            async_scheduling=engine.async_scheduling,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=0,
        ),
        model=ModelBlock(dtype="bfloat16", model_type="simulated", model="forwardpass mock"),
        parallel=ParallelBlock(
            data_parallel_size=dp_size,
            data_parallel_rank=dp_rank,
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
            enable_expert_parallel=False,
        ),
        speculative=None,
        graph=GraphBlock(
            cudagraph_mode=config.graph.mode, cudagraph_capture_sizes=config.graph.capture_sizes
        ),
        versions=VersionsBlock(python=platform.python_version(), forwardpass=_own_version()),
        resolved=None,
        resolution="pending_worker_probe",
    )


def _own_version() -> str:
    from forwardpass import __version__

    return __version__
