"""What a silent stream costs its relay, and how soon a message or a stop ends the silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
import zmq

from forwardpass.relay import supervisor
from forwardpass.relay.doorbell import Doorbell
from forwardpass.relay.relay import LOOK_SECONDS
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.zmq_source import Batch, ZmqSource
from forwardpass.testing.ports import free_port
from forwardpass.trace.ledger import LedgerEvent
from forwardpass.wire.frames import join


class CountedSource(ZmqSource):
    """A real source that counts how often it is looked at."""

    looks = 0

    def receive_many(self, limit: int) -> Batch:
        type(self).looks += 1
        return super().receive_many(limit)


class KeptTrace:
    """Keeps what it is offered; has as much room as it is told."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.has_room = 10**6

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        self.rows += payloads
        self.has_room -= len(payloads)
        return len(payloads)

    def note(self, event: LedgerEvent) -> None:
        """Not of interest here."""

    def room(self) -> int:
        return self.has_room


async def _until(trace: KeptTrace, rows: int) -> None:
    for _ in range(2000):
        if len(trace.rows) >= rows:
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{len(trace.rows)} rows of {rows}")


async def _first_rows(publisher: zmq.Socket[bytes], trace: KeptTrace) -> None:
    for number in range(2000):
        publisher.send_multipart(join(number, b"%d" % number))
        await asyncio.sleep(0.005)
        if trace.rows:
            break
    await asyncio.sleep(0.3)  # the last of them has come
    trace.rows.clear()


@asynccontextmanager
async def relayed(
    open_source: Callable[[str], ZmqSource] = ZmqSource,
) -> AsyncIterator[tuple[zmq.Socket[bytes], KeptTrace]]:
    """Relay a publisher's stream into a trace; its first messages have come already."""
    trace, url = KeptTrace(), f"tcp://127.0.0.1:{free_port()}"
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        publisher.linger = 0
        publisher.bind(url)
        group = RelayGroup([RelayTarget(url, 0)], trace=trace, open_source=open_source)
        await group.start()
        await _first_rows(publisher, trace)
        yield publisher, trace
        await group.stop(5.0)


def test_a_silent_stream_is_left_alone_and_a_message_wakes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a silence of two seconds a stream is looked at a dozen times, and then every message comes."""
    monkeypatch.setattr(CountedSource, "looks", 0)

    async def main() -> tuple[int, list[bytes]]:
        async with relayed(CountedSource) as (publisher, trace):
            before = CountedSource.looks
            await asyncio.sleep(2.0)
            looks = CountedSource.looks - before
            for number in range(3):  # each after a silence
                publisher.send_multipart(join(10_000 + number, b"late %d" % number))
                await _until(trace, number + 1)
                await asyncio.sleep(0.1)
        return looks, trace.rows

    looks, rows = asyncio.run(main())

    assert looks <= 2 * 2.0 / LOOK_SECONDS + 2
    assert rows == [b"late 0", b"late 1", b"late 2"]


def test_a_stop_ends_a_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that sleeps until something arrives is woken by its stop."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 600.0)

    async def main() -> int:
        group = RelayGroup([RelayTarget(f"tcp://127.0.0.1:{free_port()}", 0)], trace=None)
        await group.start()
        await asyncio.sleep(0.3)
        await asyncio.wait_for(group.stop(5.0), 60)
        return group.stats()[0].received

    assert asyncio.run(main()) == 0


def test_what_waits_for_room_is_looked_at_without_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A backlog that was begun calls nobody any more; what is left is taken as soon as there is room."""
    monkeypatch.setattr(supervisor, "LOOK_SECONDS", 600.0)

    async def main() -> list[bytes]:
        async with relayed() as (publisher, trace):
            trace.has_room = 10
            for number in range(50):
                publisher.send_multipart(join(10_000 + number, b"%d" % number))
            await _until(trace, 10)
            await asyncio.sleep(0.3)
            trace.has_room = 10**6
            await _until(trace, 50)
        return trace.rows

    assert asyncio.run(main()) == [b"%d" % number for number in range(50)]


def test_a_bell_that_was_rung_before_ends_the_next_wait() -> None:
    """A call between two waits is not lost, one wait uses it up, and time alone is no call."""

    async def main() -> tuple[bool, bool]:
        bell = Doorbell()
        bell.ring()
        began = time.monotonic()
        called = await bell.wait([], 60.0)
        assert time.monotonic() - began < 30.0
        return called, await bell.wait([], 0.01)

    assert asyncio.run(main()) == (True, False)


def test_a_loop_without_descriptors_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the event loop cannot watch a descriptor the streams are looked at on a tick."""

    def refuse(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", refuse)

    async def main() -> list[bytes]:
        async with relayed() as (publisher, trace):
            publisher.send_multipart(join(10_000, b"seen"))
            await _until(trace, 1)
        return trace.rows

    # asyncio.run() itself watches its own wake-up socket that way
    loop = asyncio.new_event_loop()
    try:
        assert loop.run_until_complete(main()) == [b"seen"]
    finally:
        loop.close()
