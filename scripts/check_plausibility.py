"""Compare what a self-benchmark measured with what the same server then does for real HTTP requests.

    python scripts/check_plausibility.py [--output DIR] [--json FILE]

One vLLM server on CPU measures itself (the default grid) and then serves, with every pass recorded. Its
clients make it run prefills alone and decodes alone, of many sizes. Each recorded pass of one kind is looked
up among the benchmark's points: the value at its place is interpolated from the nearest ones, by the
logarithms of requests, new tokens and tokens read. What is shown is the time of the pass over that value, per
region.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from demo_vllm import (
    DEFAULT_BASE_PORT,
    MODEL,
    DemoFailed,
    Progress,
    Server,
    free_port,
    make_model,
    request,
    run,
    say,
)

from forwardpass.trace.reader import TraceReader

NEAREST = 4
USERS = (1, 2, 4, 8, 12, 16)
LENGTHS = (8, 24, 60, 120, 240, 500, 1000)
"""Tokens of prompts."""
TENTH, NINTH = 0.1, 0.9


class Place(NamedTuple):
    """Where a pass is: its kind, requests, new tokens (0 for decodes) and tokens read."""

    kind: str
    requests: int
    new: int
    read: int

    @property
    def region(self) -> str:
        """The name of the part of the map that it is in."""
        if self.kind == "prefill":
            size = "up to 32" if self.new <= 32 else "33 to 128" if self.new <= 128 else "129 to 256"
            return f"prefill of {size} new tokens, {'a prefix read' if self.read else 'nothing read'}"
        mean = self.read / self.requests
        batch = "1 to 4" if self.requests <= 4 else "5 to 16"
        return f"decode of {batch} requests, context {'under 256' if mean < 256 else '256 and more'}"


def distance(one: Place, other: Place) -> float:
    """Return how far two places of one kind are apart, in doublings."""
    pairs = zip(one[1:], other[1:], strict=True)
    return math.sqrt(sum((math.log2(1 + mine) - math.log2(1 + its)) ** 2 for mine, its in pairs))


def expected(place: Place, measured: Mapping[Place, float]) -> float:
    """Return the time at ``place``, from the nearest points, the nearer the more."""
    same = [point for point in measured if point.kind == place.kind]
    near = sorted(same, key=lambda point: distance(place, point))[:NEAREST]
    weights = [1 / (0.05 + distance(place, point)) for point in near]
    logs = [math.log(measured[point]) for point in near]
    return math.exp(sum(w * each for w, each in zip(weights, logs, strict=True)) / sum(weights))


def measured_places(document: Mapping[str, Any]) -> dict[Place, float]:
    """Return the benchmark's times by place."""
    found = {}
    for row in document["results"]:
        point = row["point"]
        new, read = point["total_prefill_tokens"], point["total_kv_read_tokens"]
        found[Place(point["point_type"], point["batch_size"], new, read)] = row["fpms"][0]["wall_time"]
    return found


def live_places(prefix: Path) -> Iterable[tuple[Place, float]]:
    """Yield place and time of each recorded pass that is of one kind."""
    for record in TraceReader([prefix]):
        passed, its = record.metrics, record.metrics.scheduled_requests
        if passed.wall_time <= 0:
            continue
        if its.num_prefill_requests and not its.num_decode_requests:
            place = Place(
                "prefill", its.num_prefill_requests, its.sum_prefill_tokens, its.sum_prefill_kv_tokens
            )
            yield place, passed.wall_time
        elif its.num_decode_requests and not its.num_prefill_requests:
            yield Place("decode", its.num_decode_requests, 0, its.sum_decode_kv_tokens), passed.wall_time


def drive(server: Server, progress: Progress) -> None:
    """Let clients ask: prompts alone first, whole or with a prefix that is known, then answers at once."""
    number = 0
    for length in LENGTHS:
        for turn in range(12):
            number += 1
            again = turn % 2  # the same prompt once more, longer: its beginning is cached
            prompt = [(number - again) * 7 % 900 + 3, *(3 + (7 * at + length) % 900 for at in range(length))]
            ask(server, prompt + [5] * (40 * again), 1)
        progress.show(f"prompts of {length} tokens")
    for users in USERS:
        with ThreadPoolExecutor(users) as pool:
            jobs = [(3 + 11 * each, length) for each in range(users) for length in (30, 700)]
            list(
                pool.map(
                    lambda job: ask(server, [3 + (job[0] * at) % 900 for at in range(job[1])], 120), jobs
                )
            )
        progress.show(f"answers for {users} users at once", last=users == USERS[-1])


def ask(server: Server, prompt: Sequence[int], tokens: int) -> None:
    """Ask for one completion. Raises :class:`DemoFailed`."""
    body = {
        "model": str(MODEL),
        "prompt": list(prompt),
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    status, text = request(server.port, "POST", "/v1/completions", body, seconds=120.0)
    if status != 200:
        raise DemoFailed(f"vLLM answered with HTTP {status}: {text[:500]}")


def compare(measured: Mapping[Place, float], live: Iterable[tuple[Place, float]]) -> list[dict[str, Any]]:
    """Return a row per region: passes, and the time of a pass over what was expected of it."""
    ratios: dict[str, list[float]] = {}
    for place, seconds in live:
        ratios.setdefault(place.region, []).append(seconds / expected(place, measured))
    return [
        {
            "region": region,
            "passes": len(found),
            "median": statistics.median(found),
            "tenth": sorted(found)[int(TENTH * len(found))],
            "ninth": sorted(found)[int(NINTH * len(found))],
        }
        for region, found in sorted(ratios.items())
    ]


def check(folder: Path, output: Path | None) -> int:
    """Measure, serve, compare; return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("fpm.*"):
        old.unlink()
    make_model()
    benchmark = ("--benchmark-mode", "agg", "--benchmark-output-path", str(folder / "bench.json"))
    trace = ("--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(folder / "fpm"), "--fpm-quiet")
    server = Server(folder, (*benchmark, *trace, "--fpm-port", str(free_port(DEFAULT_BASE_PORT))))
    progress = Progress()
    try:
        server.wait_until_up(progress)
        drive(server, progress)
        status = server.stop()
    finally:
        server.kill()
    measured = measured_places(json.loads((folder / "bench_merged.json").read_bytes()))
    rows = compare(measured, live_places(folder / "fpm"))
    for row in rows:
        ends = f"{row['tenth']:.2f} to {row['ninth']:.2f}"
        say(f"{row['region']:58}{row['passes']:6}  {row['median']:.2f}  ({ends})")
    if output is not None:
        output.write_text(json.dumps(rows, indent=1))
    return status


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("build/plausibility"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    return run("check_plausibility", lambda: check(arguments.output, arguments.json))


if __name__ == "__main__":
    sys.exit(main())
