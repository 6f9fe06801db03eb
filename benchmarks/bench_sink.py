"""Knows what recording a forward pass costs, against the obvious way of doing it.

The obvious way decodes each payload, builds a dictionary, calls ``json.dumps`` and writes the line to a
``gzip`` file. Ours is the whole sink: its queue, its thread, the checks, the rows and the files. CPU time
of the process, all threads.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.trace.gzip_member import Compressor, available
from forwardpass.trace.record import TRACE_SCHEMA, TraceSource
from forwardpass.trace.rows import encode_rows, read_payloads
from forwardpass.trace.sampler import SampledRecorder
from forwardpass.trace.sink import TraceSink
from forwardpass.wire.validate import validate_payload
from harness import Result, compare, from_rounds, run_script
from usual_payload import WORKER_ID, busy_payloads

DISTINCT = 1_024
PASSES = 24 * DISTINCT
BATCH = 256
SOURCE = TraceSource("dynamo", "backend", WORKER_ID)


# Few enough to stay in the processor's cache, as payloads that were just received are.
PAYLOADS = busy_payloads(DISTINCT) * (PASSES // DISTINCT)
BATCHES = [PAYLOADS[start : start + BATCH] for start in range(0, PASSES, BATCH)]


def plain_row(payload: bytes, begun: float) -> bytes:
    """Return a row the obvious way."""
    fpm: dict[str, Any] = msgspec.msgpack.decode(payload)
    row = {
        "timestamp": int((time.monotonic() - begun) * 1000),
        "event": {
            "schema": TRACE_SCHEMA,
            "source": {
                "namespace": SOURCE.namespace,
                "component": SOURCE.component,
                "producer_id": SOURCE.producer_id,
            },
            "capture_mode": "full",
            "observed_at_unix_ms": time.time_ns() // 1_000_000,
            "fpm": fpm,
        },
    }
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def plain_full(folder: str) -> int:
    """Record all passes the obvious way; return the bytes of the file."""
    path, begun = Path(folder) / "plain.jsonl.gz", time.monotonic()
    with gzip.open(path, "wb", compresslevel=6) as file:
        for payload in PAYLOADS:
            file.write(plain_row(payload, begun))
    return path.stat().st_size


def sink_run(folder: str, mode: CaptureMode) -> int:
    """Record all passes with a sink; return the bytes of its files."""
    settings = TraceSettings(output_prefix=f"{folder}/fpm", mode=mode, queue_capacity=100_000)
    sink = TraceSink(settings, SOURCE.producer_id)
    sink.start()
    for batch in BATCHES:
        sink.offer_many(SOURCE, batch)
    sink.close()
    counts = sink.counts()
    if counts.written + counts.sampled_out != PASSES:
        raise RuntimeError(f"not everything was recorded: {counts}")
    return counts.compressed_bytes


def timed(work: Callable[[str], int], sizes: list[float]) -> Callable[[], float]:
    """Return a way that times ``work`` in a fresh folder and notes its bytes per row."""

    def way() -> float:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            size = work(folder)
            seconds = time.process_time() - begin
        sizes.append(size / PASSES)
        return seconds

    return way


def full_mode() -> list[Result]:
    """Compare CPU and bytes per row of full mode."""
    plain_sizes: list[float] = []
    our_sizes: list[float] = []
    speed = compare(
        "sink, full mode: CPU per row",
        {
            "json.dumps + gzip": timed(plain_full, plain_sizes),
            "TraceSink": timed(lambda folder: sink_run(folder, CaptureMode.FULL), our_sizes),
        },
        items=PASSES,
        rounds=11,
        cpu=True,
        goal=1 / 3,
    )
    size = from_rounds(
        "sink, full mode: gzip per row",
        {"json.dumps + gzip": plain_sizes, "TraceSink": our_sizes},
        unit="bytes",
        goal=0.92,
    )
    return [speed, size]


class EagerSampler:
    """Sampled mode as its rules are written: check every payload, keep the newest per stream."""

    def __init__(self) -> None:
        self.pending: dict[tuple[str, int], dict[str, Any]] = {}
        self.last: dict[tuple[str, int], int] = {}

    def observe(self, payloads: list[bytes]) -> None:
        """Take payloads."""
        for payload in payloads:
            document = validate_payload(payload)
            key = document["worker_id"], document["dp_rank"]
            if document["counter_id"] != self.last.get(key):
                self.pending[key] = document


def sampled_mode() -> list[Result]:
    """Compare what a payload costs that sampled mode passes over: choosing alone, and the whole sink."""
    items = [[(SOURCE, 1_700_000_000_000, payload) for payload in batch] for batch in BATCHES]

    def eager() -> None:
        sampler = EagerSampler()
        for batch in BATCHES:
            sampler.observe(batch)

    def lazy() -> None:
        recorder = SampledRecorder(5.0, 0.0)
        for batch in items:
            recorder.observe(batch)

    choosing = compare(
        "sampled mode: CPU per payload, choosing only",
        {"check each": eager, "SampledRecorder": lazy},
        items=PASSES,
        rounds=15,
        cpu=True,
        goal=0.1,
    )
    whole = compare(
        "sampled mode: CPU per payload, whole sink",
        {"check each (no sink)": eager, "TraceSink": timed(lambda f: sink_run(f, CaptureMode.SAMPLED), [])},
        items=PASSES,
        rounds=15,
        cpu=True,
        goal=0.25,
    )
    return [choosing, whole]


def compressors() -> list[Result]:
    """Compare the installed compressors, each between the transcoding of batches as in the sink."""

    def way(compressor: Compressor) -> Callable[[], None]:
        def run() -> None:
            text = []
            for batch in BATCHES:
                bodies: Any = read_payloads(batch)
                text.append(encode_rows(((SOURCE, 1, payload) for payload in batch), bodies, "full", 1))
                if len(text) * BATCH > 1400:
                    compressor.compress(b"".join(text))
                    text.clear()

        return run

    found = list(reversed(available()))  # zlib, which is always there, is the baseline
    if len(found) < 2:
        return []
    ways = {compressor.name: way(compressor) for compressor in found}
    return [compare("rows and members: CPU per row", ways, items=PASSES, rounds=11, cpu=True)]


def main() -> list[Result]:
    """Run all comparisons of the sink."""
    return [*full_mode(), *sampled_mode(), *compressors()]


if __name__ == "__main__":
    run_script(main, __doc__)
