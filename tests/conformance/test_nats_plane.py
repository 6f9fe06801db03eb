"""The NATS plane keeps the promises of the seam, at a real nats-server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

pytest.importorskip("nats")

from forwardpass.config.settings import Sources
from forwardpass.plane import nats
from forwardpass.plane.base import PlaneContext
from forwardpass.testing.conformance_plane import CHECKS, Check, PlaneRig
from forwardpass.testing.nats_server import NatsServer, find_nats_server, nats_server

pytestmark = pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    """Run one server for all checks."""
    with nats_server() as running:
        yield running


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_nats_plane(check: Check, server: NatsServer) -> None:
    """RELAY-09: The NATS plane keeps each promise that every plane must keep."""

    async def run() -> None:
        await check(PlaneRig(nats, server.url, PlaneContext(Sources({})), settle_seconds=0.02))

    asyncio.run(run())
