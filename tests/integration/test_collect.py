"""Collectors at a real JetStream: each message once, whatever dies in between."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nats")

import nats
from fleet_messages import (
    CONTEXT,
    HERE,
    PATIENCE_SECONDS,
    Broker,
    bodies,
    collect_all,
    merged_rows,
    raw_rows,
    segment_output,
)
from prove_collect import Plan, prove
from trace_files import payload

from forwardpass.collect.collector import Collector
from forwardpass.collect.sort import CollectedRow
from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import ANY_SUBJECT
from forwardpass.plane.nats.consumer import Delivery, StreamConsumer, open_consumer
from forwardpass.plane.nats.stream import StreamSettings
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server
from forwardpass.trace.merge import REORDER_ROWS, MergeCounts
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import MessageId

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Run one server with JetStream for all tests but those that kill it."""
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
def broker(server: NatsServer) -> Iterator[Broker]:
    """Give a stream that is removed at the end, for two streams cannot have the same subjects."""
    own = Broker(server.url, f"stream-{next(_numbers)}")
    yield own
    asyncio.run(own.delete())


def once(publishers: int, count: int) -> Counter[tuple[int, int]]:
    """Return each message of so many publishers, once."""
    return Counter((publisher, number) for publisher in range(publishers) for number in range(count))


def test_killed_collectors_give_every_message_once(tmp_path: Path) -> None:
    """COLLECT-02, COLLECT-05: Of 1,000 workers' messages, two collectors that are killed while they write
    give each exactly once.
    """
    found = prove(Plan(workers=1000, messages=3, kills=2), tmp_path)

    assert found.kills == 2
    assert (found.published, found.merged) == (3000, 3000)
    assert (found.missing, found.repeated, found.strange) == (0, 0, 0)
    assert found.holds


class _DiesBeforeItAcknowledges(StreamConsumer):
    async def acknowledge(self, deliveries: Sequence[Delivery]) -> bool:
        """Send nothing, as a process that was killed just before."""
        return False


async def collect_and_die(broker: Broker, folder: Path, count: int) -> Collector:
    """Write ``count`` messages and acknowledge none."""
    stop = asyncio.Event()
    output = segment_output(folder, "x")
    collecting = asyncio.ensure_future(collect_all(broker, output, _DiesBeforeItAcknowledges, stop=stop))
    while not output.files or raw_rows(folder).total() < count:
        await asyncio.sleep(0.01)
    stop.set()
    return await collecting


def test_another_host_takes_over(broker: Broker, tmp_path: Path) -> None:
    """COLLECT-02, COLLECT-05: What one host wrote and did not acknowledge comes to another, which cannot see
    that; both have the rows, and merged they are there once.
    """

    async def run() -> None:
        await broker.publish([body for publisher in range(20) for body in bodies(publisher, 10)])
        first = await collect_and_die(broker, tmp_path / "one", 200)
        assert first.counts.written == 200
        assert first.counts.acknowledged == 0
        second = await collect_all(broker, segment_output(tmp_path / "two", "y"))
        assert (second.counts.written, second.counts.redelivered) == (200, 200)

    asyncio.run(run())
    counts = MergeCounts()

    assert set(raw_rows(tmp_path / "one", tmp_path / "two").values()) == {2}
    assert merged_rows(tmp_path / "one", tmp_path / "two", counts=counts) == once(20, 10)
    assert counts.duplicates == 200


def test_a_collector_that_comes_back_knows_what_it_wrote(broker: Broker, tmp_path: Path) -> None:
    """COLLECT-06: After a crash what is on the disk is acknowledged and not written again, whoever wrote it
    below the prefix.
    """

    async def run() -> None:
        await broker.publish([body for publisher in range(10) for body in bodies(publisher, 10)])
        await collect_and_die(broker, tmp_path, 100)
        again = await collect_all(broker, segment_output(tmp_path, "y"))
        assert (again.counts.written, again.counts.duplicates, again.counts.acknowledged) == (0, 100, 100)

    asyncio.run(run())

    assert raw_rows(tmp_path) == once(10, 10)


