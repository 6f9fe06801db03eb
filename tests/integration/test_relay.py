"""Relays between real publishers, real trace files and the plane inside one process."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from relay_peers import (
    LIMIT_SECONDS,
    PlainPublisher,
    free_url,
    message,
    one_stream,
    publishing_at,
    relaying,
    subscribe,
    take_all,
    tracing,
    until,
    until_connected,
    until_more,
)
from trace_files import PRODUCER, counter_ids, rows, segments

from forwardpass.config.settings import CaptureMode
from forwardpass.errors import ConfigError
from forwardpass.plane import memory
from forwardpass.relay.supervisor import RelayGroup, RelayTarget
from forwardpass.relay.zmq_source import MAX_FRAME_BYTES, Batch, ZmqSource
from forwardpass.wire.frames import Frames


def test_every_pass_reaches_trace_and_plane(tmp_path: Path) -> None:
    """RELAY-03: Of two ranks every pass is in the trace once, and on the plane bit for bit, in order per
    rank.
    """

    async def run() -> None:
        urls = [free_url(), free_url()]
        plane_url, subscriber = await subscribe()
        with tracing(tmp_path) as trace, publishing_at(urls[0]) as one, publishing_at(urls[1]) as two:
            async with relaying(urls, trace, plane_url=plane_url) as group:
                await until_connected(group, [one, two])
                for _ in range(500):
                    one.send_passes(1, rank=0)
                    two.send_passes(1, rank=1)
                await group.stop(LIMIT_SECONDS)
                stats = group.stats()
        published = await take_all(subscriber)
        recorded = [
            (row["event"]["fpm"]["dp_rank"], row["event"]["fpm"]["counter_id"]) for row in rows(tmp_path)
        ]
        for rank, peer in enumerate((one, two)):
            counters = [counter for dp_rank, counter in recorded if dp_rank == rank]
            assert counters == list(range(peer.seq - stats[rank].received, peer.seq))
            expected = [message(counter, rank) for counter in counters]
            assert [payload for payload in published if payload in set(expected)] == expected
            assert (stats[rank].gaps, stats[rank].lost, stats[rank].restarts) == (0, 0, 0)
            assert stats[rank].plane is not None
            assert stats[rank].plane.delivered == stats[rank].received
        assert len(published) == len(recorded) == sum(one.received for one in stats)

    asyncio.run(run())


def test_rows_carry_the_endpoint_and_the_time_of_the_drain(tmp_path: Path) -> None:
    """Rows say whose they are; the observed time is the drain's, late by a tick and the loop's delays."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            async with one_stream(trace) as (group, publisher):
                sent_ms: dict[int, float] = {}
                for _ in range(40):
                    sent_ms[publisher.seq] = time.time() * 1000
                    publisher.send_passes(1)
                    await asyncio.sleep(0.013)
                await group.stop(LIMIT_SECONDS)
        late: list[float] = []
        for row in rows(tmp_path):
            event = row["event"]
            assert event["source"] == {"namespace": "ns", "component": "part", "producer_id": PRODUCER}
            if event["fpm"]["counter_id"] in sent_ms:
                late.append(event["observed_at_unix_ms"] - sent_ms[event["fpm"]["counter_id"]])
        late.sort()

        assert len(late) == 40
        assert late[0] > -2
        assert late[len(late) // 2] < 60  # one tick is 20 ms; the rest is a busy machine

    asyncio.run(run())


def test_garbage_is_forwarded_but_not_recorded(tmp_path: Path) -> None:
    """RELAY-02: The plane gets malformed payloads as they are; the trace refuses and counts them; neither
    stops.
    """

    async def run() -> None:
        plane_url, subscriber = await subscribe()
        garbage = [b"", b"not msgpack", b"\xc1", b"\x81\xa1a", message(7)[:-1], b"!" + message(8)]
        with tracing(tmp_path) as trace:
            async with one_stream(trace, plane_url=plane_url) as (group, publisher):
                begun = publisher.seq
                for payload in garbage:
                    publisher.send(payload)
                    publisher.send_passes(1)
                await group.stop(LIMIT_SECONDS)
            trace.release(LIMIT_SECONDS)
            assert trace.counts().dropped == {"malformed": len(garbage)}
        published = await take_all(subscriber)

        assert [payload for payload in published if payload in garbage] == garbage
        assert [one for one in counter_ids(tmp_path) if one >= begun] == [begun + 1 + 2 * n for n in range(6)]

    asyncio.run(run())


def test_wrong_frames_are_skipped(tmp_path: Path) -> None:
    """RELAY-02: Messages with other frames go nowhere, are counted, and cost their neighbours nothing."""

    async def run() -> None:
        plane_url, subscriber = await subscribe()
        with tracing(tmp_path) as trace:
            async with one_stream(trace, plane_url=plane_url) as (group, publisher):
                begun = publisher.seq
                for frames in [(b"noise",), (b"a", b"b"), (b"", b"12345678", b"x", b"y"), (b"", b"1", b"x")]:
                    publisher.send_frames(*frames)
                    publisher.send_passes(1)
                await group.stop(LIMIT_SECONDS)
                stats = group.stats()[0]
        published = await take_all(subscriber)

        assert (stats.bad_frames, stats.gaps) == (4, 0)
        assert counter_ids(tmp_path)[-4:] == list(range(begun, begun + 4))
        assert published[-4:] == [message(counter) for counter in range(begun, begun + 4)]

    asyncio.run(run())


def test_engine_binds_later_than_the_relay(tmp_path: Path) -> None:
    """RELAY-04: A relay that starts before its engine joins it when it comes."""

    async def run() -> None:
        url = free_url()
        with tracing(tmp_path) as trace:
            async with relaying([url], trace) as group:
                await asyncio.sleep(0.5)
                assert group.stats()[0].connected is False
                with publishing_at(url) as publisher:
                    await until_connected(group, [publisher])
                    await group.stop(LIMIT_SECONDS)
                assert group.stats()[0].receive_errors == 0
        assert counter_ids(tmp_path)[-1] == publisher.seq - 1

    asyncio.run(run())


def test_engine_restarts_on_the_same_port(tmp_path: Path) -> None:
    """RELAY-04, RELAY-07: after a restart of the engine the relay goes on, and counts the restart."""

    async def run() -> None:
        url = free_url()
        with tracing(tmp_path) as trace:
            async with relaying([url], trace) as group:
                with publishing_at(url) as first:
                    await until_connected(group, [first])
                    first.send_passes(20)
                    await until(lambda: group.stats()[0].received >= 20)
                before = group.stats()[0].received
                with publishing_at(url) as second:
                    await until_more(group, second, before)
                    await group.stop(LIMIT_SECONDS)
                stats = group.stats()[0]
        assert (stats.restarts, stats.reconnects) == (1, 1)
        assert stats.gaps == 0

    asyncio.run(run())


def test_lost_messages_are_counted(tmp_path: Path) -> None:
    """Numbers that the publisher skipped show up as a gap and as lost messages."""

    async def run() -> None:
        async with one_stream() as (group, publisher):
            publisher.seq += 5
            publisher.send_passes(1)
            await group.stop(LIMIT_SECONDS)
            stats = group.stats()[0]
        assert (stats.gaps, stats.lost) == (1, 5)

    asyncio.run(run())


def test_a_hanging_plane_delays_nothing(tmp_path: Path) -> None:
    """RELAY-03, RELAY-06: While publishing hangs passes are recorded at once; the plane loses its oldest,
    counted.
    """

    async def run() -> None:
        plane_url, subscriber = await subscribe()
        plane = memory.memory_plane(plane_url.removeprefix("memory:"))
        with tracing(tmp_path) as trace:
            async with one_stream(trace, plane_url=plane_url, outbox_capacity=50) as (group, publisher):
                plane.stall()
                before = group.stats()[0].received
                began = time.monotonic()
                publisher.send_passes(500)
                await until(lambda: group.stats()[0].received == before + 500)
                assert time.monotonic() - began < 5.0
                assert trace.counts().offered == before + 500
                plane_counts = group.stats()[0].plane
                assert plane_counts is not None
                assert plane_counts.pending <= 51
                assert plane_counts.dropped["queue_full"] >= 449
                plane.recover()
                await group.stop(LIMIT_SECONDS)
        published = await take_all(subscriber)

        assert counter_ids(tmp_path)[-500:] == list(range(publisher.seq - 500, publisher.seq))
        assert published[-50:] == [message(counter) for counter in range(publisher.seq - 50, publisher.seq)]

    asyncio.run(run())


def test_a_failing_plane_loses_no_row(tmp_path: Path) -> None:
    """A plane that refuses everything costs its own messages, each counted; the trace is complete."""

    async def run() -> None:
        plane_url, _subscriber = await subscribe()
        with tracing(tmp_path) as trace:
            async with one_stream(trace, plane_url=plane_url) as (group, publisher):
                memory.memory_plane(plane_url.removeprefix("memory:")).fail("down")
                await asyncio.sleep(0.1)
                publisher.send_passes(100)
                await group.stop(LIMIT_SECONDS)
                stats = group.stats()[0]
        assert stats.plane is not None
        assert stats.plane.dropped == {"send_error": 100}
        assert counter_ids(tmp_path) == list(range(publisher.seq - stats.received, publisher.seq))

    asyncio.run(run())


def test_one_dead_rank_does_not_hurt_the_other(tmp_path: Path) -> None:
    """RELAY-01: A rank that never comes, and one that dies, leave the third rank's rows complete."""

    async def run() -> None:
        urls = [free_url(), free_url(), free_url()]
        with tracing(tmp_path) as trace, publishing_at(urls[0]) as alive:
            dying = PlainPublisher(urls[1])
            async with relaying(urls, trace) as group:
                await until_connected(group, [alive, dying])
                dying.close()
                begun = alive.seq
                for _ in range(300):
                    alive.send_passes(1)
                    await asyncio.sleep(0.001)
                began = time.monotonic()
                await group.stop(LIMIT_SECONDS)
                assert time.monotonic() - began < 5.0
                stats = group.stats()
        counters = [
            row["event"]["fpm"]["counter_id"] for row in rows(tmp_path) if row["event"]["fpm"]["dp_rank"] == 0
        ]
        assert counters[-300:] == list(range(begun, begun + 300))
        assert (stats[1].connected, stats[2].connected, stats[2].received) == (False, False, 0)

    asyncio.run(run())


class FlakySource(ZmqSource):
    """A real source whose socket breaks when the test says so."""

    broken = False

    def receive_many(self, limit: int) -> Batch:
        if self.broken:
            raise OSError("broken on purpose")
        return super().receive_many(limit)

    def reopen(self) -> None:
        self.broken = False
        super().reopen()


def test_a_failed_receive_is_repaired(tmp_path: Path) -> None:
    """A receive error ends nothing: the socket is made anew after a wait and rows come again (D-19)."""

    async def run() -> None:
        urls = [free_url(), free_url()]
        sources: list[FlakySource] = []

        def open_source(url: str) -> FlakySource:
            sources.append(FlakySource(url))
            return sources[-1]

        with tracing(tmp_path) as trace, publishing_at(urls[0]) as one, publishing_at(urls[1]) as two:
            async with relaying(urls, trace, open_source=open_source) as group:
                await until_connected(group, [one, two])
                sources[0].broken = True
                await until(lambda: group.stats()[0].receive_errors == 1)
                two_before = group.stats()[1].received
                two.send_passes(10, rank=1)
                await until(lambda: group.stats()[1].received == two_before + 10)
                await until(lambda: not sources[0].broken)
                before = group.stats()[0].received
                await until_more(group, one, before)
                await group.stop(LIMIT_SECONDS)
                assert [stats.receive_errors for stats in group.stats()] == [1, 0]

    asyncio.run(run())


def test_oversize_frame_is_survived(tmp_path: Path) -> None:
    """After a frame above the limit, which libzmq answers by giving up, the stream goes on by itself."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            async with one_stream(trace) as (group, publisher):
                before = group.stats()[0].received
                publisher.send(b"x" * (MAX_FRAME_BYTES + 1))
                await until_more(group, publisher, before)
                assert group.stats()[0].receive_errors == 1

    asyncio.run(run())


def test_without_a_trace() -> None:
    """Without a trace the plane gets everything and nothing is refused."""

    async def run() -> None:
        plane_url, subscriber = await subscribe()
        async with one_stream(None, plane_url=plane_url) as (group, publisher):
            publisher.send_passes(10)
            await group.stop(LIMIT_SECONDS)
            stats = group.stats()[0]
        assert stats.trace_refused == 0
        assert len(await take_all(subscriber)) == stats.received

    asyncio.run(run())


def test_sampled_mode(tmp_path: Path) -> None:
    """In sampled mode a relay's burst becomes one row: the newest."""

    async def run() -> None:
        with tracing(tmp_path, CaptureMode.SAMPLED) as trace:
            async with one_stream(trace) as (group, publisher):
                publisher.send_passes(100)
                await group.stop(LIMIT_SECONDS)
        assert counter_ids(tmp_path)[-1] == publisher.seq - 1
        assert len(counter_ids(tmp_path)) < 10

    asyncio.run(run())


@pytest.mark.parametrize(("mode", "times"), [(CaptureMode.FULL, 2), (CaptureMode.SAMPLED, 1)])
def test_two_relays_of_one_stream_share_its_trace(tmp_path: Path, mode: CaptureMode, times: int) -> None:
    """TRACE-50: The relays of one producer fill one set of segments. What arrives twice is two payloads in
    full mode, and in sampled mode one, for its counter is the same.
    """

    async def run() -> None:
        url = free_url()
        with tracing(tmp_path, mode) as trace, publishing_at(url) as publisher:
            async with relaying([url], trace) as one, relaying([url], trace) as two:
                await until_connected(one, [publisher])
                await until_connected(two, [publisher])
                publisher.send_passes(100)
                await one.stop(LIMIT_SECONDS)
                await two.stop(LIMIT_SECONDS)
        assert counter_ids(tmp_path).count(publisher.seq - 1) == times
        assert len(segments(tmp_path)) == 1

    asyncio.run(run())


@pytest.mark.parametrize("plane_url", ["carrier-pigeon:coop", "memory"])
def test_an_unknown_plane_is_refused_at_the_start(plane_url: str) -> None:
    """A plane that can never work is the operator's error, and leaves nothing open."""

    async def run() -> None:
        group = RelayGroup([RelayTarget(free_url())], trace=None, plane_url=plane_url)
        with pytest.raises(ConfigError):
            await group.start()
        assert group.stats() == ()

    asyncio.run(run())


def test_a_wrong_stream_url_is_refused_at_the_start() -> None:
    """A URL that can never be connected to is the operator's error; the sockets made so far are closed."""

    async def run() -> None:
        group = RelayGroup([RelayTarget(free_url()), RelayTarget("tcp://*:20380")], trace=None)
        with pytest.raises(ConfigError):
            await group.start()

    asyncio.run(run())


def test_two_groups_in_one_process() -> None:
    """Two relay groups read one engine without taking messages from each other."""

    async def run() -> None:
        url = free_url()
        seen: list[Frames] = []
        with publishing_at(url) as publisher:
            async with (
                relaying([url]) as first,
                relaying([url], on_payload=lambda _rank, frames: seen.append(frames)) as second,
            ):
                await until_connected(first, [publisher])
                await until_connected(second, [publisher])
                seen.clear()
                publisher.send_passes(50)
                await until(lambda: len(seen) == 50)
                await until(lambda: first.stats()[0].received >= 50)

                assert [frames.payload for frames in seen] == [
                    message(counter) for counter in range(publisher.seq - 50, publisher.seq)
                ]

    asyncio.run(run())
