"""Knows the addresses of the ZMQ plane: which are accepted, and how texts list them.

Addresses also come from discovery, where anyone may write. Only ``tcp://HOST:PORT`` passes there: libzmq
would take other transports, and a source address before a semicolon.
"""

from __future__ import annotations

import ipaddress
import re

from forwardpass.errors import ConfigError
from forwardpass.plane.discovery.records import Brokers

__all__ = ["canonical", "check_broker", "is_address", "parse_addresses", "parse_brokers"]

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253}):(?P<port>[0-9]{1,5})\Z")
_BROKER_WORDS = "xsub=tcp://HOST:PORT[;…],xpub=tcp://HOST:PORT[;…]"
_PART = re.compile(r"\s*(?P<side>xsub|xpub)\s*=\s*(?P<addresses>.*?)\s*\Z", re.DOTALL)


def is_address(text: str) -> bool:
    """Say whether ``text`` is an address that can be connected to."""
    match = _TCP.match(text)
    return match is not None and 0 < int(match["port"]) < 65536


def canonical(address: str) -> str:
    """Return an accepted address as libzmq names it in its events (IPv6 in the shortest form)."""
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host.strip('[]')).compressed}]"
        except ValueError:
            return address
    return f"tcp://{host}:{int(port)}"


def parse_addresses(rest: str, url: str) -> tuple[str, ...]:
    """Return the addresses in ``HOST:PORT[,HOST:PORT…]``; raises :class:`ConfigError` that shows ``url``."""
    found = tuple(f"tcp://{one.strip().removeprefix('tcp://')}" for one in rest.removeprefix("//").split(","))
    if not all(map(is_address, found)):
        raise ConfigError("FORWARDPASS_PLANE", url, "zmq+tcp://HOST:PORT[,HOST:PORT…]")
    return found


def parse_brokers(text: str, variable: str) -> Brokers:
    """Return the brokers in ``xsub=<url>[;<url>…],xpub=<url>[;<url>…]``, blanks allowed.

    Raises :class:`ConfigError` naming ``variable``.
    """
    sides: dict[str, tuple[str, ...]] = {}
    for part in text.split(","):
        match = _PART.match(part)
        if match is None or match["side"] in sides:
            raise ConfigError(variable, text, _BROKER_WORDS)
        sides[match["side"]] = tuple(one.strip() for one in match["addresses"].split(";") if one.strip())
    brokers = Brokers(sides.get("xsub", ()), sides.get("xpub", ()))
    if not check_broker(brokers):
        raise ConfigError(variable, text, _BROKER_WORDS)
    return brokers


def check_broker(brokers: Brokers) -> bool:
    """Say whether both sides have addresses that can be connected to."""
    return bool(brokers.xsub) and bool(brokers.xpub) and all(map(is_address, (*brokers.xsub, *brokers.xpub)))
