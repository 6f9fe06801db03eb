"""Knows how to make traces of any size and shape quickly: many rows, members, segments or producers.

Rows differ as an engine's do (``usual_payload.py``); their counters and times go up by one and by 10 ms.
Each folder's trace has the prefix ``fpm``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from forwardpass.trace.gzip_member import compress_member
from forwardpass.trace.record import TRACE_SCHEMA
from usual_payload import WORKER_ID, busy_payloads

__all__ = ["MEMBER_ROWS", "Shape", "make_trace"]

DISTINCT = 1024
MEMBER_ROWS = 1400
"""About a mebibyte of text: a writer's fullest member."""
EPOCH_MS = 1_796_042_065_000
STEP_MS = 10


class Shape(NamedTuple):
    """How many rows a trace has, and how they are spread."""

    rows: int
    """In all."""
    producers: int = 1
    segments: int = 1
    """Of each producer."""
    member_rows: int = MEMBER_ROWS
    step: int = 1
    """From one counter to the next: 2 leaves every second one out."""


def make_trace(folder: Path, shape: Shape) -> Path:
    """Write a trace of ``shape`` into the new ``folder`` and return that."""
    folder.mkdir()
    templates = list(_templates())
    per_segment = shape.rows // shape.producers // shape.segments
    for producer in range(shape.producers):
        identity = str(int(WORKER_ID) + producer)
        lines = _lines(templates, identity.encode(), shape.step)
        for segment in range(shape.segments):
            with (folder / f"fpm.{identity}.{segment:06d}.jsonl.gz").open("wb") as file:
                left = per_segment
                while left:
                    part = min(left, shape.member_rows)
                    file.write(compress_member(b"".join(islice(lines, part))))
                    left -= part
    return folder


def _templates() -> Iterator[bytes]:
    """Yield rows with places for time, worker, producer and counter."""
    for payload in busy_payloads(DISTINCT):
        fpm = msgspec.msgpack.decode(payload)
        fpm |= {"worker_id": "%b", "counter_id": "%d"}
        event = {
            "schema": TRACE_SCHEMA,
            "source": {"namespace": "dynamo", "component": "backend", "producer_id": "%b"},
            "capture_mode": "full",
            "observed_at_unix_ms": "%d",
            "fpm": fpm,
        }
        row = msgspec.json.encode({"timestamp": "%d", "event": event})
        yield row.replace(b'"%d"', b"%d") + b"\n"


def _lines(templates: list[bytes], identity: bytes, step: int) -> Iterator[bytes]:
    """Yield one producer's rows for ever."""
    number = 0
    while True:
        for template in templates:
            at = number * STEP_MS
            yield template % (at, identity, EPOCH_MS + at, identity, number * step)
            number += 1
