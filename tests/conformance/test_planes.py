"""Every plane keeps the promises of the seam."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from forwardpass.plane import memory
from forwardpass.plane.base import PlaneContext, PlaneMessage, PlanePublisher, PlaneSubscriber
from forwardpass.plane.inbox import Inbox
from forwardpass.testing import check_plane
from forwardpass.testing.conformance_plane import CHECKS, Check, PlaneRig
from forwardpass.wire.keys import Endpoint

_names = itertools.count()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_memory_plane(check: Check) -> None:
    """RELAY-09: The plane inside one process keeps each promise that every plane must keep."""

    async def run() -> None:
        url = f"memory:conformance-{next(_names)}"
        await check(PlaneRig(memory, url, PlaneContext(), oversize_bytes=memory.MAX_PAYLOAD_BYTES + 1))

    asyncio.run(run())


def test_check_plane_runs_all_checks() -> None:
    """A plane's author needs one call."""
    check_plane(memory, "memory:all-checks", oversize_bytes=memory.MAX_PAYLOAD_BYTES + 1)


class _CarelessPlane:
    """A plane that repeats messages, mixes endpoints, forgets its limits and never ends."""

    def __init__(self) -> None:
        self.inboxes: list[Inbox] = []

    async def open_publisher(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlanePublisher:
        plane = self

        class Publisher:
            publisher_id = 7

            async def publish(self, payload: bytes) -> None:
                for inbox in plane.inboxes:
                    inbox.put(PlaneMessage(payload, endpoint, 7, 0, 0, 0))

            async def close(self) -> None:
                pass

        return Publisher()

    async def open_subscriber(self, url: str, endpoint: Endpoint, context: PlaneContext) -> PlaneSubscriber:
        inbox = Inbox(context.receive_capacity * 1000)
        self.inboxes.append(inbox)

        class Subscriber:
            def __aiter__(self) -> Inbox:
                return inbox

            counts = inbox.counts

            async def close(self) -> None:
                pass

        return Subscriber()


@pytest.mark.parametrize(
    "check", [check for check in CHECKS if "wakes" not in check.__name__], ids=lambda check: check.__name__
)
def test_the_suite_notices(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plane that breaks every promise fails every check, so that passing means something."""
    monkeypatch.setattr("forwardpass.testing.conformance_plane._PATIENCE_SECONDS", 0.05)

    async def run() -> None:
        await check(PlaneRig(_CarelessPlane(), "careless:", PlaneContext(), oversize_bytes=10))

    with pytest.raises(AssertionError):
        asyncio.run(run())
