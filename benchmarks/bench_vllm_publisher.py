"""What a publisher's thread costs the steps of an engine that has one interpreter lock for both.

A made-up engine: each step computes in Python for about a millisecond, hands a pass over and, in one half
of the cases, waits two milliseconds for its device with the lock released. The step's time is that without
the wait: what the other thread takes from it, by holding the lock or by being woken, is in it. Compared
are no publisher, the thread of NVIDIA Dynamo's scheduler (where it is installed; ``make bench-vllm``) and
ours, each opened for its own turn only, with a reader in another process.

Two of ours: one is handed ready messages, as Dynamo's is, and one gets what vLLM's scheduler hands over, an
output with 256 decoding requests that this thread has yet to count. Dynamo counts on the engine's thread.

"Effect" is a round's figure less that of the same round without a publisher; it can be negative by noise.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from forwardpass.clock import SystemClock
from forwardpass.config.settings import PublisherSettings
from forwardpass.engines.vllm.passes import Pass, PassCounter
from forwardpass.publish.port_owner import ports_are_free
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from harness import Result, from_rounds, is_quick, percentile, rounds_for, run_script
from scheduler_ways import OURS, REFERENCE, Reader, prepare_environment, reference_class

NONE = "no publisher"
STEPS = 600
QUICK_STEPS = 100
ROUNDS = 11
DEVICE_SECONDS = 0.002
STEP_LOOPS = 26_000
"""About a millisecond of Python."""
CONNECT_SECONDS = 0.3
EFFECT_GOAL = 1 / 3
TAIL_GOAL = 1.1

METRICS = ForwardPassMetrics(
    wall_time=0.0123,
    scheduled_requests=ScheduledRequestMetrics(3, 4096, 123.5, 1000, 250, 1_234_567, 998.25),
    queued_requests=QueuedRequestMetrics(12, 12_345, 33.5, 4, 5555, 12.25),
)

Publish = Callable[[ForwardPassMetrics], object]

COUNTING = "forwardpass, counting"
DECODES = 256
OUTPUT = SimpleNamespace(
    scheduled_new_reqs=[],
    scheduled_cached_reqs=SimpleNamespace(
        req_ids=[f"r{number}" for number in range(DECODES)],
        num_computed_tokens=[200 + 37 * number % 3000 for number in range(DECODES)],
        num_output_tokens=[5] * DECODES,
        resumed_req_ids=set(),
    ),
    num_scheduled_tokens={f"r{number}": 1 for number in range(DECODES)},
    total_num_scheduled_tokens=DECODES,
    scheduled_spec_decode_tokens={},
    finished_req_ids=set(),
)


@contextmanager
def no_publisher(port: int) -> Iterator[Publish]:
    """Do nothing with a pass."""
    yield lambda metrics: None


@contextmanager
def reference_publisher(port: int) -> Iterator[Publish]:
    """Publish with the thread of Dynamo's scheduler."""
    from dynamo.vllm.instrumented_scheduler import _FpmPublisherThread

    publisher = _FpmPublisherThread(f"tcp://127.0.0.1:{port}", worker_id="1", dp_rank=0)
    yield publisher.publish
    publisher.shutdown()


@contextmanager
def our_publisher(port: int, *, counting: bool = False) -> Iterator[Publish]:
    """Publish with ours."""
    settings = PublisherSettings(base_port=port, bind_host="127.0.0.1", worker_id="1")
    publisher = FpmPublisher(settings, dp_rank=0)
    counter = PassCounter(SystemClock())

    def publish_output(metrics: ForwardPassMetrics) -> None:
        done = Pass(counter, OUTPUT, (), 1.0, queue=METRICS.queued_requests)
        counter.ran(done)
        publisher.publish_later(done)

    yield publish_output if counting else publisher.publish
    publisher.shutdown()
    if publisher.counts().delivered != step_count():
        raise RuntimeError(f"not every pass was delivered: {publisher.counts()}")


