"""Schedulers of an operator's, derived from ours; given as ``derived_scheduler.Derived`` and so on."""

from __future__ import annotations

from forwardpass.engines.vllm.bench_scheduler import BenchForwardPassScheduler
from forwardpass.engines.vllm.scheduler import ForwardPassScheduler


class Derived(ForwardPassScheduler):
    """Ours, with something of the operator's in it."""


class DerivedBenchScheduler(BenchForwardPassScheduler):
    """The one that measures, with something of the operator's in it."""
