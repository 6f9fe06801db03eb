"""How a URL finds its plane."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from types import ModuleType

import pytest

from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane import memory, urls
from forwardpass.plane.base import PlaneContext, PlaneFactory
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.keys import Endpoint


def test_memory_is_known_without_installation() -> None:
    """Our own schemes come from the table, in any case of letters."""
    assert urls.find_plane("memory:x") is memory
    assert urls.find_plane("MEMORY:x") is memory
    assert "memory" in urls.schemes()


def test_a_module_is_a_factory() -> None:
    """A plane is a module with two coroutines; nothing needs to be registered or subclassed."""
    assert isinstance(memory, PlaneFactory)


@pytest.mark.parametrize("url", ["carrier-pigeon:x", "memory", "", ":x", "no scheme at all"])
def test_unknown_scheme(url: str) -> None:
    """An unknown scheme is the operator's error; it names what was found and the schemes that exist."""
    with pytest.raises(ConfigError) as caught:
        urls.find_plane(url)

    assert caught.value.value == url
    assert "memory:" in caught.value.accepted


@pytest.mark.parametrize("url", ["memory:", "memory:///", "memory: "])
def test_memory_needs_a_name(url: str) -> None:
    """A memory plane without a name is refused."""
    with pytest.raises(ConfigError):
        asyncio.run(urls.open_publisher(url, Endpoint()))


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Put a distribution on the path whose entry point adds the scheme ``pigeon``."""
    info = folder / "pigeon-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[forwardpass.planes]\npigeon = {value}\n")
    monkeypatch.syspath_prepend(str(folder))


def test_a_third_party_adds_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point in the group adds a plane without touching this package."""
    plane = ModuleType("pigeon_plane")
    plane.open_publisher = memory.open_publisher  # type: ignore[attr-defined]
    plane.open_subscriber = memory.open_subscriber  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pigeon_plane", plane)
    _install(tmp_path, monkeypatch, "pigeon_plane")

    assert urls.find_plane("pigeon:coop") is plane
    assert "pigeon" in urls.schemes()


@pytest.mark.parametrize("value", ["no_such_module_here", "json:no_such_name", "json"])
def test_a_broken_third_party_plane(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """A plane whose code is missing or is no plane cannot be opened, and says so."""
    _install(tmp_path, monkeypatch, value)

    with pytest.raises(PlaneUnavailable):
        urls.find_plane("pigeon:coop")


def test_publisher_to_subscriber_by_url() -> None:
    """What is published to a URL arrives at its subscribers with times of the context's clock."""

    async def run() -> None:
        context = PlaneContext(clock=ManualClock(unix_ms=1234))
        subscriber = await urls.open_subscriber("memory:by-url", Endpoint(), context=context)
        publisher = await urls.open_publisher("memory:by-url", Endpoint(), context=context)
        await publisher.publish(b"payload")
        message = await anext(aiter(subscriber))

        assert (message.payload, message.sequence, message.published_at_ms, message.received_at_ms) == (
            b"payload",
            0,
            1234,
            1234,
        )

    asyncio.run(run())


def test_planes_of_other_names_are_apart() -> None:
    """Two names are two planes, and a plane nobody holds is forgotten."""
    first = memory.memory_plane("apart-1")

    assert memory.memory_plane("apart-1") is first
    assert memory.memory_plane("apart-2") is not first


def test_stalled_and_failing_plane() -> None:
    """For tests, a memory plane can hang or refuse, and recovers."""

    async def run() -> None:
        plane = memory.memory_plane("faulty")
        subscriber = await urls.open_subscriber("memory:faulty", Endpoint())
        publisher = await urls.open_publisher("memory:faulty", Endpoint())
        plane.stall()
        hanging = asyncio.ensure_future(publisher.publish(b"late"))
        await asyncio.sleep(0)
        assert not hanging.done()
        plane.recover()
        await hanging
        plane.fail("on purpose")
        with pytest.raises(PlaneUnavailable, match="on purpose"):
            await publisher.publish(b"lost")
        plane.recover()
        await publisher.publish(b"last")
        await subscriber.close()

        assert [message.payload async for message in subscriber] == [b"late", b"last"]

    asyncio.run(run())
