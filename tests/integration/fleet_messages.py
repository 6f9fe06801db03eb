"""Helpers of the collector's tests: messages of a fleet in a real stream, and what became of them."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trace_files import payload

from forwardpass.clock import SystemClock
from forwardpass.collect.collector import Collector
from forwardpass.collect.output import SegmentOutput
from forwardpass.config.settings import CaptureMode, Fsync, Sources, TraceSettings
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.nats.consumer import StreamConsumer
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.plane.nats.stream import StreamSettings
from forwardpass.trace.merge import MergeCounts, merge_traces
from forwardpass.trace.reader import TraceReader
from forwardpass.wire.keys import Endpoint

HERE = Endpoint("ns", "pär.t", "gen")
CONTEXT = PlaneContext(Sources({}))
PATIENCE_SECONDS = 30.0


def bodies(publisher: int, count: int, first: int = 0) -> list[bytes]:
    """Return the messages of one publisher."""
    return [
        encode_envelope(publisher, number, 1000, payload(number, f"w{publisher}"))
        for number in range(first, first + count)
    ]


class Broker:
    """A stream of its own at a shared server."""

    def __init__(self, url: str, name: str, ack_wait_seconds: float = 1.0) -> None:
        self.url = url
        self.stream = StreamSettings(stream=name, durable=name, ack_wait_seconds=ack_wait_seconds)

    def consumer(self, kind: type[StreamConsumer] = StreamConsumer) -> StreamConsumer:
        """Return a share of the consumer, not open yet."""
        return kind(NatsSettings.load(self.url, CONTEXT.sources), self.stream, CONTEXT)

    async def publish(
        self, messages: Sequence[bytes], where: str = subject(HERE), *, make: bool = True
    ) -> None:
        """Store messages, for sure; make the stream if it is missing, or raise a ``NotFoundError``."""
        import nats

        if make:
            consumer = self.consumer()
            await consumer.open()
            await consumer.close()
        client = await nats.connect(self.url)
        try:
            jetstream = client.jetstream()
            before = (await jetstream.stream_info(self.stream.stream)).state.messages
            for message in messages:
                await client.publish(where, message)
            end = time.monotonic() + PATIENCE_SECONDS
            while (await jetstream.stream_info(self.stream.stream)).state.messages < before + len(messages):
                assert time.monotonic() < end
                await asyncio.sleep(0.01)
        finally:
            await client.close()

    async def delete(self) -> None:
        """Remove the stream, so that others may have its subjects."""
        import nats

        client = await nats.connect(self.url)
        await client.jetstream().delete_stream(self.stream.stream)
        await client.close()


def segment_output(folder: Path, name: str) -> SegmentOutput:
    """Return the traces of a collector in ``folder``."""
    settings = TraceSettings(str(folder / "fleet"), CaptureMode.FULL, max_segments=99, fsync=Fsync.FLUSH)
    return SegmentOutput(settings, name, SystemClock())


async def collect_all(
    broker: Broker,
    output: Any,
    kind: type[StreamConsumer] = StreamConsumer,
    *,
    stop: asyncio.Event | None = None,
) -> Collector:
    """Collect until nothing is left, or until ``stop``; return the collector that did."""
    source = broker.consumer(kind)
    await source.open()
    try:
        collector = Collector(source, output, SystemClock(), batch=100, batch_seconds=0.2)
        await collector.prepare()
        async with asyncio.timeout(PATIENCE_SECONDS):
            await collector.run(stop or asyncio.Event(), until_empty=stop is None)
    finally:
        await source.close()
        output.close()
    return collector


def raw_rows(*folders: Path) -> Counter[tuple[int, int]]:
    """Return how often each message is in the files."""
    return _counted(row for folder in folders for row in TraceReader(folder))


def merged_rows(*folders: Path, counts: MergeCounts | None = None) -> Counter[tuple[int, int]]:
    """Return how often each message is in the merged trace."""
    return _counted(merge_traces(list(folders), on_problem=lambda problem: None, counts=counts))


def _counted(rows: Any) -> Counter[tuple[int, int]]:
    return Counter((row.message_id.publisher_id, row.message_id.sequence) for row in rows)