def test_what_comes_again_finds_its_place(broker: Broker, tmp_path: Path) -> None:
    """COLLECT-11: Messages that come again long after their time are in their place in a merged trace."""

    async def run() -> None:
        await broker.publish(bodies(0, 50))
        lost = broker.consumer()
        await lost.open()
        assert len(await lost.pull(50, 5.0)) == 50
        await lost.close()
        await broker.publish(bodies(1, 2 * REORDER_ROWS))
        counts = (await collect_all(broker, segment_output(tmp_path, "x"))).counts
        assert counts.redelivered == 50

    asyncio.run(run())
    counts = MergeCounts()

    assert len(merged_rows(tmp_path, counts=counts)) == 50 + 2 * REORDER_ROWS
    assert counts.late == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "fleet.x-again.000000.jsonl.gz",
        "fleet.x.000000.jsonl.gz",
    ]


def test_rows_say_where_they_come_from(broker: Broker, tmp_path: Path) -> None:
    """COLLECT-03, COLLECT-04: A row has the endpoint of its subject, the publisher as its producer, the
    server's time, the message that it was made of, and the payload with fields that nobody knows.
    """
    unknown = payload(7).replace(b"\x87", b"\x88", 1) + b"\xa3new\x01"

    async def run() -> None:
        await broker.publish([encode_envelope(12345, 6, 1000, unknown)])
        await collect_all(broker, segment_output(tmp_path, "x"))

    asyncio.run(run())
    (row,) = TraceReader(tmp_path)

    assert row.source.namespace == HERE.namespace
    assert row.source.component == HERE.component
    assert row.source.producer_id == "12345"
    assert row.message_id == MessageId(12345, 6)
    assert row.capture_mode == "full"
    assert abs(row.observed_at_unix_ms - CONTEXT.clock.unix_ms()) < 60_000
    assert row.fpm["new"] == 1
    assert json.loads(row.line)["event"]["message_id"] == {"publisher_id": 12345, "sequence": 6}


