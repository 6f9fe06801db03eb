"""Knows where in vLLM's configuration the fields of an artifact's ``engine`` block stand.

Read once, when the scheduler is built. A value that cannot be had is null; a part that cannot be built ends
the capture there, is said in ``capture_error``, and costs nothing else.
"""

from __future__ import annotations

import logging
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from forwardpass.artifact.engine import (
    PENDING,
    AttentionBlock,
    EngineBlock,
    GraphBlock,
    KvCacheBlock,
    KvGroupBlock,
    ModelBlock,
    ParallelBlock,
    QuantizationBlock,
    SchedulerBlock,
    SpeculativeBlock,
    VersionsBlock,
)
from forwardpass.bench.limits import GraphSettings
from forwardpass.engines.vllm import compat
from forwardpass.jsonsafe import json_safe

__all__ = ["capture_engine"]

logger = logging.getLogger(__name__)

_INDEXER = ("index_topk", "index_n_heads", "index_head_dim")
_WHERE_THERE = ("sliding_window", "attention_chunk_size", "non_causal")
"""Of a KV group: null is something else than absent."""


def capture_engine(scheduler: Any, graph: GraphSettings) -> EngineBlock:
    """Return the ``engine`` block of the engine that ``scheduler`` belongs to; ``graph`` is what its grid is
    built with. Raises nothing.
    """
    parts: dict[str, Any] = {}
    config = scheduler.vllm_config
    steps: dict[str, Callable[[], Any]] = {
        "attention": lambda: _attention(config),
        "kv_cache": lambda: _kv_cache(scheduler),
        "quantization": lambda: _quantization(config),
        "scheduler": lambda: _filled(SchedulerBlock, config.scheduler_config),
        "model": lambda: _model(config.model_config),
        "parallel": lambda: _parallel(scheduler),
        "speculative": lambda: _speculative(config.speculative_config),
        "graph": lambda: GraphBlock(cudagraph_mode=graph.mode, cudagraph_capture_sizes=graph.capture_sizes),
        "versions": _versions,
    }
    try:
        for name, step in steps.items():
            parts[name] = step()
        parts |= {"resolved": None, "resolution": PENDING}
    except Exception as error:  # noqa: BLE001  boundary: another vLLM; provenance must not fail the run
        logger.warning("the engine's configuration could not be recorded: %r", error)
        parts["capture_error"] = f"{type(error).__name__}: {error}"
    return EngineBlock(**parts)


def _filled(block: type[Struct], source: Any, **more: Any) -> Any:
    """Return a ``block`` whose fields are the attributes of the same names of ``source``, as far as they fit
    the block's types, and ``more``.
    """
    values = {
        name: json_safe(getattr(source, name, None)) for name in block.__struct_fields__ if name not in more
    }
    return msgspec.convert(values | more, block)


def _attention(config: Any) -> AttentionBlock:
    attention = config.attention_config
    model = getattr(config.model_config, "hf_config", None)
    indexer = {name: json_safe(getattr(model, name, None)) for name in _INDEXER}
    indexer = {name: value for name, value in indexer.items() if value is not None}
    resolve = getattr(attention, "resolve_indexer_kv_dtype", None)
    dtype = json_safe(resolve("fp8")) if indexer and resolve is not None else None
    return AttentionBlock(
        backend_requested=json_safe(getattr(attention, "backend", None)),
        backend_per_kind=json_safe(getattr(attention, "backend_per_kind", None)) or {},
        mla_prefill_backend_requested=json_safe(getattr(attention, "mla_prefill_backend", None)),
        flash_attn_version=json_safe(getattr(attention, "flash_attn_version", None)),
        use_trtllm_attention=json_safe(getattr(attention, "use_trtllm_attention", None)),
        indexer_kv_dtype=dtype,
        indexer_kv_dtype_configured=json_safe(getattr(attention, "indexer_kv_dtype", None)),
        indexer=indexer or UNSET,
    )


def _kv_cache(scheduler: Any) -> KvCacheBlock:
    cache, found = scheduler.cache_config, scheduler.kv_cache_config
    layouts = [source.kv_cache_layout for source in (found, cache) if hasattr(source, "kv_cache_layout")]
    return KvCacheBlock(
        cache_dtype=json_safe(cache.cache_dtype),
        block_size=cache.block_size,
        enable_prefix_caching=json_safe(cache.enable_prefix_caching),
        groups=tuple(_group(group.kv_cache_spec) for group in found.kv_cache_groups),
        kv_cache_layout=json_safe(next(filter(None, layouts), None)) if layouts else UNSET,
    )


def _group(spec: Any) -> KvGroupBlock:
    members = getattr(spec, "kv_cache_specs", None)
    known: dict[str, Any] = {"type": type(spec).__name__, "block_size": json_safe(spec.block_size)}
    if isinstance(members, Mapping):  # a wrapper: what its members differ in is theirs
        return KvGroupBlock(**known, specs=tuple(map(_group, members.values())))
    for name in ("dtype", "head_size", "num_kv_heads"):
        known[name] = json_safe(getattr(spec, name, None))
    quantized = json_safe(getattr(spec, "kv_quant_mode", None))
    if quantized is not None:
        known["kv_quant_mode"] = str(quantized)
    known |= {name: json_safe(getattr(spec, name)) for name in _WHERE_THERE if hasattr(spec, name)}
    return msgspec.convert(known, KvGroupBlock)


def _quantization(config: Any) -> QuantizationBlock:
    architecture = getattr(config.model_config, "model_arch_config", None)
    found = getattr(architecture, "quantization_config", None)
    method = getattr(config, "quant_config", None)
    return QuantizationBlock(
        method=json_safe(config.model_config.quantization),
        checkpoint_config=json_safe(found) if isinstance(found, dict) else None,
        quant_config_class=None if method is None else type(method).__name__,
    )


def _model(model: Any) -> ModelBlock:
    return ModelBlock(
        dtype=json_safe(model.dtype),
        model_type=json_safe(getattr(model.hf_config, "model_type", None)),
        architectures=tuple(model.architectures or ()),
        model=json_safe(model.model),
    )


def _parallel(scheduler: Any) -> ParallelBlock:
    parallel = scheduler.vllm_config.parallel_config
    return _filled(  # type: ignore[no-any-return]
        ParallelBlock, parallel, data_parallel_rank=compat.rank_facts(scheduler).dp_rank
    )


def _speculative(speculative: Any) -> SpeculativeBlock | None:
    return None if speculative is None else _filled(SpeculativeBlock, speculative)


def _versions() -> VersionsBlock:
    from forwardpass import __version__

    return VersionsBlock(
        vllm=_guarded(compat.vllm_version),
        vllm_build_commit=_guarded(compat.vllm_build_commit),
        dynamo=_guarded(lambda: version("ai-dynamo")),
        python=platform.python_version(),
        forwardpass=__version__,
    )


def _guarded(look_up: Callable[[], Any]) -> str | None:
    try:
        found = look_up()
    except (PackageNotFoundError, AttributeError, ImportError, OSError, ValueError):
        return None
    return None if found is None else str(found)