def step_count() -> int:
    """Return how many steps a turn has."""
    return QUICK_STEPS if is_quick() else STEPS


def compute() -> int:
    """Do a step's work: small objects, lists and dictionaries, like a scheduler."""
    seen: dict[int, int] = {}
    for number in range(STEP_LOOPS):
        seen[number & 255] = number
    return len(seen)


def run_steps(publish: Publish, wait_seconds: float) -> tuple[list[float], list[float]]:
    """Return the microseconds of every step and of every hand-over in it."""
    steps, hands = [], []
    for _ in range(step_count()):
        if wait_seconds:
            time.sleep(wait_seconds)
        begin = time.perf_counter()
        compute()
        before = time.perf_counter()
        publish(METRICS)
        end = time.perf_counter()
        steps.append((end - begin) * 1e6)
        hands.append((end - before) * 1e6)
    return steps, hands


def measure(ways: dict[str, Any], wait_seconds: float) -> dict[str, dict[str, list[float]]]:
    """Return one figure per round, by what it is and by way."""
    figures: dict[str, dict[str, list[float]]] = {
        what: {label: [] for label in ways} for what in ("median", "p99", "hand-over", "hand-over p99")
    }
    readers = {label: Reader() for label in ways}
    try:
        for number in range(rounds_for(ROUNDS) + 1):
            for label, way in list(ways.items()) if number % 2 == 0 else reversed(ways.items()):
                with way(free_again(readers[label].port)) as publish:
                    time.sleep(CONNECT_SECONDS)  # the reader is there
                    steps, hands = run_steps(publish, wait_seconds)
                if number:  # the first round warms up
                    figures["median"][label].append(percentile(steps, 0.5))
                    figures["p99"][label].append(percentile(steps, 0.99))
                    figures["hand-over"][label].append(percentile(hands, 0.5))
                    figures["hand-over p99"][label].append(percentile(hands, 0.99))
    finally:
        for reader in readers.values():
            reader.close()
    return figures


def free_again(port: int) -> int:
    """Return ``port`` when whoever had it in the last round has let go of it."""
    for _ in range(100):
        if ports_are_free(port, 1):
            return port
        time.sleep(0.05)
    raise RuntimeError(f"port {port} stays taken")


def compared(figures: dict[str, dict[str, list[float]]], where: str, with_reference: bool) -> list[Result]:
    """Return the comparisons of one kind of step."""
    results = [
        from_rounds(f"step {where}, median", figures["median"]),
        from_rounds(f"step {where}, 99th percentile", figures["p99"], goal=TAIL_GOAL),
    ]
    if not with_reference:
        return results
    base = figures["median"][NONE]
    effect = {
        label: [mine - none for mine, none in zip(figures["median"][label], base, strict=True)]
        for label in (REFERENCE, OURS, COUNTING)
    }
    results.append(from_rounds(f"effect on a step {where}, median", effect, goal=EFFECT_GOAL))
    for what, name in (("hand-over", "median"), ("hand-over p99", "99th percentile")):
        pair = {label: figures[what][label] for label in (REFERENCE, OURS, COUNTING)}
        results.append(from_rounds(f"hand-over {where}, {name}", pair, goal=EFFECT_GOAL))
    return results


def main() -> list[Result]:
    """Compare the publishers' threads with and without a device to wait for."""
    prepare_environment()
    ways: dict[str, Any] = {NONE: no_publisher}
    if reference_class() is not None:
        ways[REFERENCE] = reference_publisher
    else:
        print("bench_vllm_publisher: without Dynamo's (make bench-vllm has it)", file=sys.stderr)
    ways[OURS] = our_publisher
    ways[COUNTING] = partial(our_publisher, counting=True)
    results: list[Result] = []
    for wait_seconds, where in ((DEVICE_SECONDS, "with a 2 ms device wait"), (0.0, "without a device wait")):
        if is_quick() and not wait_seconds:
            continue
        results += compared(measure(ways, wait_seconds), where, REFERENCE in ways)
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
