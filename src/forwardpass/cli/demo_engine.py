"""Knows how to run the simulated engine in a process of its own, on ports that are free."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from forwardpass.cli.child import bonded
from forwardpass.cli.mock import MockResult
from forwardpass.config.variables import TABLE, WORKER_ID
from forwardpass.errors import EngineError
from forwardpass.publish.port_owner import ports_are_free
from forwardpass.wire.ports import DEFAULT_BASE_PORT, MAX_BASE_PORT, PortBlock

__all__ = ["CONNECT_SECONDS", "DemoEngine", "free_base_port", "start_engine"]

CONNECT_SECONDS = 1.0
"""How long the engine has no requests yet, so that the recording is connected before the first pass."""
START_SECONDS = 20.0
END_SECONDS = 15.0
_ATTEMPTS = 3
_HIGHEST_PORT = 32_767
"""Below the ports that Linux hands to outgoing connections by default."""


def free_base_port(ranks: int, start: int = DEFAULT_BASE_PORT) -> int:
    """Return the first base port from ``start`` on whose whole block of ``ranks`` can be bound on loopback.

    Another process may take a port before the engine does; the caller tries again then. Raises
    :class:`EngineError` if there is none.
    """
    block = PortBlock.of(start, ranks)
    size = block.last - block.first + 1
    for base in range(start, min(_HIGHEST_PORT, MAX_BASE_PORT) - size + 1, size):
        if ports_are_free(base, size):
            return base
    raise EngineError(f"no {size} free ports in a row from {start} to {_HIGHEST_PORT}")


class DemoEngine:
    """The running process. It ends by itself, or when this process does."""

    def __init__(self, process: asyncio.subprocess.Process, base_port: int) -> None:
        self.base_port = base_port
        self._process = process
        self._errors: list[str] = []
        self._interrupted = False
        self._ending = asyncio.create_task(self._read_to_end())

    async def _read_to_end(self) -> bytes:
        stdout, stderr = await self._process.communicate()
        self._errors.append(stderr.decode(errors="replace").strip())
        return stdout

    @property
    def finished(self) -> asyncio.Task[bytes]:
        """Done when the process has ended."""
        return self._ending

    def interrupt(self) -> None:
        """Ask the process to end in good order; once, since a second signal would kill it."""
        if not self._interrupted:
            self._interrupted = True
            with suppress(ProcessLookupError):
                self._process.terminate()

    async def result(self) -> MockResult:
        """Wait for the end and return what the engine counted. Raises :class:`EngineError` if it failed."""
        done, _ = await asyncio.wait([self._ending], timeout=END_SECONDS)
        if not done:
            await self.kill()
            raise EngineError(f"the simulated engine did not end within {END_SECONDS:g} s")
        try:
            return msgspec.json.decode(self._ending.result(), type=MockResult)
        except msgspec.MsgspecError as error:
            status = self._process.returncode
            raise EngineError(f"the simulated engine failed (status {status}): {self._errors[0]}") from error

    async def kill(self) -> None:
        """End the process at once, if it still runs, and wait for it."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.wait([self._ending], timeout=END_SECONDS)


async def start_engine(
    *, ranks: int, seconds: float, seed: int, worker_id: str, environment: Mapping[str, str]
) -> DemoEngine:
    """Start the engine and return it once all its ports are bound.

    It is idle for :data:`CONNECT_SECONDS`, then under load for ``seconds``. ``environment`` is this
    process's; the variables of the table are left out of it. Raises :class:`EngineError`.
    """
    ours = {variable.name for variable in TABLE}
    clean = {name: text for name, text in environment.items() if name not in ours}
    base, reason = DEFAULT_BASE_PORT, ""
    for _ in range(_ATTEMPTS):
        base = free_base_port(ranks, base)
        process = await _spawn(_arguments(ranks, seconds, seed, base), {**clean, WORKER_ID.name: worker_id})
        said = await _words_until_ready(process)
        if process.returncode is None and said.startswith("rank"):
            return DemoEngine(process, base)
        reason = said.strip()
        base += ranks + 1
    raise EngineError(f"the simulated engine did not start: {reason or 'it said nothing'}")


def _arguments(ranks: int, seconds: float, seed: int, base_port: int) -> list[str]:
    options = {
        "--ranks": ranks,
        "--port": base_port,
        "--seed": seed,
        "--delay": CONNECT_SECONDS,
        "--seconds": CONNECT_SECONDS + seconds,
    }
    return ["mock", "--json", *(str(part) for option in options.items() for part in option)]


async def _spawn(arguments: list[str], environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *bonded((sys.executable, "-P", "-m", "forwardpass", *arguments)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(environment),
        process_group=0,  # a terminal's Ctrl-C reaches this process alone, which then ends the engine
    )


async def _words_until_ready(process: asyncio.subprocess.Process) -> str:
    """Return the first line the engine says, which is about its first port; all it says if it failed."""
    assert process.stderr is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            first = await process.stderr.readline()
            if not first.startswith(b"rank"):
                first += await process.stderr.read()
                await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return f"nothing was heard of it within {START_SECONDS:g} s"
    return first.decode(errors="replace")
