"""Knows what handing one message to another thread costs the engine's thread, with that thread alive.

The engine's thread hands over a message about every 3 ms, and waits in between as for a device. Against a
queue whose consumer sleeps in ``get()``, every hand-over wakes a thread; the pump's thread polls.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from forwardpass.counters import Counters
from forwardpass.pump import Pump
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics
from harness import Result, from_rounds, percentile, rounds_for, run_script

ITEMS = 150
PAUSE_SECONDS = 0.003
ROUNDS = 9
METRICS = ForwardPassMetrics(worker_id="7587890123456789012", wall_time=0.012)


class EncodeTask:
    """Encodes what it is given, like a publisher without a socket."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters

    def open(self) -> None:
        """Do nothing."""

    def tick(self, now: float, queued: int) -> float:
        """Ask for nothing."""
        return 1.0

    def take(self, items: list[ForwardPassMetrics]) -> None:
        """Encode every item."""
        for metrics in items:
            encode(stamp(metrics, 1))
            self.counters.delivered += 1

    def close(self, deadline: float) -> None:
        """Do nothing."""

    def forked(self) -> None:
        """Do nothing."""


def hand_over(offer: Callable[[ForwardPassMetrics], object]) -> list[float]:
    """Return the microseconds that each of a round's hand-overs took."""
    took = []
    for _ in range(ITEMS):
        time.sleep(PAUSE_SECONDS)
        begin = time.perf_counter()
        offer(METRICS)
        took.append((time.perf_counter() - begin) * 1e6)
    return took


def through_queue() -> list[float]:
    """Hand over through a ``queue.Queue`` with a consumer that sleeps in ``get()``."""
    items: queue.Queue[ForwardPassMetrics | None] = queue.Queue(10_000)

    def consume() -> None:
        while (metrics := items.get()) is not None:
            encode(stamp(metrics, 1))

    consumer = threading.Thread(target=consume, daemon=True)
    consumer.start()
    took = hand_over(items.put_nowait)
    items.put(None)
    consumer.join(5)
    return took


def through_pump() -> list[float]:
    """Hand over through a pump."""
    counters = Counters()
    pump: Pump[ForwardPassMetrics] = Pump(
        EncodeTask(counters), name="benchmark", capacity=10_000, counters=counters
    )
    pump.start()
    took = hand_over(pump.offer)
    pump.stop(5)
    return took


def main() -> list[Result]:
    """Compare the median and the 99th percentile of a hand-over."""
    ways = {"queue.Queue.put_nowait": through_queue, "Pump.offer": through_pump}
    medians: dict[str, list[float]] = {label: [] for label in ways}
    tails: dict[str, list[float]] = {label: [] for label in ways}
    for number in range(rounds_for(ROUNDS)):
        for label, way in list(ways.items()) if number % 2 == 0 else reversed(ways.items()):
            took = way()
            medians[label].append(percentile(took, 0.5))
            tails[label].append(percentile(took, 0.99))
    return [
        from_rounds("hand-over, median", medians, goal=1 / 3),
        from_rounds("hand-over, 99th percentile", tails, goal=0.5),
    ]


if __name__ == "__main__":
    run_script(main, __doc__)
