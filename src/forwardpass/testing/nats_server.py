"""Knows how to run a real ``nats-server`` for tests: on loopback, in a folder of its own, gone at the end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from forwardpass.clock import SystemClock
from forwardpass.testing.ports import free_port

__all__ = ["NatsServer", "find_nats_server", "nats_server"]

_START_SECONDS = 20.0
_clock = SystemClock()


def find_nats_server() -> str | None:
    """Return the program ``nats-server``: the one beside this Python, or the one on the path."""
    beside = Path(sys.executable).parent / "nats-server"
    return str(beside) if beside.is_file() else shutil.which("nats-server")


class NatsServer:
    """One server; may be killed and started again on its port, with what JetStream kept on the disk."""

    def __init__(self, folder: Path, arguments: Sequence[str], config: str) -> None:
        self.port = free_port()
        self.url = f"nats://127.0.0.1:{self.port}"
        self.log = folder / "nats.log"
        self._folder = folder
        self._arguments = list(arguments)
        self.config = config
        """The text of its configuration file; a change takes effect with the next start."""
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the program and wait until it answers. Raises ``RuntimeError`` if it does not."""
        program = find_nats_server()
        if program is None:
            raise RuntimeError("nats-server is not installed")
        config = self._folder / "nats.conf"
        config.write_text(self.config)
        command = [program, "-a", "127.0.0.1", "-p", str(self.port), "-c", str(config), *self._arguments]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = _clock.monotonic() + _START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or _clock.monotonic() > end:
                self.kill()
                raise RuntimeError(f"nats-server does not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        """End the program at once, as a machine that loses its power does. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def pause(self) -> None:
        """Let it hang: connections stay, and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after :meth:`pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def _answers(self) -> bool:
        """Say whether it greets; one that is not up refuses at once, so that asking again is no busy loop."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0) as connection:
            connection.settimeout(1.0)
            line = connection.makefile("rb").readline()
            return line.startswith(b"INFO ") and "server_id" in json.loads(line[5:])
        with suppress(subprocess.TimeoutExpired):
            if self._process is not None:
                self._process.wait(0.01)
        return False


@contextmanager
def nats_server(*arguments: str, config: str = "", jetstream: bool = False) -> Iterator[NatsServer]:
    """Run a server with more ``arguments`` and the text of a configuration file.

    Its folder is new and removed at the end, whatever happens. Raises ``RuntimeError`` if it does not start.
    """
    with tempfile.TemporaryDirectory(prefix="nats-") as name:
        folder = Path(name)
        store = ["-js", "-sd", str(folder / "store")] if jetstream else []
        server = NatsServer(folder, [*arguments, *store], config)
        server.start()
        try:
            yield server
        finally:
            server.kill()
