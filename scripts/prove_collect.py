"""Knows how it is shown that collectors that are killed give every message of a fleet exactly once.

    python scripts/prove_collect.py                                 # a few thousand messages
    python scripts/prove_collect.py --messages 500 --kills 20       # half a million; --json FILE keeps it

A real nats-server holds what many simulated publishers send. Two or more collectors share it; again and again
one of them is killed (SIGKILL) while it works, and started again. The result is what ``trace merge`` makes of
their files. Exit code 0 if every message is in it exactly once, else 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats
from msgspec import Struct, to_builtins

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.nats.consumer import StreamConsumer, open_consumer
from forwardpass.plane.nats.stream import StreamSettings
from forwardpass.testing.nats_server import NatsServer, nats_server
from forwardpass.trace.merge import merge_traces
from forwardpass.trace.reader import TraceReader
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["Found", "Plan", "prove"]

STREAM = StreamSettings(ack_wait_seconds=2.0)
PATIENCE_SECONDS = 600.0
BLOCK = 1000
"""Messages that are sent before it is looked whether the server stored them; it buffers ten times as many."""


class Plan(Struct, frozen=True):
    """What is done."""

    workers: int = 1000
    messages: int = 4
    """Of each worker."""
    collectors: int = 2
    kills: int = 2
    batch: int = 200
    seed: int = 0


class Found(Struct):
    """What came out."""

    published: int = 0
    kills: int = 0
    rows: int = 0
    """In all files of all collectors, before they are merged."""
    merged: int = 0
    missing: int = 0
    repeated: int = 0
    """Messages that the merged trace has more than once."""
    disordered: int = 0
    """Rows of the merged trace that stand after a later one of the same worker."""
    strange: int = 0
    """Rows of no message that was published, or with another content."""
    collected: list[dict[str, Any]] = []
    """What the collectors said that lived to the end."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether every message is in the result exactly once."""
        wrong = self.missing or self.repeated or self.strange
        return not wrong and self.merged == self.published > 0


def prove(plan: Plan, folder: Path) -> Found:
    """Run ``plan`` below ``folder``."""
    found = Found()
    began = time.monotonic()
    with nats_server(jetstream=True) as server, _fleet(plan, server, folder) as fleet:
        asyncio.run(_work(plan, server, fleet, found))
        found.collected = fleet.stop()
    _judge(plan, folder, found)
    found.seconds = time.monotonic() - began
    return found


class _Fleet:
    """The collectors."""

    def __init__(self, plan: Plan, server: NatsServer, folder: Path) -> None:
        self._plan = plan
        self._url = server.url
        self._folder = folder
        self._processes: dict[int, subprocess.Popen[str]] = {}
        for number in range(plan.collectors):
            self._start(number)

    def kill(self, number: int) -> None:
        """Kill a collector without a warning and start it again, under its name."""
        self._processes[number].send_signal(signal.SIGKILL)
        self._processes[number].communicate()
        self._start(number)

    def wrote(self, number: int) -> int:
        """Return the bytes in the files of a collector."""
        return sum(path.stat().st_size for path in self._folder.glob(f"fleet.collector-{number}*"))

    def stop(self) -> list[dict[str, Any]]:
        """End all in good order; return what they did."""
        for process in self._processes.values():
            process.terminate()
        said = [process.communicate(timeout=60)[0] for process in self._processes.values()]
        return [json.loads(text) for text in said if text.strip()]

    def end(self) -> None:
        """Kill whatever is left."""
        for process in self._processes.values():
            process.kill()
            process.communicate()

    def _start(self, number: int) -> None:
        command = [sys.executable, "-m", "forwardpass", "collect", "--nats", self._url, "--quiet", "--json"]
        command += ["--output", str(self._folder / "fleet"), "--name", f"collector-{number}"]
        command += ["--batch", str(self._plan.batch), "--batch-seconds", "0.2", "--ack-wait", "2"]
        self._processes[number] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def _fleet(plan: Plan, server: NatsServer, folder: Path) -> Iterator[_Fleet]:
    fleet = _Fleet(plan, server, folder)
    try:
        yield fleet
    finally:
        fleet.end()