def test_poison_is_given_up(broker: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """COLLECT-07: What is no forward pass is counted, never delivered again, and costs nothing else."""
    caplog.set_level(logging.WARNING)
    good = bodies(0, 3)
    poison = [
        b"",
        b"\xff" * 50,
        good[0][:-5],
        encode_envelope(1, 0, 0, b"no payload"),
        encode_envelope(1, 1, 0, payload(1).replace(b"\xa7version\x01", b"\xa7version\x02")),
        good[0].replace(b"forward-pass-metrics", b"forward-pass-other!!"),
    ]

    async def run() -> None:
        await broker.publish([*poison, *good])
        strange = "namespace.a%zz.component.b.endpoint.c.forward-pass-metrics"
        await broker.publish([good[0]], where=strange)
        counts = (await collect_all(broker, segment_output(tmp_path, "x"))).counts
        assert (counts.received, counts.written, counts.malformed) == (10, 3, 7)
        again = await collect_all(broker, segment_output(tmp_path, "x"))
        assert again.counts.received == 0

    asyncio.run(run())

    assert raw_rows(tmp_path) == once(1, 3)
    assert len([record for record in caplog.records if "given up" in record.getMessage()]) == 1


class _FullDisk:
    """An output that refuses the second half of what it is given first."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._full = True

    def written_before(self, most: int) -> list[MessageId]:
        """Return what is there."""
        return list(self._inner.written_before(most))

    def write(self, rows: Sequence[CollectedRow]) -> list[bool]:
        """Write half of the rows, and later all."""
        half = len(rows) // 2 if self._full and rows else len(rows)
        self._full = self._full and not rows
        return [*self._inner.write(rows[:half]), *([False] * (len(rows) - half))]

    def close(self) -> None:
        """Close the files."""
        self._inner.close()


def test_what_the_disk_refuses_comes_again(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """COLLECT-02: A row that could not be written is not acknowledged; what was written of its batch is."""
    monkeypatch.setattr("forwardpass.collect.collector.RETRY_SECONDS", 0.1)

    async def run() -> None:
        await broker.publish(bodies(0, 50))
        done = await collect_all(broker, _FullDisk(segment_output(tmp_path, "x")))
        counts = done.counts
        assert counts.not_written > 0
        assert counts.received == counts.written + counts.not_written + counts.duplicates
        assert counts.acknowledged == 50
        assert not done.failing

    asyncio.run(run())

    assert raw_rows(tmp_path) == once(1, 50)


def test_a_restarted_server(tmp_path: Path) -> None:
    """COLLECT-08: A collector outlives its server; one that lost its store gets stream and consumer anew."""
    with nats_server(jetstream=True) as server:
        broker = Broker(server.url, "restarted")

        async def run() -> None:
            await broker.publish(bodies(0, 20))
            stop = asyncio.Event()
            output = segment_output(tmp_path, "x")
            collecting = asyncio.ensure_future(collect_all(broker, output, stop=stop))
            while not list(tmp_path.glob("fleet.x.*")):
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.restart)
            await broker.publish(bodies(1, 20))
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(raw_rows(tmp_path)) < 40:
                    await asyncio.sleep(0.05)
                await broker.delete()
                while True:  # until the collector has made it again
                    try:
                        await broker.publish(bodies(2, 20), make=False)
                        break
                    except nats.js.errors.NotFoundError:
                        await asyncio.sleep(0.05)
                while len(raw_rows(tmp_path)) < 60:
                    await asyncio.sleep(0.05)
            stop.set()
            await collecting

        asyncio.run(run())

    assert merged_rows(tmp_path) == once(3, 20)


def test_an_existing_stream_is_used_as_it_is(server: NatsServer, tmp_path: Path) -> None:
    """COLLECT-01: A stream that holds the subjects is used with its own limits; another one is refused."""

    async def run() -> None:
        client = await nats.connect(server.url)
        jetstream = client.jetstream()
        await jetstream.add_stream(name="mine", subjects=["namespace.>"], max_msgs=1000)
        await jetstream.add_stream(name="other", subjects=["orders.>"])
        try:
            broker = Broker(server.url, "mine")
            await broker.publish(bodies(0, 5))
            await collect_all(broker, segment_output(tmp_path, "x"))
            assert (await jetstream.stream_info("mine")).config.max_msgs == 1000
            with pytest.raises(ConfigError, match="--stream"):
                await open_consumer(server.url, StreamSettings(stream="other"), CONTEXT)
            await jetstream.add_consumer("mine", durable_name="push", deliver_subject="somewhere")
            with pytest.raises(ConfigError, match="--durable"):
                await open_consumer(server.url, StreamSettings(stream="mine", durable="push"), CONTEXT)
        finally:
            await jetstream.delete_stream("mine")
            await jetstream.delete_stream("other")
            await client.close()

    asyncio.run(run())

    assert raw_rows(tmp_path) == once(1, 5)


def test_a_stream_is_made_with_limits(broker: Broker) -> None:
    """COLLECT-01: A stream that is made here holds every endpoint's subject, on the disk, within limits."""

    async def run() -> None:
        await broker.publish([])
        client = await nats.connect(broker.url)
        config = (await client.jetstream().stream_info(broker.stream.stream)).config
        await client.close()
        assert config.subjects == [ANY_SUBJECT]
        assert config.storage == "file"
        assert config.max_bytes == 4 << 30
        assert config.max_age == 86_400

    asyncio.run(run())


def test_what_is_not_allowed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """COLLECT-01: A user who may not use JetStream is told which permission is missing."""
    monkeypatch.setattr("forwardpass.plane.nats.stream.API_SECONDS", 0.5)
    user = '{ user: u, password: p, permissions: { publish: { deny: "$JS.API.>" } } }'
    with (
        nats_server(jetstream=True, config=f"authorization {{ users: [ {user} ] }}") as strict,
        pytest.raises(PlaneUnavailable, match=r"permissions violation.*\$js"),
    ):
        asyncio.run(open_consumer(f"nats://u:p@127.0.0.1:{strict.port}", StreamSettings(), CONTEXT))


def test_a_server_without_a_stream_store() -> None:
    """COLLECT-01: A server without JetStream is named as that."""
    with (
        nats_server() as plain,
        pytest.raises(PlaneUnavailable, match="JetStream"),
    ):
        asyncio.run(open_consumer(plain.url, StreamSettings(), CONTEXT))
