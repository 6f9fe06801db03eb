"""Knows how to find the engines that run on this host, and what can be seen of them without touching them."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from forwardpass.cli.doctor_engines import Server, recognise, sockets_of
from forwardpass.clock import SystemClock
from forwardpass.config.variables import FPM_TRACE, METRIC_PORT
from forwardpass.engines.model_files import load_config
from forwardpass.engines.roles import Backend
from forwardpass.errors import ConfigError
from forwardpass.relay.zmq_source import ZmqSource

__all__ = ["find_servers", "hear_sockets"]

_PROC = Path("/proc")
_OPTIONS = ("--extra_llm_api_options", "--config")
MAX_OPTIONS_BYTES = 1 << 20
_POLL_SECONDS = 0.02


def find_servers(proc: Path = _PROC) -> list[Server]:
    """Return the engines among the processes of this host, by process id; none where it does not tell.

    A child that looks like its parent is the parent's.
    """
    found = {server.pid: server for server in _servers(proc)}
    return [server for pid, server in sorted(found.items()) if _parent(proc, pid) not in found]


def hear_sockets(servers: Sequence[Server], seconds: float) -> list[Server]:
    """Return ``servers`` with what they said on their own sockets within ``seconds``, or until all spoke."""
    listened = [server for server in servers if server.sockets and all(server.sockets.values())]
    if not listened:
        return list(servers)
    heard = asyncio.run(_hear(listened, seconds))
    return [msgspec.structs.replace(each, heard=heard.get(each.pid, 0)) for each in servers]


async def _hear(servers: Sequence[Server], seconds: float) -> dict[int, int]:
    clock = SystemClock()
    heard = {server.pid: 0 for server in servers}
    sources: list[tuple[int, ZmqSource]] = []
    try:
        for server in servers:
            try:
                sources += [(server.pid, ZmqSource(f"ipc://{path}")) for path in server.sockets]
            except ConfigError:  # a path that no socket can have
                continue
        deadline = clock.monotonic() + seconds
        while clock.monotonic() < deadline and not all(heard.values()):
            await asyncio.sleep(_POLL_SECONDS)
            for pid, source in sources:
                heard[pid] += len(source.receive_many(1000).payloads)
    finally:
        for _, source in sources:
            source.close()
    return heard


def _servers(proc: Path) -> Iterator[Server]:
    for folder in proc.glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
        except OSError:  # it has ended
            continue
        found = recognise(tuple(words))
        if found is not None:
            backend, arguments = found
            yield Server(
                backend,
                int(folder.name),
                arguments,
                environment=_environment(folder),
                sockets={path: _is_socket(path) for path in sockets_of(backend, arguments)},
                options=_options(folder, arguments) if backend is Backend.TRTLLM else None,
            )


def _parent(proc: Path, pid: int) -> int | None:
    try:
        return int((proc / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def _environment(folder: Path) -> Mapping[str, str] | None:
    """Return the two variables that matter, of a process that this user may look into."""
    try:
        lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    pairs = (line.partition("=")[::2] for line in lines)
    return {name: text for name, text in pairs if name in (FPM_TRACE.name, METRIC_PORT.name)}


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return False


def _options(folder: Path, arguments: Sequence[str]) -> Mapping[str, object] | None:
    """Return what the options file of a TensorRT-LLM server says, if it can be read."""
    for option in _OPTIONS:
        for position, word in enumerate(arguments):
            name, _, value = word.partition("=")
            if name != option:
                continue
            value = value or "".join(arguments[position + 1 : position + 2])
            try:
                path = (folder / "cwd").resolve() / value
                seen = path.stat()  # anybody's command line may name a pipe, which would not end
                small = stat.S_ISREG(seen.st_mode) and seen.st_size <= MAX_OPTIONS_BYTES
                return load_config(str(path)) if small else None
            except (OSError, ValueError, ConfigError, RecursionError):
                return None
    return None