async def _work(plan: Plan, server: NatsServer, fleet: _Fleet, found: Found) -> None:
    """Publish everything, kill on the way, and wait until nothing is left."""
    watch = await open_consumer(server.url, STREAM, PlaneContext(Sources({})))
    client = await nats.connect(server.url)
    try:
        total = plan.workers * plan.messages
        chance = random.Random(plan.seed)
        kill_at = sorted(chance.randrange(total // 10, total) for _ in range(plan.kills))
        for first in range(0, total, BLOCK):
            await _publish(client, plan, range(first, min(first + BLOCK, total)))
            found.published = min(first + BLOCK, total)
            while kill_at and kill_at[0] < found.published:
                kill_at.pop(0)
                await _kill(fleet, chance.randrange(plan.collectors))
                found.kills += 1
        await _until_nothing_is_left(watch)
    finally:
        await client.close()
        await watch.close()


async def _publish(client: Any, plan: Plan, numbers: range) -> None:
    for number in numbers:
        sequence, worker = divmod(number, plan.workers)
        endpoint = Endpoint("fleet", f"pool-{worker % 10}", "generate")
        body = encode_envelope(worker + 1, sequence, sequence, _payload(worker, sequence))
        await client.publish(subject(endpoint), body)
    await client.flush()
    jetstream = client.jetstream(timeout=10)
    while (await jetstream.stream_info(STREAM.stream)).state.messages < numbers.stop:
        await asyncio.sleep(0.01)


def _payload(worker: int, sequence: int) -> bytes:
    return encode(
        ForwardPassMetrics(
            worker_id=f"worker-{worker}",
            counter_id=sequence,
            wall_time=0.01 + worker % 7 / 1000,
            scheduled_requests=ScheduledRequestMetrics(
                1, 100 + sequence % 50, 0.0, 16, 3, 900 + worker, 6.25
            ),
            queued_requests=QueuedRequestMetrics(2, 300, 2.5, 0, 0, 0.0),
        )
    )


async def _kill(fleet: _Fleet, number: int) -> None:
    """Kill a collector as soon as it has written more than it had."""
    before, end = fleet.wrote(number), time.monotonic() + 10
    while fleet.wrote(number) == before and time.monotonic() < end:
        await asyncio.sleep(0.001)
    await asyncio.to_thread(fleet.kill, number)


async def _until_nothing_is_left(watch: StreamConsumer) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while await watch.left() != 0:
        if time.monotonic() > end:
            raise RuntimeError("the collectors do not come to an end")
        await asyncio.sleep(0.05)


def _judge(plan: Plan, folder: Path, found: Found) -> None:
    found.rows = sum(1 for _ in TraceReader(folder / "fleet"))
    times: Counter[tuple[int, int]] = Counter()
    newest: dict[int, int] = {}
    for row in merge_traces(folder / "fleet", on_problem=lambda problem: None):
        assert row.message_id is not None
        worker, sequence = row.message_id.publisher_id - 1, row.message_id.sequence
        times[worker, sequence] += 1
        found.disordered += sequence < newest.get(worker, 0)
        newest[worker] = max(sequence, newest.get(worker, 0))
        metrics = row.metrics
        found.strange += (metrics.worker_id, metrics.counter_id) != (f"worker-{worker}", sequence)
    found.merged = times.total()
    expected = {(worker, number) for worker in range(plan.workers) for number in range(plan.messages)}
    found.missing = len(expected - times.keys())
    found.strange += len(times.keys() - expected)
    found.repeated = sum(count > 1 for count in times.values())


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Show that killed collectors lose and repeat nothing.")
    for name, kind in Plan.__annotations__.items():
        default = getattr(Plan(), name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{kind} [{default}]")
    parser.add_argument("--json", type=Path)
    options = vars(parser.parse_args())
    target = options.pop("json")
    with tempfile.TemporaryDirectory(prefix="prove-collect-") as folder:
        found = prove(Plan(**options), Path(folder))
    document = json.dumps({"plan": options, **to_builtins(found), "holds": found.holds}, indent=1)
    print(document)
    if target is not None:
        target.write_text(document + "\n", encoding="utf-8")
    return 0 if found.holds else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main())
