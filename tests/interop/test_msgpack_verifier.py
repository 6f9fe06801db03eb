"""An independent MessagePack library, and the reference's own bytes, agree with our codec."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import msgpack
import msgspec
import pytest
from hypothesis import given

from forwardpass.testing import strategies
from forwardpass.wire.codec import decode, decode_full, decode_strict, encode
from forwardpass.wire.frames import join, split
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

GOLDEN = Path(__file__).parent.parent / "golden"
RAW_CAPTURES = sorted(GOLDEN.glob("*/raw_zmq_frames.jsonl.gz"))
TRACES = sorted(GOLDEN.glob("*/*.jsonl.gz"))

VECTOR = {
    "version": 1,
    "worker_id": "w7",
    "dp_rank": 1,
    "counter_id": 300,
    "wall_time": 0.5,
    "scheduled_requests": {
        "num_prefill_requests": 2,
        "sum_prefill_tokens": 70,
        "var_prefill_length": 25.0,
        "sum_prefill_kv_tokens": 128,
        "num_decode_requests": 3,
        "sum_decode_kv_tokens": 90000,
        "var_decode_kv_tokens": 6.25,
    },
    "queued_requests": {
        "num_prefill_requests": 0,
        "sum_prefill_tokens": 0,
        "var_prefill_length": 0.0,
        "num_decode_requests": 1,
        "sum_decode_kv_tokens": 9,
        "var_decode_kv_tokens": 0.0,
    },
}


def test_the_vector_as_the_other_library_writes_it() -> None:
    """WIRE-04: the other library, given the documented values, writes the documented bytes, as ours does."""
    theirs = msgpack.packb(VECTOR)

    assert hashlib.sha256(theirs).hexdigest() == (
        "a060c60c61ee2e73dd04bbb2bd38c8fad263ba97bc4c8b44fc96884d14f4b5fb"
    )
    assert encode(decode_strict(theirs)) == theirs


@given(strategies.metrics)
def test_the_other_library_reads_ours(metrics: ForwardPassMetrics) -> None:
    """WIRE-01: what we encode is, field for field, what another MessagePack reader finds."""
    assert msgpack.unpackb(encode(metrics)) == msgspec.to_builtins(metrics)


@given(strategies.metrics)
def test_we_read_the_other_library(metrics: ForwardPassMetrics) -> None:
    """WIRE-01: what another MessagePack writer makes of the fields decodes to the same message."""
    theirs = msgpack.packb(msgspec.to_builtins(metrics))

    assert decode(theirs) == metrics
    assert validate_payload(theirs) == msgspec.to_builtins(metrics)


def frames_in(capture: Path) -> Iterator[tuple[bytes, ...]]:
    """Yield the frames of every message in a capture."""
    with gzip.open(capture, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield tuple(bytes.fromhex(frame) for frame in json.loads(line)["frames"])


@pytest.mark.parametrize("capture", RAW_CAPTURES, ids=lambda p: p.parent.name)
def test_the_references_raw_frames(capture: Path) -> None:
    """WIRE-31, WIRE-32: each captured message splits, decodes, and is byte for byte what we would send."""
    count = 0
    for parts in frames_in(capture):
        frames = split(parts)
        metrics = decode_strict(frames.payload)
        count += 1

        assert metrics.counter_id == frames.seq
        assert join(metrics.counter_id, encode(metrics)) == parts
        assert decode_full(frames.payload).unknown == {}
        assert validate_payload(frames.payload) == msgpack.unpackb(frames.payload)
    assert count > 0


def test_captures_are_there() -> None:
    """The captures of both engines and of all their settings are found."""
    assert {path.parent.name for path in RAW_CAPTURES} >= {
        "vllm-cpu-full",
        "vllm-cpu-full-dp2",
        "vllm-cpu-full-preempt",
        "vllm-cpu-async-full",
        "sglang-cpu-raw",
    }


@pytest.mark.parametrize("trace", TRACES, ids=lambda p: f"{p.parent.name}-{p.name}")
def test_traced_messages_are_canonical(trace: Path) -> None:
    """TRACE-21: every message the reference found fit for its trace is fit for ours, with the same values."""
    with gzip.open(trace, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    messages = [row["event"]["fpm"] for row in rows if "event" in row]

    for message in messages:
        assert validate_payload(msgpack.packb(message)) == message
    assert len(messages) in (0, len(rows))
