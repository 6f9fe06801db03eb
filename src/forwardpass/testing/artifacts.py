"""Knows how to make up the files of a benchmark whose evidence holds: every rule is kept."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec

from forwardpass.artifact.engine import PENDING, AttentionBlock, EngineBlock, ModelBlock, ParallelBlock
from forwardpass.bench.digest import canonical_json, point_key
from forwardpass.bench.evidence import ProtocolPreparation, measurement_protocol

__all__ = ["GRID", "RUN_ID", "made_run"]

GRID = hashlib.sha256(b"grid").hexdigest()
RUN_ID = "0123456789abcdef0123456789abcdef"


def made_run(
    *, ranks: int = 2, points: int = 3, protocol: bool = True, contract: bool = True, engine: bool = True
) -> list[dict[str, Any]]:
    """Return the documents of all ranks: prefill and decode points in turn, a ledger, an engine block."""
    groups = [_group(number, ranks, protocol, contract) for number in range(1, points + 1)]
    return [_rank(rank, ranks, groups, protocol, contract, engine) for rank in range(ranks)]


def _point(number: int) -> dict[str, Any]:
    prefill = number % 2 == 1
    return {
        "point_type": "prefill" if prefill else "decode",
        "benchmark_id": number,
        "total_prefill_tokens": 64 * number if prefill else 0,
        "total_kv_read_tokens": 0 if prefill else 128 * number,
        "batch_size": 2,
        "expected_cudagraph_mode": "NONE" if prefill else "FULL",
        "expected_capture_size": None if prefill else 2,
        "padding_tokens": None if prefill else 0,
        "sample_reasons": ["eager_tail"] if prefill else ["capture", "kvwarm_fake_fallback"],
        "partition": None,
        "rows": None,
    }


def _regime(number: int) -> str:
    return "not_applicable" if number % 2 == 1 else "fake_fallback"


def _fpm(number: int, rank: int, wall: float) -> dict[str, Any]:
    point = _point(number)
    prefill = point["point_type"] == "prefill"
    return {
        "version": 1,
        "worker_id": "4192",
        "dp_rank": rank,
        "counter_id": number,
        "wall_time": wall,
        "scheduled_requests": {
            "num_prefill_requests": 2 if prefill else 0,
            "sum_prefill_tokens": point["total_prefill_tokens"],
            "var_prefill_length": 0.0,
            "sum_prefill_kv_tokens": 0,
            "num_decode_requests": 0 if prefill else 2,
            "sum_decode_kv_tokens": point["total_kv_read_tokens"],
            "var_decode_kv_tokens": 0.0,
        },
        "queued_requests": {
            "num_prefill_requests": 0,
            "sum_prefill_tokens": 0,
            "var_prefill_length": 0.0,
            "num_decode_requests": 0,
            "sum_decode_kv_tokens": 0,
            "var_decode_kv_tokens": 0.0,
        },
    }


def _wall(number: int, rank: int) -> float:
    return 0.25 * number + 0.125 * rank


def _raws(number: int, rank: int, contract: bool) -> list[dict[str, Any]]:
    """Return one sample of a prefill point, an admission and three steady steps of a decode point."""
    wall = _wall(number, rank)
    walls = [wall] if number % 2 == 1 else [wall + 1.0, wall + 0.5, wall - 0.0625, wall]
    raws = []
    clock = 100.0 * number + rank
    for index, each in enumerate(walls):
        raw = _fpm(number, rank, each)
        if contract:
            raw["benchmark_sample"] = {
                "sample_index": index,
                "forward_index": 10 * number + index,
                "timing": {
                    "basis": "schedule_to_output" if index == 0 else "inter_output",
                    "start_monotonic": clock,
                    "end_monotonic": clock + each,
                },
                "cudagraph": _dispatch(number),
            }
        clock += each
        raws.append(raw)
    return raws


def _dispatch(number: int) -> dict[str, Any]:
    if number % 3 == 0:
        names = ("runtime_mode", "num_unpadded_tokens", "num_padded_tokens", "num_paddings")
        return {"status": "unavailable", **dict.fromkeys(names)}
    return {
        "status": "observed",
        "runtime_mode": "FULL",
        "num_unpadded_tokens": 2,
        "num_padded_tokens": 4,
        "num_paddings": 2,
    }


def _prompts(number: int, rank: int) -> dict[str, Any]:
    requests = [
        {
            "slot": slot,
            "num_tokens": 32 * number,
            "sha256": hashlib.sha256(f"{number} {rank} {slot}".encode()).hexdigest(),
        }
        for slot in range(2)
    ]
    digest = hashlib.sha256(canonical_json(requests).encode()).hexdigest()
    return {"status": "recorded", "sha256": digest, "requests": requests}


def _retained(number: int, rank: int, protocol: bool, contract: bool) -> dict[str, Any]:
    fpm = _fpm(number, rank, _wall(number, rank))
    if number % 2 == 0:
        fpm["kvwarm_steady_sample"] = True
        fpm["kvwarm_giant_median_of"] = 3
    if protocol:
        raws = _raws(number, rank, contract)
        if number % 2 == 0:  # the upper median of the steady steps
            fpm["wall_time"] = sorted(raw["wall_time"] for raw in raws[1:])[1]
        fpm["benchmark_measurement"] = {
            "schema_version": 1,
            "point_key": point_key(_point(number)),
            "dp_rank": rank,
            "prompts": _prompts(number, rank),
            "preparation": {
                "grid_digest": GRID,
                "completed_points_before": number - 1,
                "kv_seed_regime": _regime(number),
                "warmup_records_before": 2 if contract else None,
            },
            "expected_internal_samples": len(raws),
            "raw_fpms": raws,
            "estimate": {
                "method": "single_step" if number % 2 == 1 else "adjacent_upper_median",
                "raw_sample_indices": [0] if number % 2 == 1 else [1, 2, 3],
            },
        }
    return fpm


def _group(number: int, ranks: int, protocol: bool, contract: bool) -> dict[str, Any]:
    results: list[dict[str, Any]] = [
        {"dp_rank": rank, "fpms": [_retained(number, rank, protocol, contract)]} for rank in range(ranks)
    ]
    return {
        "benchmark_id": number,
        "point": _point(number),
        "expected_dp_ranks": list(range(ranks)),
        "complete": True,
        "wall_time": max(result["fpms"][0]["wall_time"] for result in results),
        "rank_results": results,
    }


def _warmup(kind: str, start: int, end: int, **more: Any) -> dict[str, Any]:
    shape = {"num_prefill_requests": 1}
    return {
        "kind": kind,
        "requested_shape": {"prompt_lengths": [256], "max_tokens": 5},
        "status": "completed",
        "validation": {"status": "not_performed", "reason": None},
        "forward_index_start": start,
        "forward_index_end": end,
        "completed_points_before": 0,
        "observed_forward_count": end - start,
        "first_scheduled_requests": shape,
        "last_scheduled_requests": shape,
        **more,
    }


def _ledger() -> dict[str, Any]:
    validation = {"status": "passed", "reason": None, "scope": "attention_dp_group", "failed_dp_rank": None}
    replica = _warmup("eager_shape", 5, 7, requested_shape=_point(1), validation=validation)
    return {"status": "recorded", "records": [_warmup("global", 0, 5), replica]}


def _engine(rank: int, ranks: int) -> dict[str, Any]:
    block = EngineBlock(
        attention=AttentionBlock(),
        model=ModelBlock(dtype="bfloat16", model_type="mock", architectures=("Mock",), model="m"),
        parallel=ParallelBlock(
            data_parallel_size=ranks,
            data_parallel_rank=rank,
            tensor_parallel_size=2,
            pipeline_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        resolved=None,
        resolution=PENDING,
    )
    built: dict[str, Any] = msgspec.to_builtins(block)
    return built


def _rank(
    rank: int, ranks: int, groups: list[dict[str, Any]], protocol: bool, contract: bool, engine: bool
) -> dict[str, Any]:
    points = len(groups)
    document: dict[str, Any] = {
        "schema_version": 2,
        "artifact_type": "rank",
        "status": "complete",
        "valid": True,
        "usable": True,
        "stop_reason": None,
        "timing_valid": True,
        "run_id": RUN_ID,
        "grid_digest": GRID,
        "timing": {
            "started_at": "2026-12-01T10:00:00.000000Z",
            "completed_at": "2026-12-01T10:01:00.000000Z",
            "benchmark_elapsed_seconds": 60.0 + points + rank,
            "measured_iteration_seconds": sum(group["wall_time"] for group in groups),
        },
        "dp": {"rank": rank, "size": ranks},
        "synchronization": {"enabled": ranks > 1, "coordinator_rank": 0, "port": None},
        "coverage": {"expected_points": points, "completed_points": points, "skipped_points": 0},
        **_settings(rank),
        "results": [
            {
                "point": group["point"],
                "kv_seed_regime": _regime(group["benchmark_id"]),
                "fpms": group["rank_results"][rank]["fpms"],
            }
            for group in groups
        ],
        "iteration_groups": groups,
        "skipped_points": [],
        "missing_phases": [],
        "error": None,
    }
    if protocol:
        document["measurement_protocol"] = _protocol(contract)
    if protocol and contract:
        document["warmup_evidence"] = _ledger()
    if engine:
        document["engine"] = _engine(rank, ranks)
    parsed: dict[str, Any] = json.loads(json.dumps(document))  # nothing is shared between its parts
    return parsed


def _settings(rank: int) -> dict[str, Any]:
    return {
        "config": {
            "mode": "agg",
            "randomize_kda_state": False,
            "hybrid_live_state": False,
            "warmup_iterations": 5,
            "output_path": f"/bench/results_dp{rank}.json",
            "timeout": 900,
            "prefill_max_new_token_samples": 64,
            "prefill_max_kv_read_token_samples": 16,
            "decode_max_kv_read_token_samples": 128,
            "decode_max_batch_size_samples": 128,
            "prefix_max_batch_size_samples": 3,
            "max_batch_size": None,
            "collect_imbalanced": False,
        },
        "limits": {
            "max_num_scheduled_tokens": 2048,
            "max_num_running_reqs": 16,
            "max_model_len": 4096,
            "block_size": 16,
            "num_gpu_blocks": 1000 + rank,
            "configured_max_batch_size": 16,
            "feasible_max_batch_size": 16,
        },
        "recurrent_state": {"initialization": "unchanged", "policy": None, "uniform_bound": None},
        "measurement_policy": {"decode": "steady_state_second_step", "prefill": "single_step"},
        "synthetic_prompts": {"mode": "salted_random", "vocab_size": 1024},
        "capacity": {"common": None},
        "cudagraph": {
            "mode": "FULL_AND_PIECEWISE",
            "prefill_mode": "PIECEWISE",
            "decode_mode": "FULL",
            "max_capture_size": 4,
            "capture_sizes": [1, 2, 4],
            "prefill_capture_sizes": [1, 2, 4],
            "decode_capture_sizes": [1, 2, 4],
        },
    }


def _protocol(contract: bool) -> dict[str, Any]:
    preparation = ProtocolPreparation(
        warmup_iterations=5,
        prefill_real_seed=False,
        decode_real_kv_warmup=True,
        giant_kv_threshold=1_000_000,
        giant_kv_repeats=3,
    )
    protocol: dict[str, Any] = msgspec.to_builtins(
        measurement_protocol(seed="0", content="random", pool_tag="", preparation=preparation)
    )
    protocol["unobserved"] = list(protocol["unobserved"])
    if not contract:
        del protocol["execution_evidence"]
    return protocol
