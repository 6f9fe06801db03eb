"""What a pass costs inside vLLM's real scheduler, without a model: ours against Dynamo's and a plain loop.

Needs an environment with vLLM (``make bench-vllm`` makes one that has Dynamo's scheduler as well); says so
and measures nothing without. All schedulers live in one process, carry the same load and take turns, a
dozen passes each, in random order; the first passes of a turn, in which the others' memory is still in the
caches, are not counted. In each pass the thread sleeps a millisecond, as for a device, and another one
after it, so that publishing threads run in nobody's time. Each stream has a reader in another process. The
garbage collector is off. All are built anew several times, in another order. Three figures:

* *added*: wall time that the scheduler's overrides add to vLLM's own methods (see ``scheduler_ways.py``);
* *step*: CPU time of the whole step on the engine's thread, ``add_request`` included, so that what a queue
  pays for counting itself is in it. The difference to vLLM alone is taken pass by pass;
* *publisher's thread*: CPU time per pass of the threads that came with the scheduler.

Here the requests have not been touched since the step before: what counts is memory that is not in the
processor's caches, as in an engine that serves.
"""

from __future__ import annotations

import gc
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from harness import Result, from_rounds, is_quick, rounds_for, run_script
from plain_way import waiting_thread
from scheduler_load import DEVICE_SECONDS, Lane, Load, Sample
from scheduler_ways import OURS, PLAIN, REFERENCE, VLLM, prepare_environment, ways

SCHEDULED = (1, 32, 256, 1024)
WAITING = (0, 10, 100, 1000, 4000)
QUICK = (Load(32, 10),)
STEADY = (Load(256, 100, busy=False), Load(1024, 1000, busy=False))
BUILDS = 2
ROUNDS = 3
"""Of every build."""
LONG_QUEUE_ROUNDS = 9
TURNS, PASSES = 3, 16
"""Turns of each scheduler in a round, and passes of a turn."""
DRAIN_SECONDS = 0.01
"""For which a publisher's thread may finish what a turn left it."""
SKIPPED = 4
"""First passes of a turn."""
GOALS = {(256, 100): 1 / 10, (1024, 1000): 1 / 25}
"""Largest ratio of what we add to what Dynamo's scheduler adds."""
LONG_QUEUE_GOAL = 2.0
"""Largest ratio of a pass with 4,000 waiting to one with 10."""


def take_turns(lanes: list[Lane], rounds: int, rng: random.Random) -> list[Round]:
    """Return what each round measured."""
    for lane in lanes:
        lane.fill()
    gc.collect()
    gc.disable()
    try:
        return [_one_round(lanes, rng) for _ in range(rounds)]
    finally:
        gc.enable()


class Round(NamedTuple):
    """One round's figures, by lane."""

    samples: list[list[Sample]]
    behind: list[float]
    """CPU microseconds per pass of other threads."""


def _one_round(lanes: list[Lane], rng: random.Random) -> Round:
    samples: list[list[Sample]] = [[] for _ in lanes]
    behind = [0.0] * len(lanes)
    order = list(range(len(lanes)))
    turns, passes, skipped = (1, 5, 1) if is_quick() else (TURNS, PASSES, SKIPPED)
    for _ in range(turns):
        rng.shuffle(order)
        for number in order:
            before = lanes[number].behind_cpu
            samples[number] += _turn(lanes[number], passes)[skipped:]
            behind[number] += (lanes[number].behind_cpu - before) * 1e6 / (turns * passes)
    return Round(samples, behind)


def _turn(lane: Lane, passes: int) -> list[Sample]:
    samples = []
    for _ in range(passes):
        samples.append(lane.step())
        if not is_quick():
            time.sleep(DEVICE_SECONDS)
    if not is_quick():
        time.sleep(DRAIN_SECONDS)
    return samples


def median_of(samples: list[Sample], read: Callable[[Sample], float | None]) -> float:
    """Return the median of one figure, 0.0 if there is none."""
    values = [value for value in map(read, samples) if value is not None]
    return statistics.median(values) if values else 0.0


