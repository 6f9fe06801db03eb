"""Knows every name inside vLLM that this package relies on, and for which versions it was read.

``CONTRACT`` is the list; a test checks it against the installed vLLM. Read in the sources of vLLM 0.28.0,
0.29.0, 0.30.0, 0.31.0, 0.32.0 and 0.33.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from forwardpass.engines.vllm.counted import QUEUE_METHODS

__all__ = ["CONTRACT", "NEWEST_READ", "OLDEST_READ", "Symbol"]

OLDEST_READ, NEWEST_READ = "0.28", "0.33"


class Symbol(NamedTuple):
    """One name inside vLLM."""

    owner: str
    """Dotted path of the module or class that has it."""
    name: str
    kind: str
    """``module``, ``class``, ``value`` (of a module), ``method``, ``parameter`` (of a method), ``field`` (of
    a dataclass), ``attribute`` (set by ``__init__``), ``member`` (of an enum)."""
    since: str = OLDEST_READ
    until: str = NEWEST_READ
    optional: bool = False
    """Whether we do without it where it is missing."""


def _rows(owner: str, kind: str, names: str, **more: Any) -> tuple[Symbol, ...]:
    return tuple(Symbol(owner, name, kind, **more) for name in names.split())


_SCHED = "vllm.v1.core.sched"
CONTRACT: tuple[Symbol, ...] = (
    *_rows("vllm", "value", "__version__"),
    # What the launcher starts (launch.py).
    *_rows("vllm.entrypoints.cli", "module", "main"),
    *_rows("vllm.entrypoints.openai", "module", "api_server"),
    *_rows(f"{_SCHED}.async_scheduler", "class", "AsyncScheduler"),
    *_rows(
        f"{_SCHED}.async_scheduler.AsyncScheduler",
        "method",
        "schedule update_from_output shutdown",
    ),
    *_rows(
        f"{_SCHED}.async_scheduler.AsyncScheduler.update_from_output",
        "parameter",
        "scheduler_output model_runner_output",
    ),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "vllm_config waiting"),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "requests", optional=True),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "kv_holding_waiting", since="0.31"),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "skipped_waiting", until="0.30"),
    *_rows(f"{_SCHED}.request_queue.PriorityRequestQueue", "attribute", "_heap", optional=True),
    *_rows(f"{_SCHED}.request_queue.FCFSRequestQueue", "method", " ".join(QUEUE_METHODS), optional=True),
    *_rows(f"{_SCHED}.request_queue.PriorityRequestQueue", "method", " ".join(QUEUE_METHODS), optional=True),
    *_rows(
        f"{_SCHED}.output.SchedulerOutput",
        "field",
        "scheduled_new_reqs scheduled_cached_reqs num_scheduled_tokens total_num_scheduled_tokens "
        "scheduled_spec_decode_tokens finished_req_ids",
    ),
    *_rows(
        f"{_SCHED}.output.NewRequestData",
        "field",
        "req_id prompt_token_ids prompt_embeds num_computed_tokens prefill_token_ids",
    ),
    *_rows(
        f"{_SCHED}.output.CachedRequestData",
        "field",
        "req_ids resumed_req_ids num_computed_tokens num_output_tokens",
    ),
    *_rows("vllm.v1.request.Request", "attribute", "request_id status num_computed_tokens"),
    *_rows("vllm.v1.request.Request", "attribute", "_all_token_ids kv_transfer_params", optional=True),
    *_rows("vllm.v1.request.Request", "method", "num_tokens"),
    *_rows(
        "vllm.v1.request.RequestStatus",
        "member",
        "WAITING WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR WAITING_FOR_REMOTE_KVS "
        "WAITING_FOR_STREAMING_REQ RUNNING PREEMPTED",
    ),
    *_rows(
        "vllm.config.VllmConfig",
        "field",
        "parallel_config model_config scheduler_config kv_transfer_config ec_transfer_config",
    ),
    *_rows(
        "vllm.config.ParallelConfig",
        "field",
        "data_parallel_index data_parallel_rank data_parallel_size data_parallel_size_local",
    ),
    # What loads the plugin, what it reads of a configuration that vLLM has built (built.py), and where it
    # does (wrap.py).
    *_rows("vllm.plugins", "value", "DEFAULT_PLUGINS_GROUP"),
    *_rows("vllm.engine.arg_utils", "class", "EngineArgs"),
    *_rows("vllm.engine.arg_utils.EngineArgs", "method", "create_engine_config"),
    *_rows("vllm.engine.arg_utils.EngineArgs.create_engine_config", "parameter", "headless"),
    *_rows("vllm.config.SchedulerConfig", "field", "scheduler_cls async_scheduling"),
    *_rows("vllm.config.ModelConfig", "attribute", "runner_type convert_type"),
    *_rows("vllm.config.ModelConfig", "field", "multimodal_config"),
    *_rows("vllm.config.ModelConfig", "method", "architectures"),
    *_rows("vllm.config.MultiModalConfig", "field", "mm_encoder_only"),
    *_rows("vllm.config.KVTransferConfig", "field", "kv_role"),
    *_rows("vllm.config.ECTransferConfig", "field", "ec_role"),
    *_rows("vllm.v1.engine.core", "class", "EngineCore", optional=True),
    *_rows("vllm.v1.engine.core.EngineCore", "attribute", "scheduler", optional=True),
    # What the self-benchmark does in the scheduler's place (bench_*.py).
    *_rows("vllm", "value", "SamplingParams"),
    *_rows("vllm.v1.request", "class", "Request"),
    *_rows("vllm.v1.request.Request.__init__", "parameter", "cache_salt block_hasher"),
    *_rows(
        "vllm.v1.request.Request",
        "attribute",
        "num_output_placeholders block_hashes",
    ),
    *_rows("vllm.v1.request.Request", "method", "num_output_tokens"),
    *_rows("vllm.v1.request.RequestStatus", "member", "FINISHED_ABORTED"),
    *_rows(f"{_SCHED}.output.NewRequestData", "method", "from_request"),
    *_rows(f"{_SCHED}.output.CachedRequestData", "method", "make_empty"),
    *_rows(f"{_SCHED}.output.CachedRequestData", "field", "new_token_ids all_token_ids new_block_ids"),
    *_rows(
        f"{_SCHED}.output.SchedulerOutput",
        "field",
        "scheduled_encoder_inputs free_encoder_mm_hashes num_common_prefix_blocks preempted_req_ids "
        "kv_connector_metadata ec_connector_metadata new_block_ids_to_zero ec_manager_metadata",
    ),
    *_rows(f"{_SCHED}.output.SchedulerOutput", "field", "kv_connector_block_state", since="0.29"),
    *_rows(f"{_SCHED}.output.SchedulerOutput", "field", "aux_output_connector_metadata", since="0.31"),
    *_rows(f"{_SCHED}.output", "class", "KVConnectorBlockState", since="0.29"),
    *_rows(
        f"{_SCHED}.scheduler.Scheduler",
        "attribute",
        "scheduler_config cache_config kv_cache_config parallel_config running finished_req_ids connector "
        "ec_connector block_size hash_block_size kv_cache_manager encoder_cache_manager max_model_len "
        "max_num_running_reqs max_num_scheduled_tokens num_lookahead_tokens use_eagle use_v2_model_runner "
        "prev_step_scheduled_req_ids need_mamba_block_aligned_split needs_kv_cache_zeroing defer_block_free "
        "sched_step_seq deferred_frees",
    ),
    *_rows(f"{_SCHED}.scheduler.Scheduler", "attribute", "use_eagle_block_drop", since="0.30"),
    *_rows(
        f"{_SCHED}.scheduler.Scheduler",
        "attribute",
        "max_num_active_reqs adaptive_long_prefill_threshold aux_output_connector",
        since="0.31",
    ),
    *_rows(
        f"{_SCHED}.scheduler.Scheduler",
        "method",
        "add_request finish_requests reset_prefix_cache has_requests _update_after_schedule "
        "_mamba_block_aligned_split",
    ),
    *_rows(
        "vllm.v1.core.kv_cache_manager.KVCacheManager", "attribute", "coordinator block_pool watermark_blocks"
    ),
    *_rows(
        "vllm.v1.core.kv_cache_manager.KVCacheManager",
        "method",
        "allocate_slots cache_blocks free new_step_starts take_new_block_ids get_block_ids",
    ),
    *_rows(
        "vllm.v1.core.kv_cache_manager.KVCacheManager.allocate_slots",
        "parameter",
        "num_lookahead_tokens delay_cache_blocks full_sequence_must_fit has_scheduled_reqs",
    ),
    *_rows("vllm.v1.core.kv_cache_manager.KVCacheBlocks", "method", "get_block_ids"),
    *_rows("vllm.v1.core.block_pool.BlockPool", "method", "get_num_free_blocks"),
    *_rows(
        "vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator",
        "attribute",
        "single_type_managers",
    ),
    *_rows("vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator", "value", "enable_partial_hash_hits"),
    *_rows("vllm.v1.core.kv_cache_coordinator.KVCacheCoordinator", "method", "find_longest_cache_hit"),
    *_rows(
        "vllm.v1.core.kv_cache_coordinator.HybridKVCacheCoordinator",
        "method",
        "find_longest_cache_hit_per_group",
    ),
    *_rows(
        "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager",
        "attribute",
        "block_size kv_cache_spec",
    ),
    *_rows(
        "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager",
        "attribute",
        "_max_admission_blocks_per_request",
        until="0.30",
    ),
    *_rows(
        "vllm.v1.core.single_type_kv_cache_manager.SingleTypeKVCacheManager",
        "attribute",
        "max_admission_blocks_per_request",
        since="0.31",
    ),
    *_rows("vllm.v1.kv_cache_interface.MambaSpec", "field", "mamba_cache_mode num_speculative_blocks"),
    *_rows("vllm.v1.kv_cache_interface.MambaSpec", "field", "num_prefill_checkpoint_blocks", since="0.29"),
    *_rows("vllm.v1.kv_cache_interface.KVCacheConfig", "field", "kv_cache_groups"),
    *_rows("vllm.v1.kv_cache_interface.KVCacheConfig", "method", "has_mamba_layers needs_kv_cache_zeroing"),
    *_rows(
        "vllm.v1.core.encoder_cache_manager.EncoderCacheManager",
        "method",
        "get_freed_mm_hashes get_manager_metadata",
    ),
    *_rows("vllm.config.VllmConfig", "field", "compilation_config cache_config"),
    *_rows("vllm.config.CompilationConfig", "field", "cudagraph_mode cudagraph_capture_sizes"),
    *_rows("vllm.config.CUDAGraphMode", "method", "mixed_mode decode_mode"),
    *_rows("vllm.config.SchedulerConfig", "field", "long_prefill_token_threshold"),
    *_rows("vllm.config.CacheConfig", "field", "enable_prefix_caching block_size prefix_caching_hash_algo"),
    *_rows("vllm.v1.core.kv_cache_utils", "value", "get_request_block_hasher"),
    *_rows("vllm.utils.hashing", "value", "get_hash_fn_by_name"),
    *_rows("vllm.v1.outputs.ModelRunnerOutput", "field", "cudagraph_stats"),
    *_rows(
        "vllm.distributed.kv_transfer.kv_connector.v1.base.KVConnectorBase_V1",
        "method",
        "build_connector_meta",
    ),
    *_rows(
        "vllm.distributed.ec_transfer.ec_connector.base.ECConnectorBase", "method", "build_connector_meta"
    ),
    # What an artifact says of the engine (provenance.py).
    *_rows("vllm.envs", "value", "VLLM_BUILD_COMMIT", optional=True),
    *_rows(
        "vllm.config.VllmConfig",
        "field",
        "attention_config speculative_config quant_config additional_config",
    ),
    *_rows(
        "vllm.config.AttentionConfig",
        "field",
        "backend mla_prefill_backend flash_attn_version use_trtllm_attention indexer_kv_dtype",
        optional=True,
    ),
    *_rows("vllm.config.AttentionConfig", "field", "backend_per_kind", optional=True),
    *_rows("vllm.config.AttentionConfig", "method", "resolve_indexer_kv_dtype", optional=True),
    *_rows("vllm.config.CacheConfig", "field", "cache_dtype"),
    *_rows("vllm.config.CacheConfig", "field", "kv_cache_layout", since="0.29", optional=True),
    *_rows("vllm.config.ModelConfig", "field", "model dtype quantization"),
    *_rows("vllm.config.ModelConfig", "attribute", "hf_config model_arch_config"),
    *_rows("vllm.v1.kv_cache_interface.KVCacheGroupSpec", "field", "kv_cache_spec"),
    *_rows("vllm.v1.kv_cache_interface.UniformTypeKVCacheSpecs", "field", "kv_cache_specs"),
    *_rows("vllm.v1.kv_cache_interface.AttentionSpec", "field", "kv_quant_mode", optional=True),
    *_rows("vllm.config.model_arch.ModelArchitectureConfig", "field", "quantization_config"),
    # What a benchmark makes prompts of, and how ranks find each other (bench_content.py, bench_rank.py).
    *_rows("vllm.tokenizers", "value", "cached_tokenizer_from_config"),
    *_rows("vllm.config.ModelConfig", "method", "get_vocab_size"),
    *_rows("vllm.config.ParallelConfig", "field", "data_parallel_master_ip pipeline_parallel_size"),
    *_rows("vllm.config.CacheConfig", "field", "num_gpu_blocks"),
    # What a server does before it serves, if its engine measures itself first (bench_prepare.py and others).
    *_rows("vllm.config.VllmConfig", "field", "observability_config"),
    *_rows("vllm.config.ObservabilityConfig", "field", "cudagraph_metrics"),
    *_rows("vllm.config.ModelConfig", "method", "is_moe"),
    *_rows(
        "vllm.config.ParallelConfig",
        "field",
        "data_parallel_external_lb data_parallel_hybrid_lb worker_cls worker_extension_cls",
    ),
    *_rows("vllm.engine.arg_utils.EngineArgs", "field", "worker_extension_cls cudagraph_metrics"),
    *_rows("vllm.v1.engine.async_llm.AsyncLLM", "attribute", "vllm_config logger_manager"),
    *_rows("vllm.v1.engine.async_llm.AsyncLLM", "method", "collective_rpc errored"),
    *_rows("vllm.v1.engine.async_llm.AsyncLLM.collective_rpc", "parameter", "timeout"),
    *_rows("vllm.v1.metrics.loggers.StatLoggerManager", "attribute", "stat_loggers"),
    *_rows("vllm.v1.metrics.loggers.LoggingStatLogger", "attribute", "cudagraph_logging"),
    *_rows("vllm.v1.metrics.loggers.PerEngineStatLoggerAdapter", "attribute", "per_engine_stat_loggers"),
    # What a worker tells of itself (worker_extension.py).
    *_rows("vllm.v1.worker.worker_base.WorkerBase", "attribute", "vllm_config rank"),
    *_rows("vllm.config.ParallelConfig", "field", "tensor_parallel_size prefill_context_parallel_size"),
    *_rows("vllm.config.CompilationConfig", "field", "static_forward_context"),
    *_rows(
        "vllm.model_executor.layers.attention_layer_base.AttentionLayerBase", "method", "get_attn_backend"
    ),
    *_rows("vllm.v1.attention.backend.AttentionBackend", "method", "get_name"),
    *_rows(
        "vllm.model_executor.layers.attention.mla_attention.MLAAttention",
        "attribute",
        "prefill_backend",
        optional=True,
    ),
)
