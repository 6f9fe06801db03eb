"""Knows what variables say about a self-benchmark without an option for it, frozen when the engine starts."""

from __future__ import annotations

import logging
import os.path

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.content.identity import ContentKind
from forwardpass.config import bench_variables as v
from forwardpass.config.settings import Sources

__all__ = ["BenchEnvironment", "DatasetSettings"]

logger = logging.getLogger(__name__)

_CONTENTS = {kind.value: kind for kind in (ContentKind.SHAREGPT, ContentKind.SHAREGPT_CHAIN)}
_RANDOM = frozenset({"", "random"})


class DatasetSettings(Struct, frozen=True):
    """Where real conversations come from."""

    source: str
    """A path, or an http(s) URL."""
    sha256: str | None
    """Digest that the file must have, in lower case; ``None``: any."""
    cache_dir: str


class BenchEnvironment(Struct, frozen=True):
    """Settings of the engine's process; all ranks must have the same, and say so by their invariants."""

    content_seed: str
    prefill_content: ContentKind
    pool_tag: str
    prefill_real_seed: bool
    kv_warmup: bool
    dataset: DatasetSettings
    giant_kv_threshold: int
    giant_kv_repeats: int
    collect_imbalanced: bool | None
    """Overrides the option; ``None``: it does not."""
    output_path: str | None
    """Overrides the option, in the engine and in the launcher."""
    freeze_garbage: bool
    freeze_interval_seconds: float

    @classmethod
    def load(cls, sources: Sources) -> BenchEnvironment:
        """Build from the environment; raises :class:`~forwardpass.errors.ConfigError`."""
        return cls(
            content_seed=sources.value(v.CONTENT_SEED),
            prefill_content=_content(sources.value(v.PREFILL_CONTENT)),
            pool_tag=sources.value(v.POOL_TAG),
            prefill_real_seed=sources.value(v.PREFILL_REAL_SEED),
            kv_warmup=sources.value(v.KV_WARMUP),
            dataset=_dataset(sources),
            giant_kv_threshold=sources.value(v.GIANT_KV_THRESHOLD),
            giant_kv_repeats=max(1, sources.value(v.GIANT_KV_REPEATS)),
            collect_imbalanced=sources.value(v.COLLECT_OVERRIDE),
            output_path=sources.value(v.OUTPUT_OVERRIDE),
            freeze_garbage=bool(sources.value(v.GC_POLICY)),
            freeze_interval_seconds=sources.value(v.GC_FREEZE_INTERVAL),
        )

    def applied_to(self, config: BenchConfig) -> BenchConfig:
        """Return ``config`` with what the environment overrides."""
        collect = config.collect_imbalanced if self.collect_imbalanced is None else self.collect_imbalanced
        return msgspec.structs.replace(
            config, collect_imbalanced=collect, output_path=self.output_path or config.output_path
        )


def _content(text: str) -> ContentKind:
    if text not in _CONTENTS and text not in _RANDOM:
        logger.warning("%s=%r is random tokens; %s", v.PREFILL_CONTENT.name, text, v.PREFILL_CONTENT.accepted)
    return _CONTENTS.get(text, ContentKind.RANDOM)


def _dataset(sources: Sources) -> DatasetSettings:
    source = sources.value(v.KV_WARMUP_DATASET) or v.DEFAULT_DATASET
    digest = sources.value(v.KV_WARMUP_SHA256)
    if not digest and source == v.DEFAULT_DATASET:
        digest = v.DEFAULT_DATASET_SHA256
    home = sources.value(v.HF_HOME).rstrip("/")
    beside = os.path.join(os.path.dirname(home), "fpm_datasets") if home else "/tmp/fpm_datasets"
    return DatasetSettings(source, digest or None, sources.value(v.KV_WARMUP_CACHE_DIR) or beside)
