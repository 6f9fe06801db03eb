"""How changes of discovery records wait for whoever watches."""

from __future__ import annotations

import asyncio

import pytest

from forwardpass.errors import PlaneUnavailable
from forwardpass.plane.discovery import changes as module
from forwardpass.plane.discovery.base import RecordChange
from forwardpass.plane.discovery.changes import RecordChanges
from forwardpass.plane.discovery.memory import MemoryDiscovery


def told(changes: RecordChanges) -> list[RecordChange]:
    """Return what a consumer is told until the end."""

    async def run() -> list[RecordChange]:
        changes.end()
        return [change async for change in changes]

    return asyncio.run(run())


def test_the_newest_of_each_path() -> None:
    """A slow consumer is told the newest of each path, in the order of the newest changes."""
    changes = RecordChanges()
    changes.put("a", b"1")
    changes.put("b", b"1")
    changes.put("a", b"2")
    changes.put("b", b"1")
    changes.put("c", b"1")
    changes.remove("c")
    changes.remove("never there")

    assert told(changes) == [RecordChange("b", b"1"), RecordChange("a", b"2"), RecordChange("c", None)]


def test_everything_at_once() -> None:
    """Given all records at once, what is not among them is gone, and what is as it was is no change."""
    changes = RecordChanges()
    changes.put("same", b"1")
    changes.put("gone", b"1")
    assert len(told(changes)) == 2
    changes.replace_all({"same": b"1", "new": b"2"})

    assert told(changes) == [RecordChange("gone", None), RecordChange("new", b"2")]


def test_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-13: A watch keeps only so many records and so many bytes of them; what goes makes room."""
    monkeypatch.setattr(module, "MAX_RECORDS", 3)
    monkeypatch.setattr(module, "MAX_WATCH_BYTES", 10)
    changes = RecordChanges()
    for path, size in (("a", 4), ("b", 4), ("large", 3), ("c", 1), ("too many", 0)):
        changes.put(path, bytes(size))
    changes.put("a", bytes(9))
    changes.remove("b")
    changes.put("d", bytes(5))

    assert [change.path for change in told(changes) if change.value is not None] == ["a", "c", "d"]


def test_closing_ends_a_waiting_consumer() -> None:
    """Closing ends the iteration, once told to the backend, also when asked twice."""
    closed: list[str] = []

    async def stop() -> None:
        closed.append("once")

    async def run() -> None:
        changes = RecordChanges(stop)
        waiting = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError):
            await anext(changes)
        await changes.close()
        await changes.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(run())
    assert closed == ["once"]


def test_discovery_inside_a_process() -> None:
    """PLANE-10: Records of one name are seen by watches of the same name, bucket and prefix until they go."""

    async def run() -> None:
        one, other, elsewhere = MemoryDiscovery("m"), MemoryDiscovery("m"), MemoryDiscovery("m2")
        first = await one.register("bucket", "a/1", b"1")
        watches = [
            await other.watch("bucket", "a/"),
            await other.watch("bucket", "b/"),
            await other.watch("bucket2", "a/"),
            await elsewhere.watch("bucket", "a/"),
        ]
        with pytest.raises(PlaneUnavailable):
            await other.register("bucket", "a/1", b"2")
        assert await anext(watches[0]) == RecordChange("a/1", b"1")
        await first.close()
        again = await other.register("bucket", "a/1", b"3")
        await first.close()  # a second time: the record of another stays
        assert await anext(watches[0]) == RecordChange("a/1", b"3")
        await one.close()
        await other.close()
        await again.close()
        await elsewhere.close()
        assert [[change async for change in watch] for watch in watches] == [
            [RecordChange("a/1", None)],
            [],
            [],
            [],
        ]

    asyncio.run(run())
