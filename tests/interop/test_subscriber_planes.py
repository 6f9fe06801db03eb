"""Our subscriber beside Dynamo's own, on the planes that Dynamo's own publisher uses."""

from __future__ import annotations

import asyncio
import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from dynamo_zmq_peer import INSTALLED, PATIENCE_SECONDS, Peer

from forwardpass import AsyncFpmSubscriber, FpmSubscriber
from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.cards import register_worker
from forwardpass.testing.nats_server import find_nats_server, nats_server
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import Endpoint

pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs ai-dynamo-runtime")

ENDPOINT = Endpoint("my ns", "back-end", "gen_1")
WORKER = "4711"


@pytest.fixture(params=["zmq", "nats"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of a deployment with this plane, for both sides."""
    common = {
        "DYN_EVENT_PLANE": str(request.param),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(tmp_path / "kv"),
        "DYN_EVENT_PLANE_HOST": "127.0.0.1",
    }
    if request.param == "zmq":
        yield common
        return
    if find_nats_server() is None or importlib.util.find_spec("nats") is None:
        pytest.skip("needs nats-server and nats-py")
    with nats_server() as server:
        yield common | {"NATS_SERVER": server.url}


def peer(environment: dict[str, str], role: str, *arguments: str) -> Peer:
    """Return Dynamo's end of the plane."""
    return Peer("file", role, *arguments, env=environment, endpoint=str(ENDPOINT))


def busy(number: int) -> dict[str, object]:
    """Return a pass of rank 1 that is no heartbeat."""
    return {"dp_rank": 1, "scheduled_num_decode_requests": number, "scheduled_sum_decode_kv_tokens": 900}


async def until(true: Callable[[], bool]) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not true():
            await asyncio.sleep(0.02)


def test_both_trackers_show_the_same(environment: dict[str, str]) -> None:
    """SUB-05, SUB-06, SUB-07, SUB-13: Dynamo's publisher, restarted once, is hidden without a card, shown
    with one and hidden again without it, by Dynamo's tracker and by ours with the same bytes; ours sees the
    restart.
    """
    context = PlaneContext(sources=Sources(environment))
    url = f"{environment['DYN_EVENT_PLANE']}:"

    async def work() -> None:
        with peer(environment, "track") as theirs, peer(environment, "publish", WORKER, "2") as first:
            async with AsyncFpmSubscriber(url, ENDPOINT, context=context) as subscriber:
                await subscriber.start_tracking()
                await until(lambda: subscriber.tracker_counts().messages > 0)  # heartbeats
                assert subscriber.get_recent_stats() == {}
                card = await register_worker(ENDPOINT, WORKER, context, display_name="tiny")
                await until(lambda: len(subscriber.get_recent_stats()) == 2)
                assert '"display_name":"tiny"' in subscriber.get_model_cards()[WORKER].replace(" ", "")

                async def same(number: int, publisher: Peer) -> None:
                    """Publish a pass until both show it."""
                    async with asyncio.timeout(PATIENCE_SECONDS):
                        while True:
                            await asyncio.to_thread(lambda: publisher.ask(**busy(number)))
                            await asyncio.sleep(0.05)
                            stats = (await asyncio.to_thread(theirs.ask))["stats"]
                            shown = {(worker, rank): bytes.fromhex(data) for worker, rank, data in stats}
                            ours = subscriber.get_recent_stats()
                            data = ours.get((WORKER, 1), b"\x80")
                            decodes = decode_strict(data).scheduled_requests.num_decode_requests
                            if shown.get((WORKER, 1)) == data and decodes == number:
                                return

                await same(1, first)
                before = subscriber.get_recent()[(WORKER, 1)]  # type: ignore[index]
                await asyncio.to_thread(first.leave)
                with peer(environment, "publish", WORKER, "2") as second:
                    await same(2, second)
                    after = subscriber.get_recent()[(WORKER, 1)]  # type: ignore[index]
                    assert (before.epoch, after.epoch) == (0, 1)
                    assert before.publisher_id != after.publisher_id
                    assert after.counters.missing == after.counters.decreases == 0
                    await card.close()
                    await until(lambda: subscriber.get_recent_stats() == {})
                    await asyncio.to_thread(lambda: second.ask(**busy(3)))
                    assert subscriber.get_recent_stats() == {}

    asyncio.run(work())


def test_the_blocking_form_receives(environment: dict[str, str]) -> None:
    """SUB-03, SUB-16: The blocking form gives what Dynamo's publisher sends, in order, with its numbers."""
    context = PlaneContext(sources=Sources(environment))
    url = f"{environment['DYN_EVENT_PLANE']}:"
    with (
        peer(environment, "publish", WORKER, "2") as theirs,
        FpmSubscriber(url, ENDPOINT, context=context) as ours,
    ):
        heartbeat = ours.recv_envelope(PATIENCE_SECONDS)
        assert heartbeat is not None
        for number in range(1, 6):
            theirs.ask(**busy(number))
        received = []
        while len(received) < 5:
            envelope = ours.recv_envelope(PATIENCE_SECONDS)
            assert envelope is not None
            if decode_strict(envelope.payload).wall_time:
                received.append(envelope)

    assert [decode_strict(e.payload).scheduled_requests.num_decode_requests for e in received] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert {envelope.publisher_id for envelope in received} == {heartbeat.publisher_id}
    assert received[0].sequence > heartbeat.sequence
    assert abs(received[0].published_at_ms - time.time() * 1000) < 60_000
