"""Knows the payloads that the checks feed and how they are found again in the files.

A payload's wall time is worked out from its counter and rank, so that a row shows by itself whether it is the
one that was offered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceSource
from forwardpass.trace.report import TraceReport
from forwardpass.trace.sink import TraceCounts
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

__all__ = ["PRODUCER", "SOURCE", "Found", "adds_up", "counters_in", "noise", "payload", "read", "settings"]

PRODUCER = "77"
SOURCE = TraceSource("dynamo", "backend", PRODUCER)


def wall_time(counter: int, rank: int) -> float:
    """Return the wall time that a payload of this counter and rank has."""
    return (counter * 7919 + rank) % 100_003 / 1e6


@lru_cache(maxsize=400_000)
def payload(counter: int, rank: int = 0) -> bytes:
    """Return the payload with this counter on the stream of ``rank``."""
    scheduled = ScheduledRequestMetrics(num_decode_requests=1 + counter % 7, sum_decode_kv_tokens=counter)
    return encode(
        ForwardPassMetrics(
            worker_id="w",
            dp_rank=rank,
            counter_id=counter,
            wall_time=wall_time(counter, rank),
            scheduled_requests=scheduled,
        )
    )


def noise(counter: int, dice: Any, size: int = 400) -> bytes:
    """Return a payload that does not compress below about half of ``size`` bytes."""
    return encode(ForwardPassMetrics(worker_id=dice.randbytes(size // 2).hex(), counter_id=counter))


def settings(folder: Path, **changes: Any) -> TraceSettings:
    """Return settings for full mode below ``folder``, with changes."""
    usual = {"output_prefix": str(folder / "fpm"), "mode": CaptureMode.FULL, "queue_capacity": 1_000_000}
    return TraceSettings(**{**usual, **changes})


class Found:
    """What a reader finds in the files of a trace."""

    def __init__(self, counters: dict[int, list[int]], wrong: list[str], report: TraceReport) -> None:
        self.counters = counters
        """Rank -> the counters of its rows, in the order of the files."""
        self.wrong = wrong
        """Rows that are not what was offered."""
        self.report = report

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(map(len, self.counters.values()))


def read(paths: Path | Iterable[Path]) -> Found:
    """Read files or the files of a folder; none at all is no error."""
    given = [paths] if isinstance(paths, Path) else list(paths)
    files = [
        file for path in given for file in (sorted(path.glob("*.jsonl.gz")) if path.is_dir() else [path])
    ]
    reader = TraceReader(files)
    counters: dict[int, list[int]] = defaultdict(list)
    wrong: list[str] = []
    for record in reader:
        fpm = record.metrics
        counters[fpm.dp_rank].append(fpm.counter_id)
        if fpm.worker_id == "w" and fpm.wall_time != wall_time(fpm.counter_id, fpm.dp_rank):
            wrong.append(f"rank {fpm.dp_rank}, counter {fpm.counter_id}: wall time {fpm.wall_time}")
    return Found(dict(counters), wrong, reader.report)


def counters_in(folder: Path, rank: int = 0) -> list[int]:
    """Return the counters of one rank's rows."""
    return read(folder).counters.get(rank, [])


def adds_up(counts: TraceCounts) -> bool:
    """Say whether every payload is somewhere, once."""
    known = (counts.written, counts.sampled_out, counts.pending, *counts.dropped.values())
    return min(known) >= 0 and counts.offered == sum(known)
