"""Knows how ``tail`` follows an event plane instead of raw streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec import Struct

from forwardpass.cli.live_status import SILENT_AT_START_SECONDS
from forwardpass.cli.output import say
from forwardpass.cli.stream_options import checked_flags
from forwardpass.cli.tail_lines import LiveLines
from forwardpass.cli.terminal import printable
from forwardpass.clock import SystemClock
from forwardpass.config import variables as v
from forwardpass.config.settings import RelaySettings, Sources
from forwardpass.errors import ConfigError
from forwardpass.plane.shown import shown_url
from forwardpass.plane.subscriber import AsyncFpmSubscriber
from forwardpass.plane.urls import find_plane
from forwardpass.relay.cadence import MAX_TICK_SECONDS
from forwardpass.wire.keys import Endpoint

__all__ = ["PlaneView", "choose_plane", "follow_plane"]


class PlaneView(Struct, frozen=True):
    """Which plane and endpoint are shown."""

    url: str
    endpoint: Endpoint


def choose_plane(plane: str | None, endpoint: str | None, *, streams: bool) -> PlaneView | None:
    """Return what ``--plane`` and ``--endpoint`` mean, ``None`` without a plane.

    Raises :class:`ConfigError` that names the option: for a plane together with raw ``streams``, an endpoint
    without a plane, and what is no plane or endpoint.
    """
    if plane is None:
        if endpoint is not None:
            raise ConfigError("--endpoint", endpoint, "a --plane with it")
        return None
    if streams:
        raise ConfigError("--plane", shown_url(plane), "either a plane or URLs and --ranks of raw streams")
    flags = checked_flags([("--plane", v.PLANE, plane), ("--endpoint", v.ENDPOINT, endpoint)])
    settings = RelaySettings.load(Sources(flags=flags))
    if settings.plane_url is None:
        raise ConfigError("--plane", shown_url(plane), v.PLANE.accepted)
    try:
        find_plane(settings.plane_url)
    except ConfigError as error:
        raise ConfigError("--plane", shown_url(plane), error.accepted) from error
    return PlaneView(settings.plane_url, settings.endpoint)


async def follow_plane(
    lines: LiveLines,
    view: PlaneView,
    seconds: float | None,
    write: Callable[[list[str]], None],
) -> None:
    """Give the lines of what arrives to ``write``, until the limit, ``seconds`` or the plane's end."""
    clock = SystemClock()
    began, told = clock.monotonic(), False
    async with AsyncFpmSubscriber(view.url, view.endpoint) as subscriber:
        receiving = asyncio.create_task(_receive(lines, subscriber))
        try:
            while not receiving.done():
                await asyncio.wait((receiving,), timeout=MAX_TICK_SECONDS)
                write(lines.take())
                elapsed = clock.monotonic() - began
                if not told and elapsed > SILENT_AT_START_SECONDS and not subscriber.counts().offered:
                    told = True
                    where = printable(f"{view.endpoint} on {shown_url(view.url)}")
                    say(f"nothing from {where} yet; does a relay publish there (record --plane)?")
                if seconds is not None and elapsed >= seconds:
                    return
            receiving.result()  # raises what the plane raised
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            write(lines.take())
            dropped = subscriber.counts().dropped
            if dropped:
                say(f"not shown: {', '.join(f'{count} ({why})' for why, count in dropped.items())}")


async def _receive(lines: LiveLines, subscriber: AsyncFpmSubscriber) -> None:
    while not lines.finished:
        message = await subscriber.recv_envelope()
        if message is None:
            return
        lines.note_message(message)
