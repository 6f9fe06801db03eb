"""Knows how options and variables become the settings of a self-benchmark, and which of them contradict.

The launcher's rules are here. What only the engine's own process can see is checked there
(:mod:`forwardpass.bench.engine_config`).
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Any

from msgspec import Struct

from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.manifest import PointsFile, read_points_file
from forwardpass.bench.points import Phase
from forwardpass.config import bench_variables as v
from forwardpass.config.settings import Resolved, Sources
from forwardpass.config.variables import Variable
from forwardpass.errors import ConfigError

__all__ = ["BenchConfig", "BenchMode", "LaunchFacts", "check_launch", "load_bench_config"]

logger = logging.getLogger(__name__)

_DECODING = ("decode", "agg")


class BenchMode(StrEnum):
    """What a self-benchmark measures."""

    PREFILL = "prefill"
    DECODE = "decode"
    AGG = "agg"
    """Both: of a worker that does both."""

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Return the phases, in the order in which they are measured."""
        both = (Phase.PREFILL, Phase.DECODE)
        return both if self is BenchMode.AGG else (Phase(self.value),)


class BenchConfig(Struct, frozen=True):
    """The settings of one self-benchmark, the same for all ranks."""

    mode: BenchMode
    points: PointsFile | None = None
    """Explicit points; then :attr:`samples` has its defaults, whatever was given."""
    samples: SampleLimits = SampleLimits()
    warmup_iterations: int = 5
    output_path: str = v.DEFAULT_OUTPUT_PATH
    """The artifact of rank 0, before ranks and launches change its name."""
    timeout_seconds: float = 900
    """Soft limit: no point is interrupted."""
    max_batch_size: int | None = None
    """End of the generated axis of decode batches."""
    collect_imbalanced: bool = False
    randomize_kda_state: bool = False
    hybrid_live_state: bool = False
    worker_extension_installed: bool = False
    """Whether the engine's workers have our extension; the launcher says so."""
    user_worker_extension_cls: str | None = None
    """The extension that the user chose instead, as a dotted path."""
    cudagraph_metrics_auto_enabled: bool = False
    """Whether we turned the engine's graph statistics on, and have to turn them off again."""


class LaunchFacts(Struct, frozen=True):
    """What the launcher knows of the engine that it is about to start."""

    data_parallel_size: int = 1
    is_moe: bool = True
    """Whether the model has experts."""
    default_worker_class: bool = True
    """Whether the user left the choice of the worker class to the engine."""
    gpu_memory_service: bool = False
    """Whether weights come from a GPU memory service."""
    scheduler_cls: str | None = None
    """The scheduler class that the user chose, as a dotted path."""
    our_scheduler: str = ""
    """Name of our scheduler class, without its module."""
    scheduler_is_derived: bool = False
    """Whether the user's class was found to be derived from ours."""
    foreign_worker_extension: str | None = None
    """The worker extension that the user chose, if it is none of ours."""


