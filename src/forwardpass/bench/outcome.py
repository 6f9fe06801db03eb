"""Knows why a point has no result, and where the KV that one read came from."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["KvRegime", "SkipReason"]


class SkipReason(StrEnum):
    """Why a point has no result. The words are those of the artifact."""

    BATCH_SIZE = "measured_batch_size_mismatch"
    PREFILL_TOKENS = "measured_prefill_tokens_mismatch"
    KV_READ = "measured_kv_read_mismatch"
    DECODE_CONTEXT = "measured_decode_context_mismatch"
    GIANT_COORDINATE = "giant_measured_coordinate_mismatch"
    NO_FPM = "no_fpm_before_deadline"
    FAKE_PREFIX_ALLOCATION = "fake_prefix_cache_allocation_failed"
    FAKE_PREFIX_VALIDATION = "fake_prefix_cache_validation_failed"
    PREFILL_INJECTION = "prefill_injection_failed"
    DECODE_INJECTION = "decode_injection_failed"
    REAL_SEED_INJECTION = "real_seed_injection_failed"
    REAL_SEED_WARM_INJECTION = "real_seed_warm_injection_failed"
    REAL_SEED_VALIDATION = "real_seed_cache_validation_failed"
    STAGE_FAILED = "stage_failed_under_attention_dp"


class KvRegime(StrEnum):
    """Where the KV that a row read came from. Rows that were skipped because of the warm-up have
    ``skip:<reason>`` instead.
    """

    REAL_PREFIX = "real_prefix"
    FAKE_PREFIX = "fake_prefix"
    NOT_APPLICABLE = "not_applicable"
    REAL_KV = "real_kv"
    FAKE_FALLBACK = "fake_fallback"
    LEGACY = "legacy"
    """The warm-up is switched off."""
    UNSTAMPED = "unstamped"
