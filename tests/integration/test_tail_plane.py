"""``tail`` on an event plane: what it shows of well-behaved and of hostile publishers."""

from __future__ import annotations

import asyncio
import json

import msgpack
import pytest
from click.testing import CliRunner
from subscriber_peers import payload, plane_url, publisher_at, run, until

from forwardpass.cli.main import Exit
from forwardpass.cli.tail import tail
from forwardpass.cli.tail_lines import LiveLines
from forwardpass.cli.tail_plane import PlaneView, follow_plane
from forwardpass.errors import ConfigError
from forwardpass.plane.memory import memory_plane
from forwardpass.wire.keys import Endpoint


def shown(payloads: list[bytes], *, limit: int, as_json: bool = False, rank: int | None = None) -> list[str]:
    """Return the lines that ``tail`` writes while these are published, until the limit."""
    written: list[str] = []

    async def work() -> None:
        where = plane_url()
        plane = memory_plane(where.removeprefix("memory:"))
        lines = LiveLines(as_json=as_json, limit=limit, rank=rank)
        following = asyncio.create_task(
            follow_plane(lines, PlaneView(where, Endpoint()), None, written.extend)
        )
        async with publisher_at(where) as one:
            await until(lambda: plane.subscriptions(Endpoint()) == 1)
            for data in payloads:
                await one.publish(data)
            await following

    run(work)
    return written


def test_a_table_of_every_worker_of_the_endpoint() -> None:
    """Each pass is a row, whichever publisher it comes from, up to the limit."""
    lines = shown([payload("7", 0, 3), payload("8", 1, 4), payload("9", 0, 5)], limit=2)

    assert [line.split()[1:5] for line in lines] == [
        ["7", "0", "3", "idle"],
        ["8", "1", "4", "dp-dummy"],
    ]


def test_json_says_where_each_comes_from() -> None:
    """A line of JSON has the publisher, its sequence and both times beside the message."""
    (line,) = shown([payload(counter=3)], limit=1, as_json=True)
    document = json.loads(line)

    assert document["seq"] == 0
    assert document["fpm"]["counter_id"] == 3
    assert 0 <= document["publisher_id"] < 2**53
    assert document["received_at_unix_ms"] >= document["published_at_unix_ms"] > 1_700_000_000_000


def test_one_rank() -> None:
    """--rank shows only messages of that rank."""
    lines = shown([payload("7", 0), payload("7", 1, 9), payload("7", 0)], limit=1, rank=1)

    assert [line.split()[2] for line in lines] == ["1"]


@pytest.mark.parametrize("as_json", [False, True])
def test_hostile_payloads(as_json: bool) -> None:
    """What a stranger publishes reaches the terminal as text without control characters, or not at all."""
    hostile = [
        b"",
        b"junk",
        b"\x91" * 100_000,
        msgpack.packb({"worker_id": "\x1b]0;owned\x07", "dp_rank": 2**63, "note": "\x1b[2J"}),
        msgpack.packb({"worker_id": "7", "blob": b"\x00"}),
        msgpack.packb({"worker_id": "7", "wall_time": float("nan")}),
        payload("\x1b[31m\u202e\n9"),
    ]
    lines = shown([*hostile, payload("good")], limit=3, as_json=as_json)

    assert "good" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_a_plane_that_cannot_be_opened() -> None:
    """What the plane raises ends tail; the command line makes one line and a status of it."""

    async def work() -> None:
        lines = LiveLines(as_json=False)
        await follow_plane(lines, PlaneView("nosuch:x", Endpoint()), None, lambda _: None)

    with pytest.raises(ConfigError):
        run(work)


def test_nothing_arrives() -> None:
    """A plane on which nobody publishes is status 1 after the time that was given, with the header alone."""
    result = CliRunner().invoke(tail, ["--plane", "memory:silent", "--seconds", "0.1"], standalone_mode=False)

    assert result.return_value == Exit.FINDING
    assert result.stdout.split()[:2] == ["time", "UTC"]
    assert len(result.stdout.splitlines()) == 1
