"""Discovery through a folder, in real time."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path

import pytest

from forwardpass.clock import SystemClock
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError, MissingExtra, PlaneUnavailable
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.base import EVENT_CHANNELS, MODEL_CARDS, RecordChange
from forwardpass.plane.discovery.cards import register_worker, watch_workers
from forwardpass.plane.discovery.changes import RecordChanges
from forwardpass.plane.discovery.choose import open_discovery
from forwardpass.plane.discovery.file import FileDiscovery
from forwardpass.plane.discovery.file_names import file_name
from forwardpass.plane.discovery.records import card_path, write_card
from forwardpass.plane.urls import open_publisher, open_subscriber
from forwardpass.wire.keys import Endpoint

PATIENCE_SECONDS = 10.0
HERE = Endpoint("a", "b", "c")
LOCAL = {"DYN_EVENT_PLANE_HOST": "127.0.0.1"}


async def following(changes: RecordChanges) -> RecordChange:
    """Return the next change."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return await anext(changes)


def test_records_come_change_and_go(tmp_path: Path) -> None:
    """PLANE-12: A watch tells what is there, what comes, what changes and what goes, in a folder that need
    not exist when it begins.
    """

    async def run() -> None:
        discovery, other = (FileDiscovery(tmp_path / "kv", SystemClock()) for _ in range(2))
        watch = await other.watch("bucket", "x/")
        await discovery.register("bucket", "y/elsewhere", b"0")
        one = await discovery.register("bucket", "x/1", b"first")
        assert await following(watch) == RecordChange("x/1", b"first")
        (tmp_path / "kv" / "bucket" / "x%2F1").write_bytes(b"second")
        assert await following(watch) == RecordChange("x/1", b"second")
        second_watch = await discovery.watch("bucket", "x/")
        assert await following(second_watch) == RecordChange("x/1", b"second")
        await one.close()
        await one.close()
        for each in (watch, second_watch):
            assert await following(each) == RecordChange("x/1", None)
        await discovery.close()
        await other.close()
        assert [change async for change in watch] == []
        assert list((tmp_path / "kv" / "bucket").iterdir()) == []

    asyncio.run(run())


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    """PLANE-12: Where the folder cannot be made or read, or a name is too long for a file, the plane is
    unavailable.
    """
    (tmp_path / "file").write_bytes(b"")
    wrong = [f"zmq+file:{tmp_path}/file", f"zmq+file:{tmp_path}/{'x' * 300}"]

    async def run() -> None:
        context = PlaneContext(sources=Sources(LOCAL))
        for url in wrong:
            with pytest.raises(PlaneUnavailable):
                await open_publisher(url, HERE, context=context)
            with pytest.raises(PlaneUnavailable):
                await open_subscriber(url, HERE, context=context)
        with pytest.raises(PlaneUnavailable):
            await open_publisher(f"zmq+file:{tmp_path}", Endpoint("a" * 300, "b", "c"), context=context)

    asyncio.run(run())


def test_which_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-12: The URL's folder is used, else that of DYN_FILE_KV, else dynamo_store_kv in the temporary
    folder.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    cases = [
        (f"file:{tmp_path}/u", {"DYN_FILE_KV": "/elsewhere"}, tmp_path / "u"),
        (f"file://{tmp_path}/u2", {}, tmp_path / "u2"),
        ("file", {"DYN_FILE_KV": str(tmp_path / "v")}, tmp_path / "v"),
        ("", {"DYN_DISCOVERY_BACKEND": "file"}, tmp_path / "tmp" / "dynamo_store_kv"),
    ]

    async def run() -> None:
        for text, variables, folder in cases:
            discovery = open_discovery(text, PlaneContext(sources=Sources(variables)))
            await discovery.register("bucket", "x", b"1")
            assert (folder / "bucket" / "x").is_file()
            await discovery.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("text", "variables", "variable"),
    [
        ("", {"DYN_DISCOVERY_BACKEND": "kubernetes"}, "DYN_DISCOVERY_BACKEND"),
        ("", {"DYN_DISCOVERY_BACKEND": "zookeeper"}, "DYN_DISCOVERY_BACKEND"),
        ("", {"ETCD_ENDPOINTS": "https://e:2379"}, "ETCD_ENDPOINTS"),
        ("etcd:e", {}, "discovery"),
        ("mem:", {}, "discovery"),
        ("zookeeper:x", {}, "discovery"),
        ("file:a\0b", {}, "discovery"),
    ],
)
def test_wrong_backends(text: str, variables: dict[str, str], variable: str) -> None:
    """PLANE-15: A backend that does not exist here, and kubernetes, is the operator's error, which says what
    else there is.
    """
    with pytest.raises(ConfigError) as caught:
        open_discovery(text, PlaneContext(sources=Sources(variables)))

    assert caught.value.variable == variable
    if "kubernetes" in variables.values():
        assert "DYN_EVENT_PLANE=nats" in str(caught.value)
        assert "zmq+tcp://" in str(caught.value)


