"""The ZMQ plane found through a real etcd: our own ends, and Dynamo's runtime at either."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
from dynamo_zmq_peer import INSTALLED, PATIENCE_SECONDS, Peer
from plane_servers import ETCD, Etcd

from forwardpass.config.settings import Sources
from forwardpass.errors import PlaneUnavailable
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.base import EVENT_CHANNELS, Discovery
from forwardpass.plane.discovery.cards import register_worker, watch_workers
from forwardpass.plane.discovery.choose import open_discovery
from forwardpass.plane.urls import open_publisher, open_subscriber
from forwardpass.plane.zmq import factory
from forwardpass.testing.conformance_plane import CHECKS, Check, PlaneRig
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import Endpoint

pytestmark = pytest.mark.skipif(ETCD is None, reason="needs etcd")
pytest.importorskip("aetcd")

ENDPOINT = Endpoint("my ns", "back-end", "gen_1")
_names = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """Run etcd."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()


def variables(etcd: Etcd, lease_seconds: int = 30) -> dict[str, str]:
    """Return Dynamo's variables for it."""
    return {
        "ETCD_ENDPOINTS": f"http://{etcd.server}",
        "ETCD_LEASE_TTL": str(lease_seconds),
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    }


async def until(reached: Callable[[], Awaitable[bool]] | Callable[[], bool], what: str) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        answer = reached()
        if answer if isinstance(answer, bool) else await answer:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"did not happen: {what}")


async def records(discovery: Discovery, prefix: str = "") -> dict[str, bytes]:
    """Return what is registered."""
    watch = await discovery.watch(EVENT_CHANNELS, f"namespace/{prefix}")
    await watch.close()
    return {change.path: change.value or b"" async for change in watch}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_zmq_plane_through_etcd(check: Check, etcd: Etcd) -> None:
    """PLANE-01: Found through etcd, the ZMQ plane keeps each promise that every plane must keep."""

    async def run() -> None:
        context = PlaneContext(sources=Sources(variables(etcd)))
        await check(PlaneRig(factory, f"zmq+etcd:{etcd.server}", context, 0.15))
        discovery = open_discovery(f"etcd:{etcd.server}", context)
        assert await records(discovery) == {}, "closed publishers leave no record"
        await discovery.close()

    asyncio.run(run())


@pytest.mark.skipif(not INSTALLED, reason="needs ai-dynamo-runtime")
def test_dynamo_through_etcd(etcd: Etcd) -> None:
    """PLANE-15: Through one etcd Dynamo's publisher reaches our subscriber and ours Dynamo's; a worker that
    leaves takes its record along.
    """
    context = PlaneContext(sources=Sources(variables(etcd)))

    async def run() -> None:
        subscriber = await open_subscriber("zmq:", ENDPOINT, context=context)
        discovery = open_discovery("", context)
        with Peer("etcd", "publish", "w9", "1", env=variables(etcd), endpoint=str(ENDPOINT)) as theirs:
            async with asyncio.timeout(PATIENCE_SECONDS):
                message = await anext(aiter(subscriber))
            assert decode_strict(message.payload).worker_id == "w9"
            assert len(await records(discovery)) == 1
            await asyncio.to_thread(theirs.leave)

        async def is_empty() -> bool:
            return await records(discovery) == {}

        await until(is_empty, "their record goes")
        await subscriber.close()
        publisher = await open_publisher("zmq:", ENDPOINT, context=context)
        with Peer("etcd", "receive", env=variables(etcd), endpoint=str(ENDPOINT)) as other:
            repeating = asyncio.create_task(_repeat(publisher))
            assert await asyncio.to_thread(other.payloads, lambda data: True, 1) == [b"ours"]
            repeating.cancel()
        await publisher.close()
        await until(is_empty, "our record goes")
        await discovery.close()

    asyncio.run(run())


def test_cards_through_etcd(etcd: Etcd) -> None:
    """PLANE-16: Model cards in etcd are seen as they come and go."""
    context = PlaneContext(sources=Sources(variables(etcd)))

    async def run() -> None:
        watch = await watch_workers(ENDPOINT, context, discovery=f"etcd:{etcd.server}")
        events = aiter(watch)
        async with asyncio.timeout(PATIENCE_SECONDS):
            card = await register_worker(ENDPOINT, "12", context, display_name="tiny")
            assert (await anext(events)).card is not None
            with pytest.raises(PlaneUnavailable):
                await register_worker(ENDPOINT, "12", context, display_name="another")
            await card.close()
            assert (await anext(events)).card is None
        await watch.close()

    asyncio.run(run())


