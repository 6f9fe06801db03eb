"""Knows how fast traces are read, against opening them with ``gzip`` and parsing each line with ``json``.

Two traces of the same 60,000 rows of a simulated engine under load: *flat out* (a gzip member holds 1 MiB
of rows, as when thousands of passes a second are recorded) and *live* (a member holds the 20 rows of one
second). Baseline and ours end with the same thing: every row as an object with its numbers. The reader
also checks each member's checksum and each row's schema, and keeps each row's text.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from forwardpass.analyze.summary import summarize
from forwardpass.trace.reader import TraceReader
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics
from harness import Result, compare, run_script

ROWS = 60_000
GOAL = 1 / 3


def rows() -> Iterator[bytes]:
    """Yield lines of two ranks that decode, with a prefill every few passes."""
    chance = random.Random(20)
    for number in range(ROWS):
        decoding = chance.randrange(64, 256)
        prompts = chance.choice((0, 0, 0, 0, 1, 2))
        lengths = [chance.randrange(8, 4000) for _ in range(prompts)]
        metrics = ForwardPassMetrics(
            worker_id="7649828356715521",
            dp_rank=number % 2,
            counter_id=number // 2,
            wall_time=chance.uniform(0.008, 0.045),
            scheduled_requests=ScheduledRequestMetrics(
                prompts, sum(lengths), chance.random() * 1e5, chance.randrange(2000),
                decoding, decoding * 900 + chance.randrange(900), chance.random() * 1e6,
            ),
            queued_requests=QueuedRequestMetrics(chance.randrange(4), chance.randrange(9000), 0.0, 0, 0, 0.0),
        )  # fmt: skip
        event = {
            "schema": "dynamo.fpm.trace.v1",
            "source": {"namespace": "dynamo", "component": "backend", "producer_id": "7649828356715521"},
            "capture_mode": "full",
            "observed_at_unix_ms": 1_796_042_065_546 + number * 12,
            "fpm": metrics,
        }
        yield msgspec.json.encode({"timestamp": number * 12, "event": event}) + b"\n"


def write(path: Path, lines: list[bytes], rows_per_member: int) -> None:
    """Write ``lines`` as members of so many rows."""
    with path.open("wb") as file:
        for start in range(0, len(lines), rows_per_member):
            file.write(gzip.compress(b"".join(lines[start : start + rows_per_member]), 6, mtime=0))


def plain(path: Path) -> None:
    """Read with the standard library, a line at a time."""
    count = 0
    with gzip.open(path) as file:
        for line in file:
            if json.loads(line)["event"]["fpm"]["wall_time"] >= 0.0:
                count += 1
    assert count == ROWS


def ours(path: Path) -> None:
    """Read with the reader, a record at a time."""
    count = 0
    for record in TraceReader(path):
        if record.metrics.wall_time >= 0.0:
            count += 1
    assert count == ROWS


def plain_sum(path: Path) -> None:
    """Sum step times and tokens up from parsed dictionaries: less than ``summarize`` does."""
    times: list[float] = []
    tokens = 0
    with gzip.open(path) as file:
        for line in file:
            fpm = json.loads(line)["event"]["fpm"]
            scheduled = fpm["scheduled_requests"]
            tokens += scheduled["sum_prefill_tokens"] + scheduled["num_decode_requests"]
            times.append(fpm["wall_time"])
    times.sort()
    assert len(times) == ROWS


def our_summary(path: Path) -> None:
    """Sum everything up."""
    assert summarize(TraceReader(path)).rows == ROWS


def main() -> list[Result]:
    """Compare both ways on both kinds of trace."""
    lines = list(rows())
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name, rows_per_member in (("flat out", 1400), ("live", 20)):
            path = Path(folder) / f"{rows_per_member}.jsonl.gz"
            write(path, lines, rows_per_member)
            for what, baseline, way, goal in (
                ("read", plain, ours, GOAL),
                ("sum up", plain_sum, our_summary, None),
            ):
                results.append(
                    compare(
                        f"{what}, {name}",
                        {
                            "gzip + json": lambda f=baseline, p=path: f(p),
                            "reader": lambda f=way, p=path: f(p),
                        },
                        items=ROWS,
                        rounds=7,
                        cpu=True,
                        goal=goal,
                    )
                )
    return results


if __name__ == "__main__":
    run_script(main)
