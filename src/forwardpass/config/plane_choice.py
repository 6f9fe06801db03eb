"""Knows which event plane the settings choose: the one that is asked for, or that of a Dynamo deployment.

A Dynamo worker needs no plane to be named, its variables say where everything is. So the first of these
decides, and nothing is published where none is set (decision D-31):

1. ``FORWARDPASS_PLANE`` or its flag: that URL; ``none`` for no plane whatever else is set;
2. ``DYN_EVENT_PLANE``: the ZMQ or the NATS plane;
3. ``DYN_ZMQ_BROKER_URL`` or ``DYN_ZMQ_BROKER_ENABLED`` (true): the ZMQ plane;
4. ``DYN_DISCOVERY_BACKEND``, ``DYN_FILE_KV`` or ``ETCD_ENDPOINTS``: the ZMQ plane, Dynamo's default; but no
   plane for the backend ``kubernetes``, which every pod of an operator has and which is not supported here;
5. ``NATS_SERVER``: the NATS plane. Last, because Dynamo uses that server for more than events.

Credentials, lease lengths, capacities and the host to advertise choose nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from forwardpass.config import plane_variables as p
from forwardpass.config.variables import PLANE

if TYPE_CHECKING:
    from forwardpass.config.settings import Sources
    from forwardpass.config.variable import Variable

__all__ = ["NO_PLANE", "PlaneChoice", "chosen_plane", "plane_url"]

NO_PLANE = "none"
"""What to set where the variables of a deployment shall not be followed."""
_ZMQ = "zmq:"
_NATS = "nats:"


class PlaneChoice(Struct, frozen=True):
    """An event plane, and what chose it."""

    url: str | None
    """``None`` for no plane."""
    variable: str = ""
    """Name of the variable (or that of the flag's variable); empty where nothing is set."""


def plane_url(sources: Sources) -> str | None:
    """Return the URL of the plane to publish to, or ``None``; raises :class:`ConfigError`."""
    return chosen_plane(sources).url


def chosen_plane(sources: Sources) -> PlaneChoice:
    """Return which plane is chosen and by which variable; raises :class:`ConfigError` for a wrong value."""
    named = sources.value(PLANE)
    if named:
        return PlaneChoice(None if named.lower() == NO_PLANE else named, PLANE.name)
    kind = sources.value(p.EVENT_PLANE)
    if kind:
        return PlaneChoice(_NATS if kind == "nats" else _ZMQ, p.EVENT_PLANE.name)
    if sources.value(p.ZMQ_BROKER_URL):
        return PlaneChoice(_ZMQ, p.ZMQ_BROKER_URL.name)
    if sources.value(p.ZMQ_BROKER_ENABLED):
        return PlaneChoice(_ZMQ, p.ZMQ_BROKER_ENABLED.name)
    return _by_place(sources)


def _by_place(sources: Sources) -> PlaneChoice:
    if sources.value(p.DISCOVERY_BACKEND) == "kubernetes":
        return PlaneChoice(None, p.DISCOVERY_BACKEND.name)
    places: tuple[Variable, ...] = (p.DISCOVERY_BACKEND, p.FILE_KV, p.ETCD_ENDPOINTS)
    for variable in places:
        if sources.is_set(variable):
            return PlaneChoice(_ZMQ, variable.name)
    if sources.is_set(p.NATS_SERVER):
        return PlaneChoice(_NATS, p.NATS_SERVER.name)
    return PlaneChoice(None)