def test_a_lost_lease(etcd: Etcd) -> None:
    """PLANE-15: A record whose lease etcd forgot is written again under a new one."""

    async def run() -> None:
        context = PlaneContext(sources=Sources(variables(etcd, lease_seconds=2)))
        discovery = open_discovery("", context)
        await discovery.register(EVENT_CHANNELS, "namespace/lost", b"{}")
        watch = await discovery.watch(EVENT_CHANNELS, "namespace/lost")
        changes = aiter(watch)
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert (await anext(changes)).value == b"{}"
            await asyncio.to_thread(etcd.revoke_all_leases)
            assert (await anext(changes)).value is None
            assert (await anext(changes)).value == b"{}"
        await discovery.close()
        assert {change.value async for change in watch} <= {None}  # the record may go before the watch ends

    asyncio.run(run())


def test_a_lost_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    """PLANE-15: After etcd was away a watch goes on: what changed since is told, what was there is not."""
    server = Etcd(tmp_path_factory.mktemp("etcd"))
    server.start()

    async def run() -> None:
        context = PlaneContext(sources=Sources(variables(server)))
        discovery, other, third = (open_discovery("", context) for _ in range(3))
        kept = await discovery.register(EVENT_CHANNELS, "namespace/kept", b"{}")
        watch = await other.watch(EVENT_CHANNELS, "namespace/")
        changes = aiter(watch)
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            assert (await anext(changes)).path == "namespace/kept"
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await third.register(EVENT_CHANNELS, "namespace/later", b"{}")
            assert (await anext(changes)).path == "namespace/later"
            await kept.close()
            change = await anext(changes)
        assert (change.path, change.value) == ("namespace/kept", None)
        for each in (discovery, other, third):
            await each.close()

    try:
        asyncio.run(run())
    finally:
        server.stop()


def test_another_server_takes_over(etcd: Etcd, tmp_path_factory: pytest.TempPathFactory) -> None:
    """PLANE-15: Of several servers the first that answers is used; when it dies, records and watches turn to
    another.
    """
    first = Etcd(tmp_path_factory.mktemp("etcd"))
    first.start()

    async def run() -> None:
        servers = f"http://127.0.0.1:{free_port()},http://{first.server},http://{etcd.server}"
        given = {**variables(etcd, lease_seconds=2), "ETCD_ENDPOINTS": servers}
        discovery = open_discovery("", PlaneContext(sources=Sources(given)))
        await discovery.register(EVENT_CHANNELS, "namespace/moving", b"{}")
        watch = await discovery.watch(EVENT_CHANNELS, "namespace/")
        changes = aiter(watch)
        other = open_discovery(f"etcd:{etcd.server}", PlaneContext(sources=Sources({})))
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            assert (await anext(changes)).path == "namespace/moving"
            assert await records(other) == {}
            await asyncio.to_thread(first.stop)
            while await records(other) == {}:
                await asyncio.sleep(0.05)
            later = await other.register(EVENT_CHANNELS, "namespace/later", b"{}")
            seen = set()
            while "namespace/later" not in seen:
                seen.add((await anext(changes)).path)
        await later.close()
        await other.close()
        await discovery.close()

    try:
        asyncio.run(run())
    finally:
        first.stop()


def test_no_etcd() -> None:
    """PLANE-15: Where no etcd answers, the plane is unavailable, and says which servers were asked."""
    server = f"127.0.0.1:{free_port()}"
    context = PlaneContext(sources=Sources({"DYN_EVENT_PLANE_HOST": "127.0.0.1"}))

    async def run() -> None:
        with pytest.raises(PlaneUnavailable, match=server):
            await open_publisher(f"zmq+etcd:{server}", ENDPOINT, context=context)
        with pytest.raises(PlaneUnavailable, match=server):
            await open_subscriber(f"zmq+etcd://{server}", ENDPOINT, context=context)

    asyncio.run(run())


async def _repeat(publisher: object) -> None:
    """Publish until cancelled: what is sent before the peer is connected is lost."""
    while True:
        await publisher.publish(b"ours")  # type: ignore[attr-defined]
        await asyncio.sleep(0.05)