class _Given:
    """What the user gave, under the names that the user gave it by."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def has(self, variable: Variable) -> bool:
        return self._sources.is_set(variable)

    def value(self, variable: Variable) -> Any:
        found = self._sources.resolve(variable)
        if found.error is not None:
            raise ConfigError(_name(found), found.error.value, variable.accepted)
        return found.value

    def refused(self, variable: Variable, accepted: str) -> ConfigError:
        found = self._sources.resolve(variable)
        value = "on" if found.value is True else found.value
        return ConfigError(_name(found), value, accepted)


def _name(found: Resolved) -> str:
    option = v.OPTIONS.get(found.variable.name)
    return option if option is not None and found.source == "flag" else found.variable.name


def load_bench_config(sources: Sources) -> BenchConfig | None:
    """Return what is to be measured, or ``None`` without a mode. Reads the points file, once.

    Raises :class:`ConfigError`, which names the option or variable that was given, and
    :class:`~forwardpass.errors.ManifestError`.
    """
    given = _Given(sources)
    mode_text, points_path = given.value(v.MODE), given.value(v.POINTS_FILE)
    for variable in (v.RANDOMIZE_KDA_STATE, v.HYBRID_LIVE_STATE):
        if given.value(variable) and mode_text not in _DECODING:
            raise given.refused(variable, f"{v.OPTIONS[v.MODE.name]} decode or agg with it")
    if not mode_text:
        if points_path:
            raise given.refused(v.POINTS_FILE, f"{v.OPTIONS[v.MODE.name]} with it")
        return None
    config = BenchConfig(
        mode=BenchMode(mode_text),
        points=read_points_file(Path(points_path)) if points_path else None,
        samples=SampleLimits() if points_path else _samples(given),
        warmup_iterations=given.value(v.WARMUP_ITERATIONS),
        output_path=given.value(v.OUTPUT_PATH),
        timeout_seconds=given.value(v.TIMEOUT),
        max_batch_size=given.value(v.MAX_BATCH_SIZE),
        collect_imbalanced=given.value(v.COLLECT_IMBALANCED),
        randomize_kda_state=given.value(v.RANDOMIZE_KDA_STATE),
        hybrid_live_state=given.value(v.HYBRID_LIVE_STATE),
    )
    if config.randomize_kda_state and config.hybrid_live_state:
        raise given.refused(v.HYBRID_LIVE_STATE, f"not both it and {v.OPTIONS[v.RANDOMIZE_KDA_STATE.name]}")
    return config


def check_launch(config: BenchConfig, sources: Sources, facts: LaunchFacts) -> None:
    """Raise :class:`ConfigError` if the engine that is about to be started cannot be measured so."""
    given = _Given(sources)
    if config.randomize_kda_state:
        if not facts.default_worker_class:
            raise given.refused(v.RANDOMIZE_KDA_STATE, "the engine's default worker class with it")
        if facts.gpu_memory_service:
            raise given.refused(v.RANDOMIZE_KDA_STATE, "weights that no GPU memory service loads")
    chosen = facts.scheduler_cls
    if chosen is not None and facts.our_scheduler not in chosen and not facts.scheduler_is_derived:
        accepted = (
            f"none, or one that is derived from {facts.our_scheduler}: the scheduler runs the benchmark"
        )
        raise ConfigError("--scheduler-cls", chosen, accepted)
    if given.value(v.GC_POLICY) and facts.foreign_worker_extension is not None:
        extension = facts.foreign_worker_extension
        raise given.refused(v.GC_POLICY, f"no --worker-extension-cls beside it; found {extension}")
    if facts.data_parallel_size > 1 and not facts.is_moe:
        raise ConfigError(
            "--data-parallel-size",
            facts.data_parallel_size,
            f"1 with {v.OPTIONS[v.MODE.name]} for a model without experts: the engine runs its data-parallel "
            "ranks independently of each other, so that they cannot go in lockstep",
        )


def _samples(given: _Given) -> SampleLimits:
    limits = {replacement.name: _limit(given, alias, replacement) for alias, replacement in v.ALIASES}
    return SampleLimits(
        prefill_new_tokens=limits[v.PREFILL_NEW_TOKENS.name],
        prefill_kv_reads=limits[v.PREFILL_KV_READS.name],
        prefill_batches=limits[v.PREFILL_BATCHES.name],
        decode_kv_reads=limits[v.DECODE_KV_READS.name],
        decode_batches=limits[v.DECODE_BATCHES.name],
    )


def _limit(given: _Given, alias: Variable, replacement: Variable) -> int:
    """Return one limit, from its deprecated name if that was given."""
    limit: int = given.value(replacement)
    old: int | None = given.value(alias)
    if old is None:
        return limit
    option = v.OPTIONS[replacement.name]
    if given.has(replacement) or limit != replacement.default:
        raise given.refused(alias, f"either it or {option}, which replaced it")
    logger.warning("%s is deprecated; use %s", v.OPTIONS[alias.name], option)
    return old if replacement is v.PREFILL_BATCHES else max(2, old)
