"""Knows what the ends of a ZMQ event plane cost: a relay, a subscriber, a tracker; NVIDIA Dynamo's and ours.

Each end runs in a process of its own and takes turns at the same peers: a relay at a raw sender that drops
nothing, with one subscriber attached; subscribers at publishers of Dynamo's and at ours. The CPU is that of
the whole process per event (``plane_peers.py``), and what did not arrive is counted. Dynamo's tracker does
not say what it took; of it only the CPU is known. Dynamo's subscriber is the blocking one, ours is measured
in both forms.

The goals: no end takes more CPU than Dynamo's, and none of ours loses where Dynamo's loses nothing.
Needs ai-dynamo-runtime 1.6.1 (it is among the test requirements).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence

from harness import Result, from_rounds, is_quick, rounds_for, run_script
from plane_peers import ASYNC, Outcome, file_plane, publishing, relayed_once, subscribed_once
from recorders import DYNAMO, OURS, Load, sending

ROUNDS = 3
RELAYS = (DYNAMO, OURS)
RECEIVERS = (DYNAMO, ASYNC, OURS)
TRACKERS = (f"{DYNAMO} track", f"{OURS} track")
LOADS = {
    "1,000 a second": Load(1_000, 1_000),
    "20,000 a second": Load(20_000, 20_000),
    "100,000 a second": Load(100_000, 100_000),
}
FLAT_OUT = {"flat out": Load(150_000, 0)}
PUBLISHERS = (1, 64, 1_000)
SHARED = Load(10_000, 5_000)
QUICK_LOAD = Load(1_000, 5_000)
CPU_GOAL = 1.0

Found = dict[str, list[Outcome]]


def turns(ways: Sequence[str], run: Callable[[str], Outcome], rounds: int) -> Found:
    """Run every way in turn."""
    found: Found = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            found[way].append(run(way))
    return found


def figures(found: Found, of: Callable[[Outcome], float]) -> dict[str, list[float]]:
    """Return one figure of every run."""
    return {way.removesuffix(" track"): [of(run) for run in runs] for way, runs in found.items()}


def costs(name: str, found: Found, *, lost: bool = True) -> list[Result]:
    """Return the CPU per event, and what was lost."""
    rates = [run.per_second for runs in found.values() for run in runs]
    note = f"{min(rates):,.0f} to {max(rates):,.0f} a second"
    cpu = figures(found, lambda run: run.cpu_us)
    results = [from_rounds(f"{name}: CPU", cpu, unit="us CPU", goal=CPU_GOAL, note=note)]
    if lost:
        results.append(from_rounds(f"{name}: lost", figures(found, lambda run: run.lost_percent), unit="%"))
    return results


def relays(rounds: int) -> list[Result]:
    """Compare relays at every rate."""
    loads = {"quick": QUICK_LOAD} if is_quick() else {**LOADS, **FLAT_OUT}
    results: list[Result] = []
    with sending() as sender:
        for name, load in loads.items():
            found = turns(RELAYS, lambda way, load=load: relayed_once(way, sender, load), rounds)  # type: ignore[misc]
            results += costs(f"plane relay, {name}", found)
            if name in FLAT_OUT:
                took = figures(found, lambda run: 1e6 / run.per_second)
                results.append(from_rounds(f"plane relay, {name}: wall time", took, unit="us"))
    return results


def subscribers(publisher: str, rounds: int) -> list[Result]:
    """Compare subscribers and trackers at every rate, with one publisher of the kind ``publisher``."""
    loads = {"quick": QUICK_LOAD} if is_quick() else LOADS
    results: list[Result] = []
    with file_plane() as plane, publishing(publisher, 1, plane) as peer:
        for name, load in loads.items():

            def run(way: str, load: Load = load) -> Outcome:
                return subscribed_once(way, peer, 1, plane, load)

            what = f"from {'ours' if publisher == OURS else publisher}, {name}"
            receivers = RECEIVERS[::2] if is_quick() else RECEIVERS
            results += costs(f"plane recv, {what}", turns(receivers, run, rounds))
            if is_quick():
                break
            results += costs(f"plane track, {what}", turns(TRACKERS, run, rounds), lost=False)
    return results


def many_publishers(rounds: int) -> list[Result]:
    """Compare subscribers of more and more publishers at one total rate."""
    results: list[Result] = []
    for count in (2,) if is_quick() else PUBLISHERS:
        with file_plane() as plane, publishing(OURS, count, plane) as peer:

            def run(way: str, count: int = count) -> Outcome:
                load = QUICK_LOAD if is_quick() else SHARED
                return subscribed_once(way, peer, count, plane, load)

            found = turns((DYNAMO, OURS), run, rounds)
        name = f"plane, {count:,} publisher{'s' if count > 1 else ''}"
        results += costs(name, found)
        results.append(from_rounds(f"{name}: memory", figures(found, lambda run: run.memory_mib), unit="MiB"))
    return results


def main() -> list[Result]:
    """Compare every end."""
    if importlib.util.find_spec("dynamo") is None:
        print("bench_plane: skipped: no dynamo in this environment", file=sys.stderr)
        return []
    if is_quick():
        return [*relays(1), *subscribers(OURS, 1)]
    rounds = rounds_for(ROUNDS)
    return [
        *relays(rounds),
        *subscribers(DYNAMO, rounds),
        *subscribers(OURS, rounds),
        *many_publishers(max(2, rounds // 2)),
    ]


if __name__ == "__main__":
    run_script(main, __doc__)
