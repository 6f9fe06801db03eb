"""Knows the form in which the settings of a self-benchmark reach the engine, and what is refused there.

One dictionary in the engine's own additional configuration, from which the engine also derives the key of
its compile cache: nothing that changes from launch to launch may stand in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.manifest import points_from
from forwardpass.config import parse
from forwardpass.config.variable import BOOLEAN
from forwardpass.errors import ConfigError

__all__ = ["SAMPLE_KEYS", "SchedulerFacts", "check_scheduler", "effective_config", "from_engine", "to_engine"]

_R = TypeVar("_R")
_T = TypeVar("_T")

SAMPLE_KEYS: dict[str, tuple[str, int]] = {
    "prefill_max_new_token_samples": ("prefill_new_tokens", 2),
    "prefill_max_kv_read_token_samples": ("prefill_kv_reads", 2),
    "decode_max_kv_read_token_samples": ("decode_kv_reads", 2),
    "decode_max_batch_size_samples": ("decode_batches", 2),
    "prefix_max_batch_size_samples": ("prefill_batches", 1),
}
"""Key -> (field of :class:`SampleLimits`, least value), in the order of the artifact."""


class SchedulerFacts(Struct, frozen=True):
    """What the engine's process knows of itself."""

    speculative_decoding: bool = False
    pipeline_parallel_size: int = 1
    random_kda_worker: bool = False
    """Whether the workers are of the class that can fill recurrent states at random."""


def to_engine(config: BenchConfig) -> dict[str, Any]:
    """Return what the engine is handed: JSON values under the keys that the reference uses, no others."""
    found: dict[str, Any] = {
        "mode": config.mode.value,
        "randomize_kda_state": config.randomize_kda_state,
        "hybrid_live_state": config.hybrid_live_state,
        "warmup_iterations": config.warmup_iterations,
        "output_path": config.output_path,
        "timeout": config.timeout_seconds,
        "max_batch_size": config.max_batch_size,
        "collect_imbalanced": config.collect_imbalanced,
        "worker_extension_installed": config.worker_extension_installed,
    }
    if config.user_worker_extension_cls is not None:
        found["user_worker_extension_cls"] = config.user_worker_extension_cls
    if config.cudagraph_metrics_auto_enabled:
        found["cudagraph_metrics_auto_enabled"] = True
    if config.points is None:
        return {**found, **_sample_keys(config.samples)}
    return {**found, "points": msgspec.json.decode(msgspec.json.encode(config.points))}


def from_engine(document: Mapping[str, Any]) -> BenchConfig:
    """Return the settings that were handed over; unknown keys are ignored, numbers may be texts.

    A key that is absent or null has its default. Raises :class:`ConfigError` for a mode, number or truth
    that is none, and :class:`~forwardpass.errors.ManifestError` for points.
    """
    keys = _Keys(document)
    modes = [mode.value for mode in BenchMode]
    mode = keys.text("mode")
    if mode not in modes:
        raise keys.refused("mode", f"one of {', '.join(modes)}")
    points = document.get("points")
    samples = SampleLimits()
    if points is None:
        defaults = {name: getattr(samples, name) for name, _ in SAMPLE_KEYS.values()}
        samples = SampleLimits(
            **{name: keys.integer(key, least, defaults[name]) for key, (name, least) in SAMPLE_KEYS.items()}
        )
    return BenchConfig(
        mode=BenchMode(mode),
        points=None if points is None else points_from(points),
        samples=samples,
        warmup_iterations=keys.integer("warmup_iterations", 0, 5),
        output_path=keys.text("output_path") or BenchConfig(BenchMode.AGG).output_path,
        timeout_seconds=keys.seconds("timeout", 900),
        max_batch_size=keys.integer("max_batch_size", 1, None),
        collect_imbalanced=keys.boolean("collect_imbalanced"),
        randomize_kda_state=keys.boolean("randomize_kda_state"),
        hybrid_live_state=keys.boolean("hybrid_live_state"),
        worker_extension_installed=keys.boolean("worker_extension_installed"),
        user_worker_extension_cls=keys.text("user_worker_extension_cls") or None,
        cudagraph_metrics_auto_enabled=keys.boolean("cudagraph_metrics_auto_enabled"),
    )


def check_scheduler(config: BenchConfig, facts: SchedulerFacts) -> None:
    """Raise :class:`ConfigError` if the engine that holds this process cannot be measured so."""
    decodes = config.mode is not BenchMode.PREFILL
    if decodes and facts.speculative_decoding:
        raise ConfigError(_key("mode"), config.mode.value, "prefill, while speculative decoding is on")
    if decodes and facts.pipeline_parallel_size > 1:
        accepted = f"prefill, with {facts.pipeline_parallel_size} pipeline-parallel ranks"
        raise ConfigError(_key("mode"), config.mode.value, accepted)
    if config.randomize_kda_state and config.hybrid_live_state:
        raise ConfigError(_key("hybrid_live_state"), True, "not both it and randomize_kda_state")
    if config.randomize_kda_state and not facts.random_kda_worker:
        raise ConfigError(_key("randomize_kda_state"), True, "the worker class that fills recurrent states")


def effective_config(config: BenchConfig, output_path: str) -> dict[str, Any]:
    """Return the artifact's ``config``; ``output_path`` is that of its own rank."""
    return {
        "mode": config.mode.value,
        "randomize_kda_state": config.randomize_kda_state,
        "hybrid_live_state": config.hybrid_live_state,
        "warmup_iterations": config.warmup_iterations,
        "output_path": output_path,
        "timeout": config.timeout_seconds,
        **_sample_keys(config.samples),
        "max_batch_size": config.max_batch_size,
        "collect_imbalanced": config.collect_imbalanced,
    }


def _sample_keys(samples: SampleLimits) -> dict[str, int]:
    return {key: getattr(samples, name) for key, (name, _) in SAMPLE_KEYS.items()}


def _key(name: str) -> str:
    return f"benchmark config {name}"


class _Keys:
    """The dictionary, read key by key."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document

    def refused(self, key: str, accepted: str) -> ConfigError:
        return ConfigError(_key(key), self._document.get(key), accepted)

    def text(self, key: str) -> str:
        found = self._document.get(key)
        if found is None:
            return ""
        if not isinstance(found, str):
            raise self.refused(key, "a text")
        return found

    def integer(self, key: str, least: int, default: _T) -> int | _T:
        return self._parsed(key, parse.integer(least), f"an integer of at least {least}", default)

    def boolean(self, key: str) -> bool:
        return self._parsed(key, parse.boolean, BOOLEAN, False)

    def seconds(self, key: str, default: _T) -> float | _T:
        return self._parsed(key, parse.above_zero, "a number of seconds above 0", default)

    def _parsed(self, key: str, parser: Callable[[str], _R], accepted: str, default: _T) -> _R | _T:
        """Return a value from its text: JSON's own numbers and truths have one as well."""
        found = self._document.get(key)
        if found is None:
            return default
        if isinstance(found, bool) is not (parser is parse.boolean) and not isinstance(found, str):
            raise self.refused(key, accepted)
        if isinstance(found, float) and math.isfinite(found):
            found = int(found) if found.is_integer() else f"{found:f}"
        if not isinstance(found, str | int):
            raise self.refused(key, accepted)
        try:
            return parser(str(found))
        except ValueError:
            raise self.refused(key, accepted) from None
