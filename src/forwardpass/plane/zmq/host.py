"""Knows which address of this machine a publisher binds and advertises.

The one that is set (an IP address or the name of a network interface), or else the IPv4 address that
traffic leaves from, an IPv6 address, or loopback where there is no network.
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

from forwardpass.config.plane_variables import EVENT_PLANE_HOST
from forwardpass.errors import ConfigError

__all__ = ["advertised_host"]

_SIOCGIFADDR = 0x8915
"""Linux, ``bits/ioctls.h``: the IPv4 address of an interface."""
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation. Connecting a datagram socket sends nothing, it only chooses a route."""


def advertised_host(setting: str) -> str:
    """Return the host part of the address to bind: IPv6 in brackets.

    ``setting`` is the value of ``DYN_EVENT_PLANE_HOST``, possibly empty. Raises :class:`ConfigError` for
    one that is neither an address nor an interface with an IPv4 address.
    """
    if not setting:
        return _own_address()
    try:
        address = ipaddress.ip_address(setting.strip("[]"))
    except ValueError:
        pass
    else:
        # what nobody can connect to cannot be advertised: every address at once, a group, another's link
        if address.is_unspecified or address.is_multicast or "%" in setting:
            raise ConfigError(EVENT_PLANE_HOST.name, setting, EVENT_PLANE_HOST.accepted)
        return _bracketed(str(address))
    try:
        return _interface_address(setting)
    except (OSError, ValueError) as error:
        raise ConfigError(EVENT_PLANE_HOST.name, setting, EVENT_PLANE_HOST.accepted) from error


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _interface_address(name: str) -> str:
    raw = name.encode()
    if len(raw) > 15 or b"\0" in raw:
        raise ValueError("no name of an interface")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", raw))
    return socket.inet_ntoa(answer[20:24])


def _own_address() -> str:
    for family, elsewhere in _ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return _bracketed(str(probe.getsockname()[0]))
        except OSError:
            continue
    return "127.0.0.1"
