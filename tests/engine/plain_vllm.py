"""Plain vLLM servers, started without any command of this package: only variables say what is wanted."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from served_vllm import ServedVllm

from forwardpass.config.handover import process_start
from forwardpass.config.variables import TABLE
from forwardpass.testing.ports import free_port

MODULE = ("-m", "vllm.entrypoints.openai.api_server", "--model")
COMMAND = ("-m", "vllm.entrypoints.cli.main", "serve")
RECORDER = "forwardpass.cli.companion"


class PlainVllm(ServedVllm):
    """One server of vLLM's own, started in the way that ``program`` says."""

    def __init__(
        self,
        program: Sequence[str],
        model: str,
        arguments: Sequence[str],
        folder: Path,
        environment: dict[str, str],
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

    def ours(self) -> list[str]:
        """Return what this package said."""
        lines = self._stderr.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("forwardpass:") or "Forward Pass" in line]


@contextlib.contextmanager
def plain(
    model: str,
    arguments: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    program: Sequence[str] = MODULE,
) -> Iterator[PlainVllm]:
    """Start a server, wait until it is up, and leave nothing of it behind."""
    server = PlainVllm(program, model, arguments, folder, environment)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.kill()


def clean(environment: dict[str, str], **variables: str) -> dict[str, str]:
    """Return ``environment`` with ``variables`` as the only ones of ours."""
    ours = {variable.name for variable in TABLE}
    return {name: text for name, text in environment.items() if name not in ours} | variables


def recorders(prefix: Path) -> list[int]:
    """Return the running recorders that write to ``prefix``, which their environment names."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, variables = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if RECORDER.encode() in command and f"DYN_FPM_OUTPUT_PATH={prefix}\0".encode() in variables:
                found.append(int(folder.name))
    return [pid for pid in found if process_start(pid) is not None]


def none_left(prefix: Path, seconds: float = 20.0) -> bool:
    """Say whether every recorder of ``prefix`` ends within ``seconds``."""
    deadline = time.monotonic() + seconds
    while recorders(prefix) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not recorders(prefix)
