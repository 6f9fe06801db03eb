"""The asynchronous subscriber, on the plane inside one process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from subscriber_peers import Workers, payload, plane_url, publisher_at, run, until

from forwardpass import AsyncFpmSubscriber
from forwardpass.counters import StageCounts
from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane import memory
from forwardpass.plane.base import TOPIC, PlaneContext, PlaneMessage, PlanePublisher, PlaneSubscriber
from forwardpass.plane.workers import WorkerWatch
from forwardpass.wire.keys import Endpoint


async def joined(subscriber: AsyncFpmSubscriber) -> None:
    """Let a subscriber join the plane."""
    with pytest.raises(TimeoutError):
        await subscriber.recv(0.001)


# --- receiving -------------------------------------------------------------------------------------


def test_payloads_as_they_were_published() -> None:
    """SUB-01: recv gives every payload of the endpoint in order, undecoded, from all its publishers."""

    async def work() -> list[bytes | None]:
        where = plane_url()
        async with (
            AsyncFpmSubscriber(where, "dynamo.backend.generate") as subscriber,
            publisher_at(where) as one,
            publisher_at(where) as two,
            publisher_at(where, Endpoint("other")) as other,
        ):
            await joined(subscriber)
            await one.publish(payload())
            await other.publish(payload("8"))
            await two.publish(b"junk")
            await one.publish(b"")
            return [await subscriber.recv() for _ in range(3)]

    assert run(work) == [payload(), b"junk", b""]


def test_nothing_is_opened_before_the_first_use() -> None:
    """SUB-02: A subscriber that is only made is not on the plane, even with a URL that nobody provides."""

    async def work() -> StageCounts:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as unused, publisher_at(where) as one:
            await one.publish(payload())
            AsyncFpmSubscriber("nosuch:plane")
            return unused.counts()

    assert run(work) == StageCounts(0, 0, 0, 0, {})


def test_an_envelope_says_where_a_payload_comes_from() -> None:
    """SUB-03: recv_envelope gives publisher, sequence, topic, endpoint and both times with the payload, in
    turn with recv.
    """

    async def work() -> tuple[list[PlaneMessage | None], int]:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            await joined(subscriber)
            for counter in range(3):
                await one.publish(payload(counter=counter))
            first = await subscriber.recv_envelope()
            assert await subscriber.recv() == payload(counter=1)
            return [first, await subscriber.recv_envelope()], one.publisher_id

    (first, last), publisher_id = run(work)

    assert first is not None
    assert last is not None
    assert (first.publisher_id, last.publisher_id) == (publisher_id, publisher_id)
    assert (first.sequence, last.sequence) == (0, 2)
    assert (first.topic, first.endpoint) == (TOPIC, Endpoint())
    assert first.received_at_ms >= first.published_at_ms > 0
    assert last.payload == payload(counter=2)


def test_giving_up_loses_nothing() -> None:
    """SUB-03: Neither a timeout nor a cancelled recv loses a message or ends the plane's iterator."""

    async def work() -> list[bytes | None]:
        where = plane_url()
        async with (
            AsyncFpmSubscriber(where, plane=_Generating()) as subscriber,
            publisher_at(where) as one,
        ):
            await joined(subscriber)
            cancelled = asyncio.ensure_future(subscriber.recv())
            await asyncio.sleep(0)
            cancelled.cancel()
            await asyncio.gather(cancelled, return_exceptions=True)
            await joined(subscriber)
            await one.publish(payload(counter=1))
            await one.publish(payload(counter=2))
            return [await subscriber.recv(), await subscriber.recv(5)]

    assert run(work) == [payload(counter=1), payload(counter=2)]


def test_several_receivers_take_turns() -> None:
    """SUB-03: Each message goes to one of several that wait."""

    async def work() -> set[bytes | None]:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            await joined(subscriber)
            waiting = [asyncio.ensure_future(subscriber.recv()) for _ in range(5)]
            for counter in range(5):
                await one.publish(payload(counter=counter))
            return set(await asyncio.gather(*waiting))

    assert run(work) == {payload(counter=counter) for counter in range(5)}


