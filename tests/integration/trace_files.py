"""Helpers of the trace writer's tests: payloads, lines, files read with the standard library alone."""

from __future__ import annotations

import gzip
import json
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forwardpass.clock import Clock
from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.counters import Counters
from forwardpass.testing.clock import ManualClock
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import SegmentNames
from forwardpass.trace.writer import SegmentWriter
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics

LIMIT_SECONDS = 30.0
PRODUCER = "77"


def payload(counter: int, worker: str = "w", rank: int = 0) -> bytes:
    """Return a valid message."""
    return encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=counter, wall_time=0.25))


def line(number: int, size: int = 100) -> bytes:
    """Return a line of exactly ``size`` bytes, newline included."""
    return b"%d" % number + b"x" * (size - 1 - len(b"%d" % number)) + b"\n"


def trace_settings(folder: Path, **changes: Any) -> TraceSettings:
    """Return settings for full mode below ``folder``, with changes."""
    return TraceSettings(**{"output_prefix": str(folder / "fpm"), "mode": CaptureMode.FULL, **changes})


def segment(folder: Path, index: int, producer: str = PRODUCER) -> Path:
    """Return the path of a segment."""
    return folder / f"fpm.{producer}.{index:06d}.jsonl.gz"


def segments(folder: Path, producer: str = PRODUCER) -> list[Path]:
    """Return the segments that exist, in order."""
    return sorted(folder.glob(f"fpm.{producer}.*.jsonl.gz"))


def make_writer(
    folder: Path,
    *,
    clock: Clock | None = None,
    counters: Counters | None = None,
    create: Callable[[str], SegmentFile] = SegmentFile,
    waited_seconds: float = 0.0,
    **changes: Any,
) -> SegmentWriter:
    """Return an opened writer for the producer below ``folder``."""
    settings = trace_settings(folder, **changes)
    names = SegmentNames.of(settings.output_prefix, PRODUCER)
    writer = SegmentWriter(
        names,
        settings,
        counters or Counters(),
        clock or ManualClock(),
        create=create,
        waited_seconds=waited_seconds,
    )
    writer.open()
    return writer


def text(path: Path) -> bytes:
    """Return the whole text of an intact segment. Raises for a damaged one."""
    return gzip.decompress(path.read_bytes())


def members(path: Path) -> list[bytes]:
    """Return the text of each gzip member of an intact segment."""
    data, found = path.read_bytes(), []
    while data:
        inflate = zlib.decompressobj(31)
        found.append(inflate.decompress(data))
        assert inflate.eof
        data = inflate.unused_data
    return found


def rows(folder: Path, producer: str = PRODUCER) -> list[dict[str, Any]]:
    """Return the rows of all segments of the producer, in order."""
    return [json.loads(row) for path in segments(folder, producer) for row in text(path).splitlines()]


def counter_ids(folder: Path, producer: str = PRODUCER) -> list[int]:
    """Return the counter of each row, in order."""
    return [row["event"]["fpm"]["counter_id"] for row in rows(folder, producer)]


def wait_until(condition: Callable[[], bool], limit_seconds: float = LIMIT_SECONDS) -> None:
    """Wait until ``condition`` holds, or fail."""
    end = time.monotonic() + limit_seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)
