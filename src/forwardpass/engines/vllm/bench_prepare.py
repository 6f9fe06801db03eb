"""Knows what a self-benchmark changes in the configuration of an engine, after its making and before its
start.

It runs where vLLM has built the configuration, in every process that does: the API servers and what starts
the engine cores. What cannot be measured is refused here, before any of them exists.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forwardpass.bench.config import BenchConfig, LaunchFacts, check_launch
from forwardpass.bench.engine_config import check_scheduler, from_engine, to_engine
from forwardpass.bench.handover import Handover, Order, Outcome, Verdict
from forwardpass.config.bench_variables import GC_POLICY, MODE, OPTIONS
from forwardpass.config.settings import Sources, process_environment
from forwardpass.engines.vllm.bench_rank import scheduler_facts
from forwardpass.engines.vllm.built import derives_from, read_built
from forwardpass.engines.vllm.launch import SCHEDULER
from forwardpass.errors import ConfigError, ForwardPassError

__all__ = ["BENCH_SCHEDULER", "EXTENSION", "GC_EXTENSION", "prepare_benchmark"]

BENCH_SCHEDULER = "forwardpass.engines.vllm.bench_scheduler.BenchForwardPassScheduler"
EXTENSION = "forwardpass.engines.vllm.worker_extension.ForwardPassWorkerExtension"
GC_EXTENSION = "forwardpass.engines.vllm.worker_extension_gc.ForwardPassGcWorkerExtension"
"""The same for workers whose garbage collector is held."""
_CHOICE_OPTION = OPTIONS[MODE.name]
_MEASURED_ROLES = frozenset({"aggregated", "prefill", "decode", "headless"})


def prepare_benchmark(config: Any, *, headless: bool) -> None:
    """Put our scheduler and our worker extension into ``config``, and turn graph statistics on.

    Nothing is done once the benchmark has ended. Raises ``SystemExit`` with one line, which the launcher's
    folder then has too, for what cannot be measured; ``config`` is then unchanged.
    """
    handover = Handover.of(process_environment())
    order = None if handover is None else handover.order()
    if handover is None or order is None:
        return
    try:
        _prepare(config, handover, order, Sources(), headless=headless)
    except (ForwardPassError, AttributeError) as error:
        text = str(error) if isinstance(error, ForwardPassError) else repr(error)
        handover.conclude(Outcome(Verdict.REFUSED, serving=False, message=text))
        raise SystemExit(f"forwardpass: the engine cannot be measured: {text}") from error


def _prepare(config: Any, handover: Handover, order: Order, sources: Sources, *, headless: bool) -> None:
    settings = from_engine(order.benchmark)
    engine = read_built(config, headless=headless)
    if engine.role.name not in _MEASURED_ROLES:
        accepted = f"no benchmark: a model in the role {engine.role.name!r} generates no tokens"
        raise ConfigError(_CHOICE_OPTION, settings.mode.value, accepted)
    parallel, observability = config.parallel_config, config.observability_config
    check_scheduler(settings, scheduler_facts(config))
    extension = parallel.worker_extension_cls or None
    foreign = None if extension in (None, EXTENSION, GC_EXTENSION) else extension
    chosen = None if engine.scheduler == SCHEDULER else engine.scheduler
    facts = LaunchFacts(
        data_parallel_size=int(parallel.data_parallel_size),
        is_moe=bool(config.model_config.is_moe),
        default_worker_class=str(parallel.worker_cls).startswith("vllm."),
        scheduler_cls=chosen,
        our_scheduler=BENCH_SCHEDULER.rpartition(".")[2],
        scheduler_is_derived=chosen is not None and derives_from(chosen, BENCH_SCHEDULER),
        foreign_worker_extension=foreign,
    )
    check_launch(settings, sources, facts)
    counted = bool(observability.cudagraph_metrics)
    _tell_ranks(handover, order, settings, foreign=foreign, counted=counted)
    if chosen is None:
        config.scheduler_config.scheduler_cls = BENCH_SCHEDULER
    if foreign is None:
        parallel.worker_extension_cls = GC_EXTENSION if sources.value(GC_POLICY) else EXTENSION
    observability.cudagraph_metrics = True


def _tell_ranks(
    handover: Handover, order: Order, settings: BenchConfig, *, foreign: str | None, counted: bool
) -> None:
    """Add to the order what only a built configuration shows. Every process finds the same."""
    told = msgspec.structs.replace(
        settings,
        worker_extension_installed=foreign is None,
        user_worker_extension_cls=foreign,
        cudagraph_metrics_auto_enabled=not counted,
    )
    handover.give(msgspec.structs.replace(order, benchmark=to_engine(told), prepared=True))