def test_shutdown_wakes_receivers() -> None:
    """SUB-04: Whoever waits in recv gets None at shutdown, and so does every call after it; a second shutdown
    is nothing.
    """

    async def work() -> list[object]:
        subscriber = AsyncFpmSubscriber(plane_url())
        waiting = [asyncio.ensure_future(subscriber.recv()) for _ in range(3)]
        await asyncio.sleep(0)
        await subscriber.shutdown()
        await subscriber.shutdown()
        return [*await asyncio.gather(*waiting), await subscriber.recv_envelope(), subscriber.closed]

    assert run(work) == [None, None, None, None, True]


def test_the_end_of_the_plane_is_none() -> None:
    """SUB-04: A plane that ends gives what is left, and then None."""

    async def work() -> list[bytes | None]:
        plane = _Ending([payload(), payload(counter=1)])
        async with AsyncFpmSubscriber("ends:", plane=plane) as subscriber:
            return [await subscriber.recv() for _ in range(4)]

    assert run(work) == [payload(), payload(counter=1), None, None]


def test_a_plane_that_cannot_be_opened_is_tried_again() -> None:
    """SUB-04: recv raises what the plane does when it is opened, and a later call opens it anew."""

    async def work() -> bytes | None:
        plane = _Ending([payload()], failures=2)
        async with AsyncFpmSubscriber("ends:", plane=plane) as subscriber:
            for _ in range(2):
                with pytest.raises(PlaneUnavailable):
                    await subscriber.recv()
            return await subscriber.recv()

    assert run(work) == payload()


def test_a_slow_receiver_loses_the_oldest_counted() -> None:
    """SUB-14: What waits is bounded; the oldest go, and the counts say how many (D-22)."""

    async def work() -> tuple[bytes | None, StageCounts]:
        where = plane_url()
        context = PlaneContext(receive_capacity=10)
        async with AsyncFpmSubscriber(where, context=context) as subscriber, publisher_at(where) as one:
            await joined(subscriber)
            await one.publish(payload(counter=0))
            assert await subscriber.recv() == payload(counter=0)
            for counter in range(1, 101):
                await one.publish(payload(counter=counter))
            return await subscriber.recv(), subscriber.counts()

    first, counts = run(work)

    assert first == payload(counter=91)
    assert counts.dropped == {"queue_full": 90}
    assert counts.offered == counts.delivered + counts.pending + 90


