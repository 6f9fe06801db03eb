"""Knows how one rank of the simulated engine moves through time: arrivals, passes, outputs.

The rank has no thread and no clock. It is told the time, does what is due, and says when it wants to be
told again; so the same code runs in real time, and as fast as possible in simulated time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from math import inf
from random import Random
from typing import NamedTuple

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.extract import measure
from forwardpass.engines.mock.load import Arrival
from forwardpass.engines.mock.request import Request
from forwardpass.engines.mock.scheduler import Scheduler, Totals
from forwardpass.engines.mock.step import Step
from forwardpass.publish.publisher import Publisher

__all__ = ["MockEngine", "PublisherFactory"]

PublisherFactory = Callable[[int], Publisher]
"""Opens the publisher of a rank; called again when the rank restarts."""

SYNC_DEPTH = 1
ASYNC_DEPTH = 2
CRASH_SECONDS = 0.5
"""Longest time a crash waits for the publisher's thread, so that the port is free again."""
_NOISE_LIMIT = 3.0


class _Flight(NamedTuple):
    """A step on its way through the GPU. Times in seconds on the caller's clock."""

    step: Step
    scheduled_at: float
    done_at: float


class MockEngine:
    """One data-parallel rank: schedule, wait for the GPU, update, publish.

    In synchronous order a step's output arrives before the next step is scheduled. In asynchronous order
    two are in flight: schedule, schedule, update, schedule, update, … An empty step is processed like any
    other: it ends a period of work, so that idle time is not counted in the next ``wall_time``.
    """

    def __init__(
        self,
        config: MockConfig,
        publisher_factory: PublisherFactory,
        arrivals: Iterable[Arrival],
        *,
        dp_rank: int = 0,
    ) -> None:
        self.dp_rank = dp_rank
        self.passes = 0
        self.totals = Totals()
        self._config = config
        self._factory = publisher_factory
        self._depth = ASYNC_DEPTH if config.async_scheduling else SYNC_DEPTH
        self._random = Random(f"{config.seed}/{dp_rank}/noise")
        self._arrivals: Iterator[Arrival] = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        self._next_uid = 0
        self._slow_factor = 1.0
        self._stall_seconds = 0.0
        self._start_afresh()
        self.publisher: Publisher = publisher_factory(dp_rank)

    def _start_afresh(self) -> None:
        self.scheduler = Scheduler(self._config, self.totals)
        self._flights: deque[_Flight] = deque()
        self._gpu_free_at = 0.0
        self._last_output_at: float | None = None
        self._down_until: float | None = None

    # --- time ------------------------------------------------------------------------------------

    def turn(self, now: float) -> float:
        """Do everything that is due at ``now`` and return when to call again (``inf``: never).

        ``now`` is in seconds and never goes back.
        """
        if self._down_until is not None and not self._come_up(now):
            return self._down_until
        if self._flights and self._flights[0].done_at <= now:
            self._update(self._flights.popleft(), now)
        self._receive(now)
        while len(self._flights) < self._depth and self.scheduler.has_work:
            self._schedule(now)
        if self._flights:
            return self._flights[0].done_at
        return self._next_arrival.at_seconds if self._next_arrival else inf

    def _receive(self, now: float) -> None:
        arrival = self._next_arrival
        while arrival is not None and arrival.at_seconds <= now:
            self._next_uid += 1
            _, prompt, output, prefix_id, prefix = arrival
            self.scheduler.submit(
                Request(self._next_uid, prompt, output, prefix_id=prefix_id, prefix_tokens=prefix)
            )
            arrival = next(self._arrivals, None)
        self._next_arrival = arrival

    def _schedule(self, now: float) -> None:
        step = self.scheduler.schedule()
        if not step.empty:
            ready = now + self._config.cost.host_seconds
            self._gpu_free_at = max(ready, self._gpu_free_at) + self._gpu_seconds(step)
        self._flights.append(_Flight(step, now, max(now, self._gpu_free_at)))

    def _update(self, flight: _Flight, now: float) -> None:
        step = flight.step
        self.scheduler.update(step)
        queued = self.scheduler.waiting.snapshot()
        if step.empty:
            self._last_output_at = None
            self.publisher.note_queue(queued)
            return
        since = flight.scheduled_at if self._last_output_at is None else self._last_output_at
        self._last_output_at = now
        self.passes += 1
        self.publisher.publish(measure(step, queued, now - since, self.dp_rank))

    def _gpu_seconds(self, step: Step) -> float:
        tokens, pairs, kv_tokens = 0, 0, sum(step.contexts)
        for chunk in step.chunks:
            tokens += chunk.tokens
            pairs += chunk.tokens * chunk.computed + chunk.tokens * (chunk.tokens + 1) // 2
            kv_tokens += chunk.computed
        seconds = self._config.cost.gpu_seconds(
            prefill_tokens=tokens, pairs=pairs, decode_requests=len(step.contexts), kv_tokens=kv_tokens
        )
        if self._config.noise:
            noise = min(_NOISE_LIMIT, max(-_NOISE_LIMIT, self._random.gauss(0.0, 1.0)))
            seconds *= 1.0 + self._config.noise * noise
        stall, self._stall_seconds = self._stall_seconds, 0.0
        return seconds * self._slow_factor + stall

    # --- faults and the end ----------------------------------------------------------------------

    def slow_down(self, factor: float) -> None:
        """Let every pass from now on take ``factor`` times as long as it should."""
        self._slow_factor = factor

    def stall(self, seconds: float) -> None:
        """Let the next pass take ``seconds`` longer."""
        self._stall_seconds += seconds

    def crash(self, now: float, down_seconds: float) -> None:
        """Die at ``now`` with every request, and come up again empty, with a new publisher."""
        self.publisher.shutdown(CRASH_SECONDS)
        self._start_afresh()
        self._down_until = now + down_seconds

    def _come_up(self, now: float) -> bool:
        if self._down_until is None or now < self._down_until:
            return False
        while self._next_arrival is not None and self._next_arrival.at_seconds <= now:
            self._next_arrival = next(self._arrivals, None)  # nobody was there to take it
        self._down_until = None
        self.publisher = self._factory(self.dp_rank)
        return True

    def close(self) -> None:
        """Shut the publisher down; requests that still run are abandoned."""
        self.publisher.shutdown()
