"""Knows which plane a URL means: its scheme, looked up in our table and in the entry points of others.

A third party adds a plane with an entry point in the group ``forwardpass.planes`` whose name is the URL
scheme and whose object is a :class:`~forwardpass.plane.base.PlaneFactory`. Our own schemes are also in a
table here, so that they work from a source tree that is not installed.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from forwardpass.errors import ConfigError, PlaneUnavailable
from forwardpass.plane.base import (
    PlaneContext,
    PlaneFactory,
    PlanePublisher,
    PlaneSubscriber,
    UrlChecker,
)
from forwardpass.plane.shown import shown_url
from forwardpass.wire.keys import Endpoint

__all__ = ["find_plane", "open_publisher", "open_subscriber", "schemes"]

GROUP = "forwardpass.planes"

_BUILT_IN = {
    "memory": "forwardpass.plane.memory",
    **dict.fromkeys(
        ("zmq", "zmq+broker", "zmq+etcd", "zmq+file", "zmq+mem", "zmq+tcp"), "forwardpass.plane.zmq.factory"
    ),
    "nats": "forwardpass.plane.nats",
    "tls": "forwardpass.plane.nats",
}


def schemes() -> tuple[str, ...]:
    """Return every URL scheme that can be opened here, sorted."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def find_plane(url: str) -> PlaneFactory:
    """Return the factory for ``url``; opens nothing.

    Raises :class:`ConfigError` for a scheme that nobody provides (it names those that exist) or a URL that
    its plane refuses, and :class:`PlaneUnavailable` for one whose code cannot be loaded.
    """
    scheme, colon, _ = url.partition(":")
    scheme = scheme.strip().lower()
    if colon and scheme in _BUILT_IN:
        module: object = importlib.import_module(_BUILT_IN[scheme])
        return _checked(scheme, module, url)
    points = entry_points(group=GROUP, name=scheme) if colon else ()
    for point in points:
        return _checked(scheme, _load(point), url)
    accepted = ", ".join(f"{name}:…" for name in schemes())
    raise ConfigError("FORWARDPASS_PLANE", shown_url(url), f"a plane URL ({accepted})")


async def open_publisher(
    url: str, endpoint: Endpoint, *, context: PlaneContext | None = None
) -> PlanePublisher:
    """Join the plane at ``url`` as a publisher; raises as :func:`find_plane` and the plane."""
    return await find_plane(url).open_publisher(url, endpoint, context or PlaneContext())


async def open_subscriber(
    url: str, endpoint: Endpoint, *, context: PlaneContext | None = None
) -> PlaneSubscriber:
    """Join the plane at ``url`` as a subscriber; raises as :func:`find_plane` and the plane."""
    return await find_plane(url).open_subscriber(url, endpoint, context or PlaneContext())


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise PlaneUnavailable(f"plane {point.name!r} ({point.value}) cannot be loaded: {error}") from error


def _checked(scheme: str, loaded: object, url: str) -> PlaneFactory:
    if not isinstance(loaded, PlaneFactory):
        raise PlaneUnavailable(f"plane {scheme!r} has no open_publisher and open_subscriber")
    if isinstance(loaded, UrlChecker):
        loaded.check_url(url)
    return loaded