def test_the_capacity_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SUB-14: Without a context the variable says how much may wait; what is no number is refused."""
    monkeypatch.setenv("DYN_ZMQ_EVENT_SUBSCRIBER_CHANNEL_CAPACITY", "3")

    async def work() -> StageCounts:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            await joined(subscriber)
            for counter in range(10):
                await one.publish(payload(counter=counter))
            return subscriber.counts()

    assert run(work).dropped["queue_full"] >= 6
    monkeypatch.setenv("DYN_ZMQ_EVENT_SUBSCRIBER_CHANNEL_CAPACITY", "many")
    with pytest.raises(ConfigError):
        AsyncFpmSubscriber("memory:x")


# --- tracking --------------------------------------------------------------------------------------


def test_the_latest_of_registered_workers() -> None:
    """SUB-05, SUB-06, SUB-07: Tracking shows the latest payload of each rank of the workers that have a card,
    hides what comes late of one that is gone, and shows it again when it is registered again.
    """

    async def work() -> None:
        where, workers = plane_url(), Workers()
        workers.change("7", '{"name":"m"}')
        async with (
            AsyncFpmSubscriber(where, workers=workers.open) as subscriber,
            publisher_at(where) as one,
        ):
            await subscriber.start_tracking()
            for worker, rank, counter in (("7", 0, 0), ("7", 1, 0), ("8", 0, 0), ("7", 0, 1)):
                await one.publish(payload(worker, rank, counter))
            expected = {("7", 0): payload("7", 0, 1), ("7", 1): payload("7", 1, 0)}
            await until(lambda: subscriber.get_recent_stats() == expected)
            assert subscriber.get_model_cards() == {"7": '{"name":"m"}'}
            workers.change("7", None)
            await until(lambda: subscriber.get_model_cards() == {})
            await one.publish(payload("7", 0, 2))
            await until(lambda: subscriber.tracker_counts().messages == 5)
            assert subscriber.get_recent_stats() == {}
            workers.change("7", "{}")
            await until(lambda: subscriber.get_recent_stats() == {("7", 0): payload("7", 0, 2)})
            entry = subscriber.get_recent()["7", 0]  # type: ignore[index]
            assert (entry.publisher_id, entry.counter_id, entry.epoch) == (one.publisher_id, 2, 0)

    run(work)


def test_everybody_is_shown_on_request() -> None:
    """SUB-09: Without require_known a publisher needs no card, and no watch is needed (D-21)."""

    async def work() -> dict[tuple[str, int], bytes]:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            await subscriber.start_tracking(require_known=False)
            await one.publish(payload("", 3))
            await until(lambda: subscriber.tracker_counts().messages == 1)
            assert subscriber.get_model_cards() == {}
            return subscriber.get_recent_stats(60)

    assert run(work) == {("", 3): payload("", 3)}


def test_registered_workers_need_a_watch() -> None:
    """SUB-09: require_known without a watch would show nothing for ever, and is refused."""

    async def work() -> str:
        async with AsyncFpmSubscriber(plane_url()) as subscriber:
            with pytest.raises(ConfigError) as caught:
                await subscriber.start_tracking()
            await subscriber.start_tracking(require_known=False)  # the refusal began nothing
            return caught.value.variable

    assert run(work) == "require_known"


def test_a_plane_that_registers_workers_is_watched_by_itself() -> None:
    """SUB-09: Where the plane has a watch of its own, require_known takes it; one that is given wins."""

    async def work() -> tuple[int, int]:
        own, given = Workers(), Workers()
        plane = _Registering([payload("7"), payload("8")], own)
        own.change("7", "{}")
        given.change("8", "{}")
        async with AsyncFpmSubscriber("ends:", plane=plane) as subscriber:
            await subscriber.start_tracking()
            await until(lambda: set(subscriber.get_recent_stats()) == {("7", 0)})
        async with AsyncFpmSubscriber("ends:", plane=plane, workers=given.open) as subscriber:
            await subscriber.start_tracking()
            await until(lambda: set(subscriber.get_recent_stats()) == {("8", 0)})
        async with AsyncFpmSubscriber("ends:", plane=plane) as subscriber:
            await subscriber.start_tracking(require_known=False)
            await until(lambda: len(subscriber.get_recent_stats()) == 2)
        return own.opened, given.opened

    assert run(work) == (1, 1)


def test_the_two_ways_exclude_each_other() -> None:
    """SUB-02: recv after start_tracking, start_tracking after recv or twice or after shutdown, and looking
    before it, are RuntimeErrors.
    """

    async def work() -> None:
        tracking, receiving = AsyncFpmSubscriber(plane_url()), AsyncFpmSubscriber(plane_url())
        for look in (tracking.get_recent, tracking.get_recent_stats, tracking.get_model_cards):
            with pytest.raises(RuntimeError):
                look()
        await joined(receiving)
        await tracking.start_tracking(require_known=False)
        for call in (tracking.recv, tracking.recv_envelope):
            with pytest.raises(RuntimeError):
                await call()
        for subscriber in (tracking, receiving):
            with pytest.raises(RuntimeError):
                await subscriber.start_tracking(require_known=False)
            await subscriber.shutdown()
            with pytest.raises(RuntimeError):
                await subscriber.start_tracking(require_known=False)
        assert tracking.get_recent_stats() == {}

    run(work)


def test_tracking_that_could_not_begin_can_be_tried_again() -> None:
    """SUB-02: start_tracking raises what the plane does, leaves nothing open, and may be called again."""

    async def work() -> tuple[int, int]:
        workers = Workers()
        plane = _Ending([payload()], failures=1)
        async with AsyncFpmSubscriber("ends:", plane=plane, workers=workers.open) as subscriber:
            with pytest.raises(PlaneUnavailable):
                await subscriber.start_tracking()
            left = workers.watching
            await subscriber.start_tracking(require_known=False)
            await until(lambda: len(subscriber.get_recent_stats()) == 1)
            return left, workers.watching

    assert run(work) == (0, 1)


def test_tracking_survives_failures(caplog: pytest.LogCaptureFixture) -> None:
    """SUB-15: A subscription or watch that fails is opened again and said; nobody counts as registered before
    the new watch names them, and one that went meanwhile stays hidden.
    """

    async def work() -> None:
        workers = Workers()
        for worker in ("7", "8"):
            workers.change(worker, "{}")
        plane = _Failing([payload("7"), payload("8")])
        async with AsyncFpmSubscriber("fails:", plane=plane, workers=workers.open) as subscriber:
            await subscriber.start_tracking()
            await until(lambda: set(subscriber.get_recent_stats()) == {("7", 0), ("8", 0)})
            await until(lambda: plane.opened >= 2)
            del workers.cards["8"]  # while nobody watches
            workers.fail()
            await until(lambda: workers.opened == 2 and set(subscriber.get_recent_stats()) == {("7", 0)})
            assert set(subscriber.get_model_cards()) == {"7"}

    with caplog.at_level(logging.WARNING):
        run(work)

    texts = {record.message for record in caplog.records}
    assert any(text.startswith("the subscription to 'dynamo.backend.generate' failed") for text in texts)
    assert any(text.startswith("the watch of workers") for text in texts)


def test_a_plane_that_ends_while_tracking_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """SUB-15: A plane that ends by itself leaves the last state, which grows old, and one warning."""

    async def work() -> set[tuple[str, int]]:
        async with AsyncFpmSubscriber("ends:", plane=_Ending([payload()])) as subscriber:
            await subscriber.start_tracking(require_known=False)
            await until(lambda: "has ended" in caplog.text)
            return set(subscriber.get_recent_stats())

    with caplog.at_level(logging.WARNING):
        assert run(work) == {("7", 0)}


def test_shutdown_while_tracking_leaves_nothing() -> None:
    """SUB-04: After shutdown the plane and the watch are left, and the last state can still be read."""

    async def work() -> tuple[dict[tuple[str, int], bytes], int, set[str]]:
        where, workers = plane_url(), Workers()
        workers.change("7", "{}")
        async with publisher_at(where) as one:
            subscriber = AsyncFpmSubscriber(where, workers=workers.open)
            await subscriber.start_tracking()
            await one.publish(payload())
            await until(lambda: len(subscriber.get_recent_stats()) == 1)
            await subscriber.shutdown()
            await one.publish(payload(counter=1))
            tasks = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
            return subscriber.get_recent_stats(), workers.watching, tasks

    recent, watching, tasks = run(work)

    assert recent == {("7", 0): payload()}
    assert watching == 0
    assert not any("follow" in name for name in tasks)


@pytest.mark.parametrize("close_error", [OSError("no"), None])
def test_a_plane_that_fails_or_hangs_when_it_is_left(
    close_error: Exception | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SUB-04: A plane that raises while it is closed, or never ends doing it, does not hold shutdown up."""
    monkeypatch.setattr("forwardpass.plane.following.CLOSE_SECONDS", 0.05)

    async def work() -> bytes | None:
        plane = _Ending([payload()], close_error=close_error, close_hangs=close_error is None)
        subscriber = AsyncFpmSubscriber("ends:", plane=plane)
        got = await subscriber.recv()
        await subscriber.shutdown()
        return got

    with caplog.at_level(logging.ERROR):
        assert run(work) == payload()

    assert "could not be closed" in caplog.text


