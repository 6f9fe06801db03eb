"""Knows what recording a stream costs with NVIDIA Dynamo's relay and sink, and with ``forwardpass record``.

Both are processes of their own and take turns at the same sender, which drops nothing. Counted is the CPU of
the whole recorder from before the first message to after the last row is in its file, and the rows that are
there (``recorders.py``). Dynamo's relay publishes to its event plane as well, which cannot be turned off;
nobody subscribes to it. Needs ai-dynamo 1.6.1 (``make bench-vllm`` makes that environment).
"""

from __future__ import annotations

import importlib.util
import sys

from harness import Result, from_rounds, is_quick, rounds_for, run_script
from recorders import DYNAMO, OFF, OURS, Load, Outcome, Sender, record_once, sending

ROUNDS = 4
WAYS = (DYNAMO, OURS)
LOADS = {
    "200 a second": Load(1_000, 200),
    "20,000 a second": Load(100_000, 20_000),
    "100,000 a second": Load(300_000, 100_000),
    "flat out": Load(300_000, 0),
}
SAMPLED = {"20,000 a second": Load(100_000, 20_000, "sampled")}
CPU_GOALS = {"200 a second": 1 / 1.8, "20,000 a second": 1 / 3, "100,000 a second": 1 / 3, "flat out": 1 / 3}
SAMPLED_GOAL = 1 / 20
BYTES_GOAL = 0.92
QUICK_SHARE = 20
QUICK_ROUNDS = 1


def measure(sender: Sender, load: Load, rounds: int) -> dict[str, list[Outcome]]:
    """Run both ways in turn."""
    found: dict[str, list[Outcome]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS if number % 2 == 0 else reversed(WAYS):
            found[way].append(record_once(way, sender, load))
    return found


def figures(found: dict[str, list[Outcome]], what: str) -> dict[str, list[float]]:
    """Return one of the figures of every run."""
    reckon = {
        "cpu": lambda run: run.cpu_seconds * 1e6 / max(1, run.rows),
        "lost": lambda run: run.lost_percent,
        "bytes": lambda run: run.gzip_bytes / max(1, run.rows),
        "discarded": lambda run: run.cpu_seconds * 1e6 / (run.sent - run.rows),
    }[what]
    return {way: [reckon(run) for run in runs] for way, runs in found.items()}


def full(name: str, found: dict[str, list[Outcome]]) -> list[Result]:
    """Return what full mode cost, lost and wrote."""
    what = f"recording, {name}"
    note = f"sent {speed(found)} a second"
    return [
        from_rounds(
            f"{what}: CPU per row", figures(found, "cpu"), unit="us CPU", goal=CPU_GOALS[name], note=note
        ),
        from_rounds(f"{what}: rows lost", figures(found, "lost"), unit="%"),
        from_rounds(f"{what}: gzip per row", figures(found, "bytes"), unit="bytes", goal=BYTES_GOAL),
    ]


def speed(found: dict[str, list[Outcome]]) -> str:
    """Return between which rates the messages were sent."""
    rates = [run.per_second for runs in found.values() for run in runs]
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


def sampled(name: str, found: dict[str, list[Outcome]], relayed: dict[str, list[Outcome]]) -> list[Result]:
    """Return what a payload cost that sampled mode passed over: in all, and without being relayed."""
    whole = figures(found, "discarded")
    relay = figures(relayed, "discarded")
    sink = {way: [one - other for one, other in zip(whole[way], relay[way], strict=True)] for way in whole}
    what = f"recording a sample, {name}"
    note = f"sent {speed(found)} a second"
    return [
        from_rounds(f"{what}: received and passed over", whole, unit="us CPU", note=note),
        from_rounds(f"{what}: received only, without a trace", relay, unit="us CPU"),
        from_rounds(f"{what}: the difference", sink, unit="us CPU", goal=SAMPLED_GOAL),
    ]


def smaller(load: Load) -> Load:
    """Return a load that takes a moment, to see that it works."""
    return load._replace(messages=load.messages // QUICK_SHARE) if is_quick() else load


def main() -> list[Result]:
    """Compare both recorders at every rate."""
    if importlib.util.find_spec("dynamo") is None:
        print("bench_reference_recorder: skipped: no dynamo in this environment", file=sys.stderr)
        return []
    rounds = QUICK_ROUNDS if is_quick() else rounds_for(ROUNDS)
    results: list[Result] = []
    with sending() as sender:
        record_once(OURS, sender, Load(1000, 0))  # files and libraries are in the cache from here on
        record_once(DYNAMO, sender, Load(1000, 0))
        for name, load in LOADS.items():
            results += full(name, measure(sender, smaller(load), rounds))
        for name, load in SAMPLED.items():
            some = smaller(load)
            relayed = measure(sender, some._replace(mode=OFF), rounds)
            results += sampled(name, measure(sender, some, rounds), relayed)
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
