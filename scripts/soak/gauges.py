"""Knows how vLLM's own gauges are read while it works, and when they agree with the stream."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from typing import NamedTuple

from demo_vllm import DemoFailed

from forwardpass.wire.schema import ForwardPassMetrics
from soak.engine import Engine

__all__ = ["GaugeReading", "GaugeWatch", "QueueLine"]

AROUND_SECONDS = 5.0
"""The API server hears of a step late when the machine is busy."""


class GaugeReading(NamedTuple):
    """One answer of ``/metrics``; monotonic seconds before and after."""

    asked: float
    answered: float
    running: float
    waiting: float


class GaugeWatch(threading.Thread):
    """Reads the gauges every so many seconds until it is stopped."""

    def __init__(self, engine: Engine, every_seconds: float) -> None:
        super().__init__(name="gauges", daemon=True)
        self.readings: list[GaugeReading] = []
        self._engine, self._every = engine, every_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        """Read until stopped. A server that does not answer fails elsewhere."""
        while not self._ended.wait(self._every):
            asked = time.monotonic()
            try:
                counters = self._engine.counters()
            except (OSError, DemoFailed):
                continue
            self.readings.append(
                GaugeReading(
                    asked,
                    time.monotonic(),
                    counters.get("num_requests_running", -1.0),
                    counters.get("num_requests_waiting", -1.0),
                )
            )

    def stop(self) -> None:
        """Stop reading."""
        self._ended.set()
        self.join(90.0)


class QueueLine:
    """How many requests ran and waited, message by message; times are when the plain reader had them."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ran: list[int] = []
        self._waited: list[int] = []

    def add(self, at: float, metrics: ForwardPassMetrics) -> None:
        """Add the next message."""
        scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
        self._times.append(at)
        self._ran.append(scheduled.num_prefill_requests + scheduled.num_decode_requests)
        self._waited.append(queued.num_prefill_requests + queued.num_decode_requests)

    def explains(self, reading: GaugeReading) -> bool:
        """Say whether the stream had as many running and waiting, more or less, around that time.

        After a step vLLM counts those that run on, so at most as many as ran in a pass. A step in which
        nothing can run (a request waits for its grammar, say) sets the gauges and has no message: where
        nothing runs, what waits is not compared.
        """
        start = max(0, bisect_left(self._times, reading.asked - AROUND_SECONDS) - 1)
        end = bisect_right(self._times, reading.answered + AROUND_SECONDS)
        ran, waited = self._ran[start:end], self._waited[start:end]
        if not ran:
            return reading.running == reading.waiting == 0
        if reading.running == 0 and reading.waiting > max(waited):
            return True
        return 0 <= reading.running <= max(ran) and min(waited) <= reading.waiting <= max(waited)
