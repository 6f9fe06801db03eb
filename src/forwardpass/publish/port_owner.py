"""Knows what Linux tells about TCP ports: which are free, who holds one, which ones the kernel hands out.

Where ``/proc`` cannot be read the answer is ``None``.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from forwardpass.wire.ports import PortBlock, parse_port_range

__all__ = ["ephemeral_range", "port_owner", "ports_are_free", "socket_inodes"]

_PROC = Path("/proc")
_LISTEN = "0A"


def port_owner(port: int, proc: Path = _PROC) -> str | None:
    """Return the process that has a socket at local TCP ``port``, as ``python (pid 123)``, or ``None``.

    A listener goes before a connection that merely uses the port as its own end. Sockets of other
    users' processes and of other network namespaces cannot be seen.
    """
    inodes = [
        inode for table in ("net/tcp", "net/tcp6") for inode in socket_inodes(_read(proc / table), port)
    ]
    for inode in (inode for listening in (True, False) for inode, listens in inodes if listens is listening):
        pid = _holder(inode, proc)
        if pid is not None:
            return f"{_name(pid, proc)} (pid {pid})"
    return None


def ports_are_free(first: int, count: int = 1) -> bool:
    """Say whether all of ``count`` ports from ``first`` on can be bound on loopback at this moment."""
    with ExitStack() as probes:
        try:
            for port in range(first, first + count):
                probe = probes.enter_context(socket.socket())
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZMQ does: closed is free
                probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def ephemeral_range(proc: Path = _PROC) -> PortBlock | None:
    """Return the ports that the kernel picks for outgoing connections, or ``None``."""
    return parse_port_range(_read(proc / "sys/net/ipv4/ip_local_port_range"))


def socket_inodes(table: str, port: int) -> list[tuple[str, bool]]:
    """Return the inode of each socket at local ``port``, and whether it listens.

    ``table`` is the text of ``/proc/net/tcp`` or ``tcp6``: column 2 is the local address with the port
    in hex after the colon, column 4 the state, column 10 the inode (proc(5)).
    """
    found = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) < 10 or columns[9] == "0":  # inode 0: a connection that outlived its socket
            continue
        if columns[1].rpartition(":")[2] == f"{port:04X}":
            found.append((columns[9], columns[3] == _LISTEN))
    return found


def _holder(inode: str, proc: Path) -> int | None:
    target = f"socket:[{inode}]"
    for pid in _pids(proc):
        if any(link == target for link in _links(proc / str(pid) / "fd")):
            return pid
    return None


def _pids(proc: Path) -> list[int]:
    try:
        return sorted(int(name) for name in os.listdir(proc) if name.isdigit())
    except OSError:
        return []


def _links(folder: Path) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:  # another user's process, or it has ended
        return
    for name in names:
        try:
            yield os.readlink(folder / name)
        except OSError:  # closed meanwhile
            continue


def _name(pid: int, proc: Path) -> str:
    name = _read(proc / str(pid) / "comm").rstrip("\n")
    return "".join(letter if letter.isprintable() else "?" for letter in name) or "unknown"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
