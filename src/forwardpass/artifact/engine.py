"""Knows the ``engine`` block: what was configured when the scheduler was built, and how that was resolved.

Every field may be null, which says that it was not to be had. What must agree between ranks is in
``identity.py``; how an engine is asked is the adapter's.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

__all__ = [
    "PENDING",
    "AttentionBlock",
    "EngineBlock",
    "GraphBlock",
    "KvCacheBlock",
    "KvGroupBlock",
    "ModelBlock",
    "ParallelBlock",
    "QuantizationBlock",
    "SchedulerBlock",
    "SpeculativeBlock",
    "VersionsBlock",
]

PENDING = "pending_worker_probe"
"""``resolution`` until the workers were asked."""


class AttentionBlock(Struct, frozen=True, kw_only=True):
    """Attention backends, as asked for; ``None`` means that the engine chose."""

    backend_requested: str | None = None
    backend_per_kind: dict[str, Any] = field(default_factory=dict)
    mla_prefill_backend_requested: str | None = None
    flash_attn_version: int | None = None
    use_trtllm_attention: bool | None = None
    indexer_kv_dtype: str | None = None
    """Only where the model has an indexer."""
    indexer_kv_dtype_configured: str | None = None
    indexer: dict[str, Any] | UnsetType = UNSET
    """Only where the model has one: its index_topk, index_n_heads, index_head_dim."""
    backend_resolved: str | None = None
    mla_prefill_backend_resolved: str | None = None
    resolution: str = PENDING


class KvGroupBlock(Struct, frozen=True, kw_only=True):
    """One group of the KV cache. A wrapper leaves what its members differ in null, and lists them."""

    type: str
    dtype: str | None = None
    head_size: int | None = None
    num_kv_heads: int | None = None
    block_size: int | None = None
    kv_quant_mode: str | UnsetType | None = UNSET
    sliding_window: int | UnsetType | None = UNSET
    attention_chunk_size: int | UnsetType | None = UNSET
    non_causal: bool | UnsetType | None = UNSET
    specs: tuple[KvGroupBlock, ...] | UnsetType = UNSET


class KvCacheBlock(Struct, frozen=True, kw_only=True):
    """The KV cache. The number of blocks is left out: it differs from rank to rank."""

    cache_dtype: str | None = None
    block_size: int | None = None
    enable_prefix_caching: bool | None = None
    groups: tuple[KvGroupBlock, ...] = ()
    kv_cache_layout: str | UnsetType | None = UNSET


class QuantizationBlock(Struct, frozen=True, kw_only=True):
    """How weights are quantized."""

    method: str | None = None
    checkpoint_config: dict[str, Any] | None = None
    quant_config_class: str | None = None


class SchedulerBlock(Struct, frozen=True, kw_only=True):
    """The scheduler's settings."""

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    async_scheduling: bool | None = None
    enable_chunked_prefill: bool | None = None
    long_prefill_token_threshold: int | None = None


class ModelBlock(Struct, frozen=True, kw_only=True):
    """The model. Its longest context is left out: it differs from rank to rank."""

    dtype: str | None = None
    model_type: str | None = None
    architectures: tuple[str, ...] = ()
    model: str | None = None


class ParallelBlock(Struct, frozen=True, kw_only=True):
    """How the engine is spread over workers."""

    data_parallel_size: int | None = None
    data_parallel_rank: int | None = None
    """The resolved rank; null in a merged file."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    prefill_context_parallel_size: int | None = None
    decode_context_parallel_size: int | UnsetType | None = UNSET
    enable_expert_parallel: bool | None = None
    enable_eplb: bool | None = None
    all2all_backend: str | None = None
    eplb_config: dict[str, Any] | None = None


class SpeculativeBlock(Struct, frozen=True, kw_only=True):
    """Speculative decoding."""

    method: str | None = None
    model: str | None = None
    num_speculative_tokens: int | None = None
    draft_tensor_parallel_size: int | None = None


class GraphBlock(Struct, frozen=True, kw_only=True):
    """The CUDA graph settings that the grid was built with, before workers resolved them."""

    cudagraph_mode: str | None = None
    cudagraph_capture_sizes: tuple[int, ...] = ()
    resolution: Literal["pre_resolution"] = "pre_resolution"


class VersionsBlock(Struct, frozen=True, kw_only=True):
    """Versions of what ran. ``dynamo`` is that of an installed ai-dynamo."""

    vllm: str | None = None
    vllm_build_commit: str | None = None
    dynamo: str | None = None
    python: str | None = None
    forwardpass: str | UnsetType | None = UNSET


class EngineBlock(Struct, frozen=True, kw_only=True):
    """``engine``. A part is missing only if the capture failed before it, and ``capture_error`` says how."""

    attention: AttentionBlock | UnsetType = UNSET
    kv_cache: KvCacheBlock | UnsetType = UNSET
    quantization: QuantizationBlock | UnsetType = UNSET
    scheduler: SchedulerBlock | UnsetType = UNSET
    model: ModelBlock | UnsetType = UNSET
    parallel: ParallelBlock | UnsetType = UNSET
    speculative: SpeculativeBlock | UnsetType | None = UNSET
    graph: GraphBlock | UnsetType = UNSET
    versions: VersionsBlock | UnsetType = UNSET
    resolved: dict[str, Any] | UnsetType | None = UNSET
    """The first usable worker's reply, in a served copy."""
    resolved_scope: str | UnsetType | None = UNSET
    resolution: str | UnsetType = UNSET
    worker_probe: dict[str, Any] | UnsetType = UNSET
    capture_error: str | UnsetType = UNSET
    capture_errors: dict[str, str] | UnsetType = UNSET
    """In a merged file: rank -> why its block was left out."""
