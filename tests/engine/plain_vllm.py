"""Plain vLLM servers, started without any command of this package: only variables say what is wanted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from served_vllm import ServedVllm

from forwardpass.config.handover import process_start
from forwardpass.config.variables import TABLE

MODULE = ("-m", "vllm.entrypoints.openai.api_server", "--model")
COMMAND = ("-m", "vllm.entrypoints.cli.main", "serve")
RECORDER = "forwardpass.cli.companion"


class PlainVllm(ServedVllm):
    """One server of vLLM's own, and what this package says in it."""

    def ours(self) -> list[str]:
        """Return what this package said."""
        lines = self._stderr.read_text(errors="replace").splitlines()
        return [line for line in lines if line.startswith("forwardpass:") or "Forward Pass" in line]

    def hears(self, text: str, seconds: float) -> bool:
        """Say whether this package says ``text`` within ``seconds``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if any(text in line for line in self.ours()):
                return True
            time.sleep(0.1)
        return False


@contextlib.contextmanager
def plain(
    model: str,
    arguments: Sequence[str],
    folder: Path,
    environment: dict[str, str],
    program: Sequence[str] = MODULE,
) -> Iterator[PlainVllm]:
    """Start a server, wait until it is up, and leave nothing of it behind."""
    server = PlainVllm(model, arguments, folder, environment, program)
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
