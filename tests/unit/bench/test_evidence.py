"""Evidence as it is made during a run, and the JSON that it becomes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given

from forwardpass.bench.evidence import (
    EXECUTION_EVIDENCE,
    NO_DISPATCH,
    NO_PROMPTS,
    NO_WARMUPS,
    Basis,
    BenchmarkFpm,
    BenchmarkSample,
    Dispatch,
    Observed,
    Prompts,
    RecordedWarmups,
    SampleTiming,
    WarmupLedger,
    bench_fpm,
)
from forwardpass.testing.strategies import metrics
from forwardpass.wire.schema import ForwardPassMetrics


def built(value: Any) -> Any:
    """Return the parsed JSON of a struct."""
    return json.loads(msgspec.json.encode(value))


@given(metrics)
def test_a_pass_keeps_all_fields_of_the_wire(live: ForwardPassMetrics) -> None:
    """ART-10: A benchmark's pass is the live message field for field, and nothing else without evidence."""
    assert built(bench_fpm(live)) == built(live)


def test_a_sample_has_its_evidence_beside_the_fields() -> None:
    """EVID-05, EVID-06, EVID-07: The sample stands beside the fields of the wire, as documented."""
    sample = BenchmarkSample(
        sample_index=1,
        forward_index=42,
        timing=SampleTiming(Basis.INTER_OUTPUT, 150.0129, 150.019),
        cudagraph=Observed("FULL", 4, 4, 0),
    )
    found = built(bench_fpm(ForwardPassMetrics(worker_id="4192"), sample=sample))

    assert found["benchmark_sample"] == {
        "sample_index": 1,
        "forward_index": 42,
        "timing": {"basis": "inter_output", "start_monotonic": 150.0129, "end_monotonic": 150.019},
        "cudagraph": {
            "status": "observed",
            "runtime_mode": "FULL",
            "num_unpadded_tokens": 4,
            "num_padded_tokens": 4,
            "num_paddings": 0,
        },
    }
    assert "benchmark_measurement" not in found


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (
            NO_DISPATCH,
            Dispatch,
            '{"status":"unavailable","runtime_mode":null,"num_unpadded_tokens":null,"num_padded_tokens":null,'
            '"num_paddings":null}',
        ),
        (NO_PROMPTS, Prompts, '{"status":"unavailable","sha256":null,"requests":[]}'),
        (NO_WARMUPS, WarmupLedger, '{"status":"unavailable","records":[]}'),
        (RecordedWarmups(()), WarmupLedger, '{"status":"recorded","records":[]}'),
    ],
)
def test_what_is_not_known_is_a_value_of_its_own(value: Any, kind: Any, text: str) -> None:
    """EVID-15: It has the documented form, reads back to itself, and is not taken from an empty object; that
    nothing was warmed up is another value than that it is not known.
    """
    assert msgspec.json.encode(value).decode() == text
    assert msgspec.json.decode(text, type=kind) == value
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode("{}", type=kind)
    for key in json.loads(text):
        part = {name: one for name, one in json.loads(text).items() if name != key}
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(part, kind)


def test_a_number_that_is_true_is_no_number() -> None:
    """EVID-05: Booleans are not taken for counts."""
    found = built(bench_fpm(ForwardPassMetrics()))
    for name in ("counter_id", "dp_rank", "version"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({**found, name: True}, BenchmarkFpm)


def test_the_promise_is_word_for_word() -> None:
    """EVID-12, MERGE-03: What a protocol promises is the documented object."""
    assert built(EXECUTION_EVIDENCE) == {
        "schema_version": 1,
        "sample_field": "benchmark_sample",
        "warmup_field": "warmup_evidence",
        "forward_index_scope": "rank_process",
        "timing_clock": "process_local_monotonic",
        "cudagraph_source": "ModelRunnerOutput.cudagraph_stats",
        "warmup_scope": "request_completion_and_existing_shape_validation",
    }