def measure(load: Load, classes: dict[str, type]) -> list[Result]:
    """Compare all schedulers under one load."""
    labels = list(classes)
    rounds = [each for first in range(builds()) for each in _one_build(load, classes, first)]
    added = {
        label: [median_of(each.samples[at], lambda sample: sample.added) for each in rounds]
        for at, label in enumerate(labels)
    }
    goal = GOALS.get(load[:2]) if REFERENCE in labels else None
    results = [from_rounds(f"added, {load}", _ours_last(added), goal=goal)]
    results.append(from_rounds(f"step, {load}", _steps(labels, rounds), unit="us CPU"))
    if REFERENCE in labels:
        behind = {label: [each.behind[labels.index(label)] for each in rounds] for label in (REFERENCE, OURS)}
        results.append(from_rounds(f"publisher's thread, {load}", behind, unit="us CPU"))
    if load.busy and load.scheduled >= 256:
        admit = {
            label: [
                median_of(each.samples[labels.index(label)], lambda sample: sample.admit_cpu)
                for each in rounds
            ]
            for label in (VLLM, OURS)
        }
        results.append(from_rounds(f"add_request, {load}", admit, unit="us CPU"))
    return results


def builds() -> int:
    """Return how many times to build all schedulers."""
    return 1 if is_quick() else BUILDS


def _one_build(load: Load, classes: dict[str, type], first: int) -> list[Round]:
    """Return the rounds of schedulers that are built in turn, from number ``first`` on.

    Where its objects lie in memory makes a scheduler faster or slower by a percent, which is as much as
    what is to be measured; so each has every place once.
    """
    labels = list(classes)
    order = [*labels[first:], *labels[:first]]
    lanes = [Lane(label, classes[label], load, os.environ) for label in order]  # type: ignore[arg-type]
    try:
        rounds = take_turns(lanes, rounds_for(ROUNDS), random.Random(load.scheduled + first))
    finally:
        for lane in lanes:
            lane.close()
    places = [order.index(label) for label in labels]
    return [
        Round([each.samples[place] for place in places], [each.behind[place] for place in places])
        for each in rounds
    ]


def _ours_last(figures: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the figures with the strongest comparison first, then the clocks alone, ours last."""
    order = [label for label in (REFERENCE, PLAIN, VLLM, OURS) if label in figures]
    return {label: figures[label] for label in order}


def _steps(labels: list[str], rounds: list[Round]) -> dict[str, list[float]]:
    """Return the CPU of whole steps: vLLM's median, and on top of it the median difference of each pass."""
    figures: dict[str, list[float]] = {label: [] for label in labels}
    for samples, _ in rounds:
        alone = [sample.step_cpu for sample in samples[labels.index(VLLM)]]
        middle = statistics.median(alone)
        for at, label in enumerate(labels):
            differences = [s.step_cpu - base for s, base in zip(samples[at], alone, strict=True)]
            figures[label].append(middle + statistics.median(differences))
    return figures


def long_queue(classes: dict[str, type]) -> Result:
    """Compare a long queue with a short one, both ours."""
    loads = (Load(32, 10), Load(32, 100)) if is_quick() else (Load(256, 10), Load(256, 4000))
    lanes = [Lane(OURS, classes[OURS], load, os.environ) for load in loads]  # type: ignore[arg-type]
    try:
        rounds = take_turns(lanes, rounds_for(LONG_QUEUE_ROUNDS), random.Random(1))
    finally:
        for lane in lanes:
            lane.close()
    figures = {
        str(load): [median_of(each.samples[at], lambda sample: sample.added) for each in rounds]
        for at, load in enumerate(loads)
    }
    return from_rounds("added by forwardpass, long queue", figures, goal=LONG_QUEUE_GOAL)


def loads() -> list[Load]:
    """Return what to measure."""
    if is_quick():
        return list(QUICK)
    return [Load(scheduled, waiting) for scheduled in SCHEDULED for waiting in WAITING] + list(STEADY)


def main() -> list[Result]:
    """Compare the schedulers at every size."""
    prepare_environment()
    try:
        import vllm.v1.core.sched.async_scheduler  # noqa: F401
    except ImportError:
        print("bench_vllm_scheduler: skipped: no vllm", file=sys.stderr)
        return []
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "engine"))
    results: list[Result] = []
    with waiting_thread() as hand_over:
        classes = ways(hand_over)
        if REFERENCE not in classes:
            print(
                "bench_vllm_scheduler: without Dynamo's scheduler (make bench-vllm has it)", file=sys.stderr
            )
        for load in loads():
            print(f"  {load}", file=sys.stderr, flush=True)
            results += measure(load, classes)
        results.append(long_queue(classes))
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
