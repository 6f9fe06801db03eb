"""Relays that have much to take at once, and relays that are stopped."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from relay_peers import (
    LIMIT_SECONDS,
    free_url,
    one_stream,
    publishing_at,
    relaying,
    subscribe,
    tracing,
    until,
    until_connected,
)
from trace_files import counter_ids

from forwardpass.relay.cadence import HOLD_SECONDS
from forwardpass.trace.ledger import LedgerEvent


def test_stop_drains_a_backlog(tmp_path: Path) -> None:
    """RELAY-08: What was sent before the stop is recorded, even when nothing of it had been received yet."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            async with one_stream(trace) as (group, publisher):
                begun = publisher.seq
                publisher.send_passes(20_000)  # the loop is busy with this: the relay has no turn
                publisher.close(linger_ms=10_000)
                await group.stop(LIMIT_SECONDS)
            trace.release(LIMIT_SECONDS)
            assert trace.counts().dropped == {}
        assert counter_ids(tmp_path)[-20_000:] == list(range(begun, begun + 20_000))

    asyncio.run(run())


def test_a_backlog_does_not_overrun_the_trace(tmp_path: Path) -> None:
    """A reader that stalled takes its backlog no faster than the trace writes: no row is dropped."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            async with one_stream(trace) as (group, publisher):
                before = group.stats()[0].received
                publisher.send_passes(40_000)
                await until(lambda: group.stats()[0].received == before + 40_000)
                assert trace.counts().dropped == {}

    asyncio.run(run())


class StuckTrace:
    """A trace whose queue is full and stays full."""

    def __init__(self) -> None:
        self.offered = 0

    def offer_many(self, payloads: list[bytes], observed_unix_ms: int | None = None) -> int:
        self.offered += len(payloads)
        return len(payloads)

    def note(self, event: LedgerEvent) -> None:
        """Not of interest here."""

    def room(self) -> int:
        return 0


class SlowTrace(StuckTrace):
    """A trace that takes much longer than a second for a backlog."""

    CAPACITY = 2048

    def __init__(self) -> None:
        super().__init__()
        self.taken = self.evicted = 0

    def offer_many(self, payloads: list[bytes], observed_unix_ms: int | None = None) -> int:
        super().offer_many(payloads)
        self.evicted += max(0, self.offered - self.taken - self.evicted - self.CAPACITY)
        return len(payloads)

    def room(self) -> int:
        return self.CAPACITY - (self.offered - self.taken - self.evicted)

    def take(self) -> None:
        """Write a few rows."""
        self.taken += min(400, self.offered - self.taken - self.evicted)


def test_a_backlog_waits_for_a_slow_trace_when_no_plane_does() -> None:
    """RELAY-03: Without a plane, a backlog of three seconds' work for the trace loses no row."""

    async def run() -> None:
        url = free_url()
        trace = SlowTrace()
        with publishing_at(url) as publisher:
            async with relaying([url], trace) as group:  # type: ignore[arg-type]
                await until_connected(group, [publisher])
                before = group.stats()[0].received
                publisher.send_passes(24_000)
                while group.stats()[0].received < before + 24_000:
                    trace.take()
                    await asyncio.sleep(0.05)

        assert trace.evicted == 0

    asyncio.run(run())


def test_a_stuck_trace_holds_the_plane_back_for_a_second_at_most() -> None:
    """RELAY-03: When the trace's queue is full and nothing moves, the plane gets its messages all the same:
    once up to a second late, from then on at once, bursts or not.
    """

    async def run() -> None:
        url = free_url()
        plane_url, subscriber = await subscribe()
        trace = StuckTrace()
        sent: list[float] = []
        late: list[float] = []

        async def read() -> None:
            async for one in subscriber:
                if one.payload.endswith(b"timed"):
                    late.append(time.monotonic() - sent[int(one.payload.split()[0])])

        with publishing_at(url) as publisher:
            async with relaying([url], trace, plane_url=plane_url) as group:  # type: ignore[arg-type]
                reader = asyncio.create_task(read())
                began = time.monotonic()
                await until_connected(group, [publisher])
                assert time.monotonic() - began >= HOLD_SECONDS  # the one second is over
                for number in range(60):
                    if number % 20 == 0:
                        publisher.send_passes(3000)
                    sent.append(time.monotonic())
                    publisher.send(b"%d timed" % number)
                    await asyncio.sleep(0.05)
                await until(lambda: len(late) == 60)
                await subscriber.close()
                await reader

                assert max(late) < HOLD_SECONDS
                assert sorted(late)[30] < HOLD_SECONDS / 4
                assert trace.offered == group.stats()[0].received

    asyncio.run(run())


def test_stop_does_not_wait_for_a_live_engine(tmp_path: Path) -> None:
    """An engine that goes on after the stop is left soon; nothing received is missing from the trace."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            async with one_stream(trace) as (group, publisher):

                async def engine() -> None:
                    while True:
                        publisher.send_passes(1)
                        await asyncio.sleep(0.002)

                running = asyncio.ensure_future(engine())
                await asyncio.sleep(0.2)
                began = time.monotonic()
                await group.stop(LIMIT_SECONDS)
                seconds = time.monotonic() - began
                running.cancel()
                received = group.stats()[0].received
        assert 0.4 < seconds < 5.0
        assert len(counter_ids(tmp_path)) == received

    asyncio.run(run())


def test_a_stop_without_time_ends_at_once() -> None:
    """With a drain time of nothing the stop does not wait; a second stop is fine."""

    async def run() -> None:
        async with relaying([free_url()]) as group:
            began = time.monotonic()
            await group.stop(0.0)
            await group.stop(30.0)

            assert time.monotonic() - began < 2.0

    asyncio.run(run())
