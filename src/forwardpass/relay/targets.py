"""Knows the URLs that the ranks of one worker publish their raw streams on."""

from __future__ import annotations

import re

from msgspec import Struct

from forwardpass.errors import ConfigError
from forwardpass.wire.ports import rank_port

__all__ = ["ACCEPTED", "RelayTarget", "check_url", "local_targets", "rank_url"]

_TCP = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]*]+):(?P<port>[0-9]{1,5})\Z")
_IPC = re.compile(r"ipc://(?P<path>[^\0]+)\Z")
_IPC_PATH_BYTES = 107
"""What fits into ``sockaddr_un`` on Linux, without the closing zero."""

ACCEPTED = "tcp://HOST:PORT with a host to connect to, or ipc://PATH"


class RelayTarget(Struct, frozen=True):
    """One raw stream."""

    url: str
    dp_rank: int | None = None
    """Global data-parallel rank that publishes there, where it is known beforehand."""


def check_url(url: str) -> str:
    """Return ``url`` if a raw stream can be read from it; raises :class:`ConfigError`."""
    tcp = _TCP.match(url)
    if tcp and 0 < int(tcp["port"]) < 65536:
        return url
    ipc = _IPC.match(url)
    if ipc and len(ipc["path"].encode(errors="surrogateescape")) <= _IPC_PATH_BYTES:
        return url
    raise ConfigError("stream", url, ACCEPTED)


def rank_url(url: str, dp_rank: int) -> str:
    """Return the URL of rank ``dp_rank`` of a worker whose rank 0 is at ``url``.

    TCP ports count up from the base; IPC endpoints are ``<base>.<rank>``, with the rank for rank 0 too.
    Raises :class:`ConfigError`.
    """
    tcp = _TCP.match(check_url(url))
    if tcp is None:
        return check_url(f"{url}.{dp_rank}")
    return check_url(f"tcp://{tcp['host']}:{rank_port(int(tcp['port']), dp_rank)}")


def local_targets(base_port: int, ranks: int, first_rank: int = 0) -> tuple[RelayTarget, ...]:
    """Return the streams of ``ranks`` ranks on this machine, from global rank ``first_rank`` on."""
    return tuple(
        RelayTarget(f"tcp://127.0.0.1:{rank_port(base_port, rank)}", rank)
        for rank in range(first_rank, first_rank + ranks)
    )
