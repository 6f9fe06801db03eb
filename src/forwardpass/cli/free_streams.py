"""Knows which of an engine's streams can be its own: those whose port nobody holds before it starts."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from forwardpass.config.variables import METRIC_PORT
from forwardpass.errors import PortUnavailable
from forwardpass.publish.port_owner import port_owner
from forwardpass.relay.targets import RelayTarget
from forwardpass.wire.ports import rank_port

__all__ = ["free_targets"]

logger = logging.getLogger(__name__)


def free_targets(streams: Iterable[tuple[int, str]], base_port: int, *, strict: bool) -> list[RelayTarget]:
    """Return the (global rank, URL) to relay, without those whose port another process holds.

    The engine cannot bind such a port and serves without this rank's stream (decision D-13); a relay
    would record somebody else's forward passes as ours. ``strict`` raises :class:`PortUnavailable`.
    """
    targets = []
    for rank, url in streams:
        port = rank_port(base_port, rank)
        holder = port_owner(port)
        if holder is None:
            targets.append(RelayTarget(url, rank))
            continue
        taken = PortUnavailable(METRIC_PORT.name, port, "it is in use", holder)
        if strict:
            raise taken
        logger.error("rank %d: %s; its forward passes are not recorded; serving goes on", rank, taken)
    return targets
