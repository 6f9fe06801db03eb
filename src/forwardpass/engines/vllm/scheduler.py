"""Knows where in vLLM's scheduler a forward pass begins and ends. Every override only delegates.

Select it with ``--scheduler-cls forwardpass.engines.vllm.scheduler.ForwardPassScheduler`` (a dotted path;
vLLM does not take a colon).
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

from forwardpass.engines.vllm.attach import attach_recorder
from forwardpass.engines.vllm.order import follow_engine
from forwardpass.engines.vllm.recorder import Recorder

__all__ = ["ForwardPassScheduler"]


class ForwardPassScheduler(AsyncScheduler):  # type: ignore[misc]  # vLLM is not typed here
    """vLLM's own scheduler, observed.

    The base is the *asynchronous* scheduler, because the plain one splits batches in asynchronous mode. In
    synchronous mode the object becomes a plain one: there the other is wrong.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        follow_engine(self, AsyncScheduler)
        self._forwardpass = self.open_recorder()

    def open_recorder(self) -> Recorder:
        """Return what this scheduler delegates to."""
        return attach_recorder(self)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule as vLLM does. Arguments differ between versions and pass through."""
        recorder = self._forwardpass
        recorder.step += 1  # odd: vLLM has requests in its hands that are in no queue
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            recorder.step += 1
        recorder.scheduled(output)
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Take in a model output as vLLM does, then report the pass that it ended."""
        recorder = self._forwardpass
        arrived_at = recorder.now()
        recorder.step += 1
        try:
            result = super().update_from_output(scheduler_output, model_runner_output)
        finally:
            recorder.step += 1
        recorder.finished(scheduler_output, arrived_at)
        return result

    def set_worker_id(self, worker_id: str) -> None:
        """Write ``worker_id`` into every later message; for engines built before it was known."""
        self._forwardpass.set_worker_id(worker_id)

    def shutdown(self) -> None:
        """Send what is queued and stop the stream, then shut down as vLLM does."""
        self._forwardpass.close()
        super().shutdown()
