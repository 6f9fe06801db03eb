"""Knows how a rank of vLLM measures itself: from the engine's configuration to this rank's file.

The scheduler asks for it when it is built. The stream of Forward Pass Metrics is paused from then until the
file is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forwardpass.artifact.blocks import KvWarm
from forwardpass.artifact.build import write_rank_artifact
from forwardpass.artifact.from_log import RankFacts, artifact_of
from forwardpass.artifact.names import rank_path
from forwardpass.atomic import remove_stale
from forwardpass.bench.config import BenchConfig
from forwardpass.bench.content.identity import ContentKind
from forwardpass.bench.engine_config import SchedulerFacts, check_scheduler, from_engine
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.garbage import hold_garbage
from forwardpass.bench.handover import Handover
from forwardpass.bench.rank import RankRun
from forwardpass.bench.sync.group import Group, open_group
from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import PublisherSettings, Sources, process_environment
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.bench_content import content_of, vocabulary_of
from forwardpass.engines.vllm.bench_driver import VllmDriver
from forwardpass.engines.vllm.bench_hook import BenchHook
from forwardpass.engines.vllm.bench_line import LauncherLine
from forwardpass.engines.vllm.provenance import capture_engine
from forwardpass.engines.vllm.recorder import Recorder
from forwardpass.errors import ConfigError, EngineError

__all__ = ["CONFIG_KEY", "open_benchmark", "scheduler_facts"]

logger = logging.getLogger(__name__)

CONFIG_KEY = "benchmark"
"""Of vLLM's ``additional_config``; the reference's."""

DENSE = "dense_model_content_insensitive"
NOT_YET = "not_implemented"
"""Why no decode has real KV under it: shadows of computed chains are not built yet."""


def open_benchmark(
    scheduler: Any, recorder: Recorder, sources: Sources | None = None, clock: Clock | None = None
) -> BenchHook | None:
    """Return what measures the engine of ``scheduler``, ``None`` if it is not to be measured.

    What to measure stands in the folder that a launcher of ours names, else in the engine's
    ``additional_config``, as the reference hands it over. An older file of this rank is removed, and
    ``recorder`` paused. Raises :class:`~forwardpass.errors.ConfigError` and its kind for what cannot be
    measured so, and what opening the group of ranks raises: an engine that was to be measured must not serve
    without.
    """
    handover = Handover.of(process_environment())
    order = None if handover is None else handover.order()
    document = (scheduler.vllm_config.additional_config or {}).get(CONFIG_KEY)
    if order is not None:
        document = order.benchmark
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise ConfigError(f"additional_config[{CONFIG_KEY!r}]", document, "an object")
    sources = sources or Sources()
    config, environment = from_engine(document), BenchEnvironment.load(sources)
    check_scheduler(config, scheduler_facts(scheduler.vllm_config))
    rank = _Rank(scheduler, recorder, config, environment, sources, clock or SystemClock())
    return rank.hook_for(
        handover if order is not None else None, await_server=bool(order and order.await_server)
    )


def scheduler_facts(config: Any) -> SchedulerFacts:
    """Return what vLLM's ``config`` says of what can be measured."""
    return SchedulerFacts(
        speculative_decoding=config.speculative_config is not None,
        pipeline_parallel_size=config.parallel_config.pipeline_parallel_size,
    )


class _Rank:
    """Everything that a run on one rank needs, put together."""

    def __init__(
        self,
        scheduler: Any,
        recorder: Recorder,
        config: BenchConfig,
        environment: BenchEnvironment,
        sources: Sources,
        clock: Clock,
    ) -> None:
        self._scheduler, self._recorder, self._environment = scheduler, recorder, environment
        rank = compat.rank_facts(scheduler)
        self._path = rank_path(Path(environment.applied_to(config).output_path), rank.dp_rank)
        remove_stale(self._path)
        settings = PublisherSettings.load(sources)
        self._port = settings.base_port + rank.dp_size
        self._driver = VllmDriver(scheduler)
        kind, stream = content_of(scheduler, environment, rank.dp_rank)
        self._kind = kind
        self._group: Group = open_group(
            rank.dp_rank, rank.dp_size, compat.master_address(scheduler), self._port, clock=clock
        )
        self._run = RankRun(config, environment, self._driver, self._group, clock, stream, kind)
        self._engine = capture_engine(scheduler, self._run.layout.graph)
        self._clock, self._worker_id = clock, settings.worker_id
        recorder.pause()
        self._garbage = hold_garbage(environment)

    def hook_for(self, handover: Handover | None, *, await_server: bool) -> BenchHook:
        """Return what takes the run into the scheduler; ``handover`` is the launcher's folder, and with
        ``await_server`` a server on this host will wait for the run.
        """
        log, line = self._run.log, None
        if handover is not None:
            line = LauncherLine(handover, log, self._clock, await_server=await_server)
        return BenchHook(
            self._scheduler,
            self._run.session,
            self._clock,
            worker_id=self._worker_id,
            dp_rank=log.dp_rank,
            waiting=self._recorder.waiting,
            on_end=self._end,
            line=line,
        )

    def _end(self) -> None:
        """Write this rank's file, then let the stream go on."""
        self._garbage.release(freeze_again=True)  # as vLLM's engine core is when it serves
        log = self._run.log
        cleared = log.error is None or self._driver.reset_prefix_cache()
        try:
            write_rank_artifact(self._path, artifact_of(log, self._facts()))
        finally:
            self._group.close()
        if not cleared:
            raise EngineError("the prefix cache cannot be cleared after a benchmark that failed")
        self._recorder.resume()
        logger.info("wrote the self-benchmark of this rank to %s", self._path)

    def _facts(self) -> RankFacts:
        run, environment = self._run, self._environment
        return RankFacts(
            config=run.config,
            output_path=str(self._path),
            layout=run.layout,
            capacity=run.capacity,
            protocol=run.protocol,
            num_blocks=self._scheduler.cache_config.num_gpu_blocks,
            vocab_size=vocabulary_of(self._scheduler),
            prompt_mode="zeros" if self._kind is ContentKind.ZEROS else "salted_random",
            sync_port=self._port,
            kvwarm=KvWarm(
                enabled=environment.kv_warmup,
                warm_eligible=False,
                skip_reason=self._no_real_kv(),
                dataset=None,
                stages=(),
                points_real_kv=0,
                points_fake_fallback=0,
                giant_kv_threshold=environment.giant_kv_threshold,
                giant_kv_repeats=environment.giant_kv_repeats,
            ),
            engine=self._engine,
        )

    def _no_real_kv(self) -> str:
        if not self._environment.kv_warmup:
            return "flag_off"
        return NOT_YET if compat.has_experts(self._scheduler) else DENSE
