"""Knows how one rank's run is put together from settings, a driver and the group of all ranks."""

from __future__ import annotations

import msgspec

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.content.base import TokenStream
from forwardpass.bench.content.identity import ContentKind
from forwardpass.bench.content.writer import PromptWriter
from forwardpass.bench.context import RunContext, RunSettings
from forwardpass.bench.driver import BenchDriver
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.evidence import MeasurementProtocol, ProtocolPreparation, measurement_protocol
from forwardpass.bench.grid import Grid
from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.plan import plan_grid, rank_invariants_digest
from forwardpass.bench.run import benchmark
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.session import Session
from forwardpass.bench.sync.group import Group
from forwardpass.clock import Clock

__all__ = ["RankRun"]


class RankRun:
    """A run on one rank: hand :attr:`session` to the engine's scheduler, then read :attr:`log`."""

    def __init__(
        self,
        config: BenchConfig,
        environment: BenchEnvironment,
        driver: BenchDriver,
        group: Group,
        clock: Clock,
        stream: TokenStream,
        content: ContentKind,
    ) -> None:
        """Take what is fixed for the run; ``content`` says what ``stream`` makes prompts of."""
        self.config = environment.applied_to(config)
        self.log = RunLog(dp_rank=group.rank, dp_size=group.size)
        self.layout = driver.layout()
        self.protocol = _protocol(self.config, environment, content)
        digest = rank_invariants_digest(
            self.config,
            self.layout,
            msgspec.to_builtins(self.protocol),
            prefill_real_seed=environment.prefill_real_seed,
        )
        self.capacity = msgspec.structs.replace(driver.capacity(), grid_invariants_digest=digest)
        """What this rank can hold."""
        self._driver, self._group = driver, group
        prompts = PromptWriter(stream, seed=environment.content_seed, dp_rank=group.rank)
        self.context = RunContext(_settings(self.config, environment), self.layout, prompts, self.log, clock)
        self.context.usable_blocks = self.capacity.usable_blocks_with_watermark
        self.session = Session(self.context, driver, group, lambda context: benchmark(context, self._agree))

    def _agree(self) -> tuple[CapacityEnvelope, Grid]:
        """Negotiate what every rank can hold, build the grid for that, and compare it with theirs."""
        common = self._group.agree_capacity(self.capacity)
        plan = plan_grid(self.config, self.layout, common, first_chunk=self._driver.first_chunk)
        grid = plan.grid
        self._group.agree_grid(
            grid.digest, grid.expected_points, [phase.value for phase in grid.missing_phases]
        )
        return common, grid


def _settings(config: BenchConfig, environment: BenchEnvironment) -> RunSettings:
    return RunSettings(
        warmup_iterations=config.warmup_iterations,
        timeout_seconds=config.timeout_seconds,
        real_seed=environment.prefill_real_seed,
        kv_warmup=environment.kv_warmup,
        giant_threshold=environment.giant_kv_threshold,
        giant_repeats=environment.giant_kv_repeats,
        explicit=config.points is not None,
    )


def _protocol(
    config: BenchConfig, environment: BenchEnvironment, content: ContentKind
) -> MeasurementProtocol:
    return measurement_protocol(
        seed=environment.content_seed,
        content=content.value,
        pool_tag=environment.pool_tag,
        preparation=ProtocolPreparation(
            warmup_iterations=config.warmup_iterations,
            prefill_real_seed=environment.prefill_real_seed,
            decode_real_kv_warmup=environment.kv_warmup,
            giant_kv_threshold=environment.giant_kv_threshold,
            giant_kv_repeats=environment.giant_kv_repeats,
        ),
    )
