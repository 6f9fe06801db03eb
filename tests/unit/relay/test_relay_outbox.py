"""The queue before an event plane: bounded, ordered, counted, and never in the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from forwardpass.errors import ConfigError, PayloadTooLarge, PlaneClosed, PlaneUnavailable
from forwardpass.plane.base import PlanePublisher
from forwardpass.relay.cadence import RECEIVE_LIMIT
from forwardpass.relay.outbox import OUTBOX_BYTES, Outbox


class ScriptedPublisher:
    """Raises what the script has for a payload, else keeps it; can be made to hang."""

    publisher_id = 1

    def __init__(self, faults: dict[bytes, Exception] | None = None) -> None:
        self.published: list[bytes] = []
        self.closes = 0
        self.moving = asyncio.Event()
        self.moving.set()
        self._faults = faults or {}

    async def publish(self, payload: bytes) -> None:
        await self.moving.wait()
        if payload in self._faults:
            raise self._faults[payload]
        self.published.append(payload)

    async def close(self) -> None:
        self.closes += 1


def opener(*publishers: PlanePublisher | Exception) -> Callable[[], Awaitable[PlanePublisher]]:
    """Return a function that opens (or fails to open) one after the other, the last one for ever."""
    script = list(publishers)

    async def open_next() -> PlanePublisher:
        outcome = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return open_next


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_in_order_and_counted() -> None:
    """Payloads are published in order; counts say so; closing leaves the plane once."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        outbox = Outbox(opener(publisher), label="x")
        outbox.start()
        outbox.put_many([b"1", b"2"])
        outbox.put_many([b"3"])
        await outbox.close(5.0)
        await outbox.close(5.0)
        counts = outbox.counts()

        assert publisher.published == [b"1", b"2", b"3"]
        assert (counts.offered, counts.delivered, counts.pending, counts.dropped) == (3, 3, 0, {})
        assert publisher.closes == 1

    asyncio.run(run())


def test_a_hanging_plane_loses_the_oldest() -> None:
    """When the plane hangs the queue stays bounded, the newest stay, and the rest is counted."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        publisher.moving.clear()
        outbox = Outbox(opener(publisher), label="x", capacity=3)
        outbox.start()
        outbox.put_many([b"in flight"])
        await _settle()
        outbox.put_many([b"a", b"b"])
        outbox.put_many([b"c", b"d"])
        assert outbox.counts().dropped == {"queue_full": 1}
        assert outbox.counts().pending == 4
        publisher.moving.set()
        await outbox.close(5.0)

        assert publisher.published == [b"in flight", b"b", b"c", b"d"]

    asyncio.run(run())


def test_a_batch_larger_than_the_queue() -> None:
    """Of a batch that does not fit the newest stay."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        outbox = Outbox(opener(publisher), label="x", capacity=2)
        outbox.put_many([b"a", b"b", b"c", b"d", b"e"])
        outbox.start()
        await outbox.close(5.0)

        assert publisher.published == [b"d", b"e"]
        assert outbox.counts().dropped == {"queue_full": 3}

    asyncio.run(run())


def test_close_gives_up_at_the_deadline() -> None:
    """RELAY-08: A plane that hangs through the stop costs what is left, the payload in flight included."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        publisher.moving.clear()
        outbox = Outbox(opener(publisher), label="x")
        outbox.start()
        outbox.put_many([b"a", b"b", b"c"])
        await _settle()
        await outbox.close(0.0)
        counts = outbox.counts()

        assert counts.dropped == {"deadline": 3}
        assert counts.pending == 0
        assert publisher.closes == 1

    asyncio.run(run())


def test_failures_cost_one_payload_each(caplog: pytest.LogCaptureFixture) -> None:
    """Each way to fail is counted by its reason, said once per kind, and the next payload goes out."""

    async def run() -> None:
        faults: dict[bytes, Exception] = {
            b"big": PayloadTooLarge(9, 8),
            b"away": PlaneUnavailable("not now"),
            b"bug": KeyError("bug in the plane"),
        }
        publisher = ScriptedPublisher(faults)
        outbox = Outbox(opener(publisher), label="x")
        outbox.start()
        outbox.put_many([b"big", b"1", b"away", b"away", b"2", b"bug", b"3"])
        await outbox.close(5.0)

        assert publisher.published == [b"1", b"2", b"3"]
        assert outbox.counts().dropped == {"oversize": 1, "send_error": 2, "internal_error": 1}

    asyncio.run(run())

    levels = sorted(record.levelno for record in caplog.records)
    assert levels == [logging.WARNING, logging.WARNING, logging.ERROR]


def test_a_closed_publisher_is_replaced() -> None:
    """A publisher that says it is closed is left and a new one opened; only its payload is lost."""

    async def run() -> None:
        first, second = ScriptedPublisher({b"b": PlaneClosed("gone")}), ScriptedPublisher()
        outbox = Outbox(opener(first, second), label="x")
        outbox.start()
        outbox.put_many([b"a", b"b", b"c"])
        await outbox.close(5.0)

        assert (first.published, second.published) == ([b"a"], [b"c"])
        assert (first.closes, second.closes) == (1, 1)
        assert outbox.counts().dropped == {"send_error": 1}

    asyncio.run(run())


def test_a_plane_that_opens_late() -> None:
    """What is put before the plane can be opened waits for it."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        outbox = Outbox(opener(PlaneUnavailable("not yet"), publisher), label="x")
        outbox.start()
        outbox.put_many([b"early"])
        for _ in range(200):
            if publisher.published:
                break
            await asyncio.sleep(0.01)
        await outbox.close(5.0)

        assert publisher.published == [b"early"]

    asyncio.run(run())