@pytest.mark.parametrize("endpoint", ["", "a.b", "a..c", "a.b.c.d"])
def test_an_endpoint_that_is_none(endpoint: str) -> None:
    """SUB-01: A text that is no endpoint is refused at once, with what would be accepted."""
    with pytest.raises(ConfigError) as caught:
        AsyncFpmSubscriber("memory:x", endpoint)

    assert caught.value.accepted == "namespace.component.endpoint"


# --- planes that misbehave -------------------------------------------------------------------------


class _NoPublisher:
    async def open_publisher(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlanePublisher:
        raise PlaneUnavailable("this plane has no publishers")


class _Generating(_NoPublisher):
    """The memory plane whose iterator is a generator: cancelled while it waits, it would be over."""

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlaneSubscriber:
        inner = await memory.open_subscriber(url, endpoint, context)

        class Subscriber:
            counts = inner.counts
            close = inner.close

            async def __aiter__(self) -> AsyncIterator[PlaneMessage]:
                async for message in inner:
                    yield message

        return Subscriber()


def test_giving_up_once_messages_have_come() -> None:
    """SUB-03: Neither a wait in vain nor a cancellation loses a message, also after the first one came."""

    async def work() -> tuple[list[bytes | None], StageCounts]:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            with pytest.raises(TimeoutError):
                await subscriber.recv(0.01)
            await one.publish(b"1")
            got = [await subscriber.recv()]
            with pytest.raises(TimeoutError):
                await subscriber.recv(0.01)
            waiting = asyncio.create_task(subscriber.recv())
            await asyncio.sleep(0)
            await one.publish(b"2")  # it is there, and not taken yet
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await one.publish(b"3")
            return [*got, await subscriber.recv(), await subscriber.recv()], subscriber.counts()

    got, counts = run(work)

    assert got == [b"1", b"2", b"3"]
    assert (counts.delivered, counts.pending) == (3, 0)


def test_large_payloads_do_not_pile_up() -> None:
    """SUB-14: What waits is bounded by its bytes as well, whatever the payloads are; the newest stay."""

    async def work() -> tuple[StageCounts, bytes | None]:
        where, large = plane_url(), bytes(1_048_575)
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            with pytest.raises(TimeoutError):
                await subscriber.recv(0.01)
            await one.publish(b"first")
            await subscriber.recv()
            for _ in range(300):
                await one.publish(large)
            await one.publish(b"last")
            counts = subscriber.counts()
            for _ in range(counts.pending - 1):
                await subscriber.recv()
            return counts, await subscriber.recv()

    counts, last = run(work)

    assert last == b"last"
    assert 250 <= counts.pending <= 257
    assert counts.dropped == {"queue_full": 301 - counts.pending}


def test_a_full_queue_leaves_others_a_turn() -> None:
    """SUB-03: Who receives what waits already, message after message, does not stop the event loop."""

    async def work() -> int:
        where = plane_url()
        async with AsyncFpmSubscriber(where) as subscriber, publisher_at(where) as one:
            with pytest.raises(TimeoutError):
                await subscriber.recv(0.01)
            for _ in range(2000):
                await one.publish(b"x")
            turns = 0

            async def count() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            other = asyncio.create_task(count())
            for _ in range(2000):
                await subscriber.recv()
            other.cancel()
            return turns

    assert run(work) >= 5


class _Ending(_NoPublisher):
    """A plane that cannot be opened so many times, and then gives what it has and ends."""

    def __init__(
        self,
        payloads: list[bytes],
        *,
        failures: int = 0,
        close_error: Exception | None = None,
        close_hangs: bool = False,
    ) -> None:
        self.payloads = payloads
        self.failures = failures
        self.close_error = close_error
        self.close_hangs = close_hangs

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlaneSubscriber:
        plane = self
        if plane.failures:
            plane.failures -= 1
            raise PlaneUnavailable("not yet")

        class Subscriber:
            async def __aiter__(self) -> AsyncIterator[PlaneMessage]:
                for sequence, data in enumerate(plane.payloads):
                    yield PlaneMessage(data, endpoint, 1, sequence, 0, 0)

            def counts(self) -> StageCounts:
                return StageCounts(0, 0, 0, 0, {})

            async def close(self) -> None:
                if plane.close_error is not None:
                    raise plane.close_error
                if plane.close_hangs:
                    await asyncio.Event().wait()

        return Subscriber()


class _Registering(_Ending):
    """The same, with registered workers."""

    def __init__(self, payloads: list[bytes], workers: Workers) -> None:
        super().__init__(payloads)
        self.workers = workers

    async def watch_workers(self, url: str, endpoint: Endpoint, context: PlaneContext) -> WorkerWatch:
        return await self.workers.open()


class _Failing(_Ending):
    """A plane that fails after what it has, each time that it is opened."""

    opened = 0

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlaneSubscriber:
        self.opened += 1
        inner = await super().open_subscriber(url, endpoint, context)

        class Subscriber:
            counts = inner.counts
            close = inner.close

            async def __aiter__(self) -> AsyncIterator[PlaneMessage]:
                async for message in inner:
                    yield message
                raise OSError("the peer sent nonsense")

        return Subscriber()
