"""The ZMQ plane, with every kind of discovery that needs no server, keeps the promises of the seam.

Tests of brokers and etcd, which need servers, stand in tests/interop.
"""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery import file
from forwardpass.plane.zmq import factory, sub_socket
from forwardpass.testing.conformance_plane import CHECKS, Check, PlaneRig, check_scope
from forwardpass.testing.ports import free_port
from forwardpass.wire.keys import Endpoint

CONTEXT = PlaneContext(sources=Sources({"DYN_EVENT_PLANE_HOST": "127.0.0.1"}))
_names = itertools.count()


def run(check: Check, url: str, settle_seconds: float, plane: object = factory) -> None:
    """Run one check against the plane at ``url``."""

    async def checked() -> None:
        rig = PlaneRig(plane, url, CONTEXT, settle_seconds)  # type: ignore[arg-type]
        await check(rig)

    asyncio.run(checked())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_zmq_plane_in_one_process(check: Check) -> None:
    """PLANE-01: Found inside the process, the ZMQ plane keeps each promise that every plane must keep."""
    run(check, f"zmq+mem:conformance-{next(_names)}", 0.1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_zmq_plane_through_a_folder(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-01: Found through a folder, the ZMQ plane keeps each promise that every plane must keep."""
    monkeypatch.setattr(file, "POLL_SECONDS", 0.02)  # so that the test need not wait
    run(check, f"zmq+file:{tmp_path}", 0.12)

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


class _FixedAddresses:
    """Fixed addresses: each publisher binds its own of the list that subscribers read."""

    def __init__(self) -> None:
        first = free_port(12)
        self._addresses = [f"127.0.0.1:{port}" for port in range(first, first + 12)]
        self._next = iter(self._addresses)

    async def open_publisher(self, url: str, endpoint: Endpoint, context: PlaneContext) -> object:
        return await factory.open_publisher(f"zmq+tcp://{next(self._next)}", endpoint, context)

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> object:
        return await factory.open_subscriber(f"zmq+tcp://{','.join(self._addresses)}", endpoint, context)


@pytest.mark.parametrize(
    "check", [c for c in CHECKS if c is not check_scope], ids=lambda check: check.__name__
)
def test_zmq_plane_with_fixed_addresses(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """PLANE-02: With fixed addresses the ZMQ plane keeps every promise but that of scope, which the one who
    lists the addresses keeps.
    """
    monkeypatch.setattr(sub_socket, "RECONNECT_MS", (20, 20))  # so that the test need not wait
    run(check, "zmq+tcp://as-listed:1", 0.15, _FixedAddresses())
