"""Knows the vLLM schedulers that are compared, and how a subclass's own time is told from vLLM's.

Every scheduler under test is a subclass of vLLM's ``AsyncScheduler`` whose overrides call ``super()``. For
the measurement each is subclassed once more together with :class:`VllmTime`, which thereby stands between
it and vLLM in the order of methods: a clock outside, a clock inside, and the difference is what the
scheduler under test added. The same holds for all, whether they work in hooks or inline. The clocks
themselves add half a microsecond; ``vllm alone`` shows it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from forwardpass.testing.ports import free_port
from forwardpass.wire.schema import ForwardPassMetrics
from plain_way import plain_pass

__all__ = ["OURS", "PLAIN", "REFERENCE", "VLLM", "Reader", "prepare_environment", "reference_class", "ways"]

VLLM, REFERENCE, PLAIN, OURS = "vllm alone", "dynamo 1.6.1", "running variance", "forwardpass"

READER = """
import sys, zmq
socket = zmq.Context().socket(zmq.SUB)
socket.setsockopt(zmq.RCVHWM, 0)
socket.setsockopt(zmq.RECONNECT_IVL, 20)
socket.subscribe(b"")
socket.connect(f"tcp://127.0.0.1:{sys.argv[1]}")
while True:
    socket.recv_multipart()
"""


def prepare_environment() -> None:
    """Set what vLLM and Dynamo read from the environment when they are imported."""
    os.environ.update(
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        VLLM_LOGGING_LEVEL="ERROR",
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_HOST_IP="127.0.0.1",
        DYN_LOG="error",
        DYN_FPM_WORKER_ID="7587890123456789012",
        FORWARDPASS_STRICT="1",
        FORWARDPASS_BIND_HOST="127.0.0.1",
    )


class Reader:
    """A process that subscribes to a stream and reads all the time, as a relay would."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process = subprocess.Popen([sys.executable, "-c", READER, str(self.port)])

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait(10)


@cache
def reference_class() -> type | None:
    """Return NVIDIA Dynamo's instrumented scheduler, or ``None`` where it is not installed."""
    try:
        from dynamo.vllm.instrumented_scheduler import InstrumentedScheduler
    except ImportError:
        return None
    return InstrumentedScheduler  # type: ignore[no-any-return]


@cache
def ways(hand_over: Callable[[ForwardPassMetrics], None]) -> dict[str, type]:
    """Return the measured schedulers by label; the plain one hands its passes to ``hand_over``."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

    found: dict[str, type | None] = {
        VLLM: AsyncScheduler,
        REFERENCE: reference_class(),
        PLAIN: _plain_class(hand_over),
        OURS: ForwardPassScheduler,
    }
    return {label: _measured(cls) for label, cls in found.items() if cls is not None}


def _plain_class(hand_over: Callable[[ForwardPassMetrics], None]) -> type:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    class PlainScheduler(AsyncScheduler):  # type: ignore[misc]
        """Counts request by request, with a running variance."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.lengths: dict[str, int] = {}
            self.arrived = 0.0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            output = super().schedule(*args, **kwargs)
            self.scheduled_at = time.monotonic()
            return output

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            now = time.monotonic()
            result = super().update_from_output(scheduler_output, model_runner_output)
            since, self.arrived = self.arrived or self.scheduled_at, now
            second = getattr(self, "kv_holding_waiting", None) or getattr(self, "skipped_waiting", ())
            hand_over(plain_pass(scheduler_output, (self.waiting, second), self.lengths, now - since))
            return result

    return PlainScheduler


@cache
def _measured(tested: type) -> type:
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    class VllmTime(AsyncScheduler):  # type: ignore[misc]
        """Adds up the seconds that vLLM's own methods take."""

        vllm_seconds = 0.0

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            output = super().schedule(*args, **kwargs)
            self.vllm_seconds += time.perf_counter() - begin
            return output

        def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
            begin = time.perf_counter()
            result = super().update_from_output(scheduler_output, model_runner_output)
            self.vllm_seconds += time.perf_counter() - begin
            return result

    bases = (VllmTime,) if tested is AsyncScheduler else (tested, VllmTime)
    return type(f"Measured{tested.__name__}", bases, {})
