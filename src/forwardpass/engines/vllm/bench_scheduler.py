"""Knows where in vLLM's scheduler a self-benchmark takes its place, until it has ended.

Select it with ``--scheduler-cls forwardpass.engines.vllm.bench_scheduler.BenchForwardPassScheduler``; without
settings for a benchmark in the engine's configuration it is the plain recording scheduler.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from forwardpass.engines.vllm.bench_rank import open_benchmark
from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

__all__ = ["BenchForwardPassScheduler"]


class BenchForwardPassScheduler(ForwardPassScheduler):
    """vLLM's own scheduler, observed, and before it serves measured."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bench = open_benchmark(self, self._forwardpass)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule the benchmark's next step while there is one, else as vLLM does."""
        bench = self._bench
        if bench is None or not bench.active:
            return super().schedule(*args, **kwargs)
        own = partial(super(ForwardPassScheduler, self).schedule, *args, **kwargs)
        return bench.schedule(own)

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in a model output, as the benchmark's if it was scheduled for it."""
        bench = self._bench
        if bench is None or not bench.scheduled(scheduler_output):
            self._bench = bench if bench is not None and bench.active else None
            return super().update_from_output(scheduler_output, model_runner_output)
        own = partial(
            super(ForwardPassScheduler, self).update_from_output, scheduler_output, model_runner_output
        )
        return bench.update(scheduler_output, model_runner_output, own)

    def has_requests(self) -> bool:
        """Say whether there is something to do: a benchmark goes on without anybody's request."""
        bench = self._bench
        return bool((bench is not None and bench.active) or super().has_requests())

    def shutdown(self) -> None:
        """End a benchmark that still goes on, then shut down."""
        if self._bench is not None:
            self._bench.abort(InterruptedError("the engine was shut down"))
        super().shutdown()