def test_etcd_without_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-15: Without the library for etcd the error says how to get it."""
    monkeypatch.setitem(sys.modules, "aetcd", None)
    with pytest.raises(MissingExtra) as caught:
        open_discovery("etcd:127.0.0.1:2379", PlaneContext(sources=Sources({})))

    assert (caught.value.module, caught.value.extra) == ("aetcd", "etcd")


def test_a_hostile_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """PLANE-13: Junk among the records is said once and passed over; an honest publisher is still read."""

    async def run() -> None:
        context = PlaneContext(sources=Sources(LOCAL))
        publisher = await open_publisher(f"zmq+file:{tmp_path}", HERE, context=context)
        folder = tmp_path / EVENT_CHANNELS
        (honest,) = folder.iterdir()
        record = json.loads(honest.read_bytes())
        wrong = {
            "0a": b"no JSON",
            "0b": b"[" * 100_000,
            "0c": json.dumps({**record, "type": "Later"}).encode(),
            "0d": json.dumps({**record, "topic": "\x1b[2J"}).encode(),
            "0e": honest.read_bytes().replace(b"tcp://", b"ipc://"),
            "0f": bytes(2_000_000),
        }
        stem = honest.name.removesuffix(f"{publisher.publisher_id:x}")
        for name, value in wrong.items():
            (folder / f"{stem}{name}").write_bytes(value)
        (folder / f"{stem}1a").symlink_to("/etc/passwd")
        (folder / f"{stem}1b").mkdir()
        os.mkfifo(folder / f"{stem}1c")
        subscriber = await open_subscriber(f"zmq+file:{tmp_path}", HERE, context=context)
        async with asyncio.timeout(PATIENCE_SECONDS):
            receiving = asyncio.ensure_future(anext(aiter(subscriber)))
            while not receiving.done():
                await publisher.publish(b"honest")
                await asyncio.sleep(0.02)
        assert (await receiving).payload == b"honest"
        await subscriber.close()
        await publisher.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())
    lines = [record.getMessage() for record in caplog.records]

    assert len(lines) == 2  # one for records that say something else, one for the large file
    assert not [line for line in lines if "\x1b" in line]


def test_cards_of_workers(tmp_path: Path) -> None:
    """PLANE-16: A worker is known by its base card, else by an adapter's; it is gone with its last card."""

    async def run() -> None:
        context = PlaneContext(
            sources=Sources({"DYN_FILE_KV": str(tmp_path), "DYN_DISCOVERY_BACKEND": "file"})
        )
        watch = await watch_workers(HERE, context)
        events = aiter(watch)

        async def seen() -> tuple[str, str | None]:
            async with asyncio.timeout(PATIENCE_SECONDS):
                event = await anext(events)
            name = None if event.card is None else json.loads(event.card)["display_name"]
            return event.worker_id, name

        adapter = await register_worker(HERE, "26", context, display_name="adapter", adapter="l1")
        assert await seen() == ("26", "adapter")
        base = await register_worker(HERE, "26", context, display_name="base")
        assert await seen() == ("26", "base")
        other = await register_worker(HERE, "27", context, display_name="other")
        assert await seen() == ("27", "other")
        # the card of another worker in this one's place, and an unreadable one, are nobody's
        bucket = tmp_path / MODEL_CARDS
        (bucket / file_name(card_path(HERE, 99))).write_bytes(write_card(HERE, 26, {"display_name": "false"}))
        (bucket / file_name(card_path(HERE, 98))).write_bytes(b"{")
        await base.close()
        assert await seen() == ("26", "adapter")
        await adapter.close()
        assert await seen() == ("26", None)
        await other.close()
        assert await seen() == ("27", None)
        await watch.close()
        with pytest.raises(StopAsyncIteration):
            await anext(events)

    asyncio.run(run())


@pytest.mark.parametrize("worker_id", ["", "w7", "-1", "+1", "01", "1.0", str(2**64), "٣", "1" * 1_000_000])
def test_a_worker_id_that_is_none(worker_id: str) -> None:
    """PLANE-16: Only a decimal unsigned 64-bit id can be registered, because cards name workers by number."""
    context = PlaneContext(sources=Sources({}))
    with pytest.raises(ConfigError) as caught:
        asyncio.run(register_worker(HERE, worker_id, context, display_name="x", discovery="mem:ids"))

    assert caught.value.variable == "worker_id"
