"""Knows how to make trace rows, records and gzip members for tests of code that reads traces."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import msgspec

from forwardpass.trace.record import TRACE_SCHEMA, TraceRecord, decode_line
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["decode_pass", "gzip_member", "mixed_pass", "prefill_pass", "trace_line", "trace_record"]

_EPOCH_MS = 1_796_042_065_000


def prefill_pass(requests: int = 1, tokens: int = 100, cached: int = 0) -> ScheduledRequestMetrics:
    """Return what a pass of prompts schedules."""
    return ScheduledRequestMetrics(requests, tokens, 0.0, cached)


def decode_pass(requests: int = 4, kv_tokens: int = 900) -> ScheduledRequestMetrics:
    """Return what a pass of generating requests schedules."""
    return ScheduledRequestMetrics(num_decode_requests=requests, sum_decode_kv_tokens=kv_tokens)


def mixed_pass(tokens: int = 100, decodes: int = 4) -> ScheduledRequestMetrics:
    """Return what a pass with both schedules."""
    return ScheduledRequestMetrics(1, tokens, 0.0, 0, decodes, 900, 0.0)


def trace_line(
    counter_id: int = 0,
    scheduled: ScheduledRequestMetrics | None = None,
    *,
    wall_time: float = 0.02,
    queued: QueuedRequestMetrics | None = None,
    worker_id: str = "4192",
    dp_rank: int = 0,
    producer_id: str = "4192",
    capture_mode: str = "full",
    observed_at_unix_ms: int | None = None,
) -> bytes:
    """Return one row as a writer writes it, without its newline. By default a decode pass, 20 ms after
    the one before it.
    """
    fpm = ForwardPassMetrics(
        worker_id=worker_id,
        dp_rank=dp_rank,
        counter_id=counter_id,
        wall_time=wall_time,
        scheduled_requests=decode_pass() if scheduled is None else scheduled,
        queued_requests=queued or QueuedRequestMetrics(),
    )
    observed = _EPOCH_MS + 20 * counter_id if observed_at_unix_ms is None else observed_at_unix_ms
    event = {
        "schema": TRACE_SCHEMA,
        "source": {"namespace": "dynamo", "component": "backend", "producer_id": producer_id},
        "capture_mode": capture_mode,
        "observed_at_unix_ms": observed,
        "fpm": fpm,
    }
    return msgspec.json.encode({"timestamp": 20 * counter_id, "event": event})


def trace_record(
    counter_id: int = 0, scheduled: ScheduledRequestMetrics | None = None, **details: Any
) -> TraceRecord:
    """Return the record of the row that :func:`trace_line` makes of the same arguments."""
    return decode_line(trace_line(counter_id, scheduled, **details))


def gzip_member(lines: Iterable[bytes], level: int = 6) -> bytes:
    """Return one gzip member of ``lines``, each with a newline."""
    return zlib.compress(b"".join(line + b"\n" for line in lines), level, 31)