def test_a_plane_that_never_opens_does_not_hold_up_the_stop() -> None:
    """Closing does not wait for a plane that cannot be opened; what waited is counted as lost."""

    async def run() -> None:
        outbox = Outbox(opener(PlaneUnavailable("never")), label="x")
        outbox.start()
        outbox.put_many([b"a", b"b"])
        await _settle()
        async with asyncio.timeout(2.0):
            await outbox.close(60.0)

        assert outbox.counts().dropped == {"deadline": 2}

    asyncio.run(run())


def test_a_plane_that_never_waits_lets_others_run() -> None:
    """A publish that never suspends does not starve the event loop."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        outbox = Outbox(opener(publisher), label="x", capacity=10_000)
        outbox.start()
        await _settle()
        outbox.put_many([b"x"] * 5000)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

        assert 0 < len(publisher.published) < 5000
        await outbox.close(5.0)
        assert len(publisher.published) == 5000

    asyncio.run(run())


def test_put_after_close_is_refused() -> None:
    """After close nothing is accepted, and that is counted."""

    async def run() -> None:
        outbox = Outbox(opener(ScriptedPublisher()), label="x")
        outbox.start()
        await outbox.close(1.0)
        outbox.put_many([b"late"])

        assert outbox.counts().dropped == {"closed": 1}

    asyncio.run(run())


def test_close_without_start() -> None:
    """An outbox that never started closes, and its payloads are lost, not forgotten."""

    async def run() -> None:
        outbox = Outbox(opener(ScriptedPublisher()), label="x")
        outbox.put_many([b"a"])
        await outbox.close(1.0)

        assert outbox.counts().dropped == {"deadline": 1}

    asyncio.run(run())


def test_a_wrong_setting_is_said_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """A plane that its settings keep from opening is the operator's to correct: one warning, no traceback."""

    async def run() -> None:
        error = ConfigError("DYN_DISCOVERY_BACKEND", "kubernetes", "etcd or file")
        outbox = Outbox(opener(error), label="tcp://a:1", capacity=4)
        outbox.start()
        await _settle()
        await outbox.close(0.0)

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    (line,) = caplog.records

    assert (line.levelno, line.exc_info) == (logging.WARNING, False)
    assert "DYN_DISCOVERY_BACKEND" in line.getMessage()


def test_large_payloads_do_not_pile_up() -> None:
    """RELAY-06: While the plane hangs, payloads of a megabyte are bounded by their bytes; the newest stay."""

    async def run() -> None:
        publisher = ScriptedPublisher()
        publisher.moving.clear()
        outbox = Outbox(opener(publisher), label="x")
        outbox.start()
        await _settle()
        for number in range(200):
            outbox.put_many([number.to_bytes(1, "big") + bytes(1_000_000)])
        waiting = outbox.counts().pending
        publisher.moving.set()
        await outbox.close(5.0)
        counts = outbox.counts()

        assert waiting * 1_000_001 <= OUTBOX_BYTES
        assert publisher.published[-1][0] == 199
        assert len(publisher.published) == counts.delivered == waiting
        assert counts.dropped == {"queue_full": 200 - waiting}

    asyncio.run(run())


def test_a_plane_that_never_waits_keeps_up() -> None:
    """RELAY-06: Turn by turn as many payloads are published as a relay takes, so that none is dropped for the
    next ones.
    """

    async def run() -> None:
        publisher = ScriptedPublisher()
        outbox = Outbox(opener(publisher), label="x", capacity=3 * RECEIVE_LIMIT)
        outbox.start()
        await _settle()
        for _ in range(20):
            outbox.put_many([b"x"] * RECEIVE_LIMIT)
            await asyncio.sleep(0)
        await outbox.close(5.0)

        assert len(publisher.published) == 20 * RECEIVE_LIMIT
        assert outbox.counts().dropped == {}

    asyncio.run(run())
