"""Knows what each kind of fault does to a simulated rank that measures itself, and when."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable

import msgspec

from forwardpass.bench.context import RunContext
from forwardpass.bench.driver import Batch, Refused
from forwardpass.bench.points import Phase
from forwardpass.engines.mock.bench_engine import MockBenchEngine
from forwardpass.engines.mock.bench_faults import BenchFault, BenchFaultKind
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["FaultyRank", "be_missing"]


def be_missing() -> None:
    """Do nothing until a signal's handler raises."""
    while True:
        threading.Event().wait()


class FaultyRank:
    """The faults of one rank. They are asked whenever the engine is given a batch, and at each output."""

    def __init__(self, faults: Iterable[BenchFault], engine: MockBenchEngine, context: RunContext) -> None:
        """Take ``engine`` over: its driver asks here first, and what it reports passes through here."""
        self._faults = tuple(faults)
        self._engine, self._context = engine, context
        engine.driver.on_batch = self._on_batch
        engine.tamper = self._tamper

    def _on_batch(self, batch: Batch) -> Refused | None:
        """Begin what begins with this batch; refuse it if there is no block for it."""
        refused = None
        for fault in filter(self._is_due, self._faults):
            refused = self._begin(fault, batch) or refused
        return refused

    def _begin(self, fault: BenchFault, batch: Batch) -> Refused | None:
        match fault.kind:
            case BenchFaultKind.SLOW_RANK:
                self._engine.costs.slow_factor = fault.value
            case BenchFaultKind.LATE_OUTPUT:
                self._engine.costs.stall_seconds = fault.value
            case BenchFaultKind.CHUNKED_PREFILL:
                if batch.phase is Phase.PREFILL:
                    new = sum(len(one.token_ids) - one.cached_tokens for one in batch.requests)
                    self._engine.scheduler.token_budget = max(1, new // 2)
            case BenchFaultKind.REFUSED_ALLOCATION:
                return Refused("no block is free, as the fault wants it")
            case BenchFaultKind.MISSING_RANK:
                be_missing()
            case BenchFaultKind.CRASH:
                os.kill(os.getpid(), signal.SIGKILL)
            case BenchFaultKind.WRONG_SHAPE:
                pass  # shows in what is reported
        return None

    def _tamper(self, metrics: ForwardPassMetrics) -> ForwardPassMetrics:
        for fault in filter(self._is_due, self._faults):
            if fault.kind is BenchFaultKind.WRONG_SHAPE:
                metrics = _shortened(metrics, int(fault.value))
        return metrics

    def _is_due(self, fault: BenchFault) -> bool:
        """Say whether it is its point's turn; a replica of the point's shape is not the point."""
        point = self._context.point
        if fault.point is None:
            return True
        return point is not None and not point.is_replica and point.benchmark_id == fault.point


def _shortened(metrics: ForwardPassMetrics, tokens: int) -> ForwardPassMetrics:
    scheduled = metrics.scheduled_requests
    field = "sum_prefill_tokens" if scheduled.num_prefill_requests else "sum_decode_kv_tokens"
    left = max(0, getattr(scheduled, field) - tokens)
    return msgspec.structs.replace(
        metrics, scheduled_requests=msgspec.structs.replace(scheduled, **{field: left})
    )
