"""``forwardpass sglang serve`` with a real SGLang on CPU: started, driven over HTTP, stopped, cleaned up."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forwardpass.config.variables import TABLE
from forwardpass.testing.ports import free_port

START_SECONDS = 240.0
STOP_SECONDS = 60.0
SHIMS = Path(__file__).parent / "shims"

ON_CPU = (
    *("--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-cuda-graph", "--disable-overlap-schedule"),
    *("--max-total-tokens", "8192", "--max-running-requests", "8", "--chunked-prefill-size", "256"),
    "--skip-server-warmup",
)
"""What lets SGLang run without a GPU and without any kernel package."""


class ServedSglang:
    """One server; ``words`` is what it and we wrote once it has stopped."""

    def __init__(self, model: str, arguments: Sequence[str], folder: Path) -> None:
        self.http_port = free_port(first=12_000, last=19_999)
        self.words = ""
        self._output = folder / "output.txt"
        ours = {variable.name for variable in TABLE}
        environment = {name: text for name, text in os.environ.items() if name not in ours}
        environment |= {"HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
        if "--dp-size" in arguments:
            environment["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # a core for each of two
        environment["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(SHIMS), environment.get("PYTHONPATH", "")])
        )
        command = [
            *(sys.executable, "-m", "forwardpass", "sglang", "serve", "--model-path", model, *ON_CPU),
            *("--host", "127.0.0.1", "--port", str(self.http_port), *arguments),
        ]
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait_until_up(self) -> None:
        """Wait for /health; fails with what the server wrote if it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self._output.read_text()[-5000:]
            with contextlib.suppress(OSError):
                if self.request("GET", "/health", None)[0] == 200:
                    return
            time.sleep(0.25)
        raise AssertionError(f"not up within {START_SECONDS} s: {self._output.read_text()[-5000:]}")

    def generate(self, input_ids: list[int], max_new_tokens: int) -> dict[str, Any]:
        """Let it answer a prompt with exactly so many tokens; return SGLang's account of it."""
        sampling = {"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": True}
        status, text = self.request(
            "POST", "/generate", json.dumps({"input_ids": input_ids, "sampling_params": sampling})
        )
        assert status == 200, text
        meta: dict[str, Any] = json.loads(text)["meta_info"]
        return meta

    def request(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        """Send one HTTP request and return (status, text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to the launcher alone, and return its exit status."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Wait until the launcher has ended, and return its exit status."""
        status = self.process.wait(STOP_SECONDS)
        self.words = self._output.read_text(errors="replace")
        return status

    def server_pid(self) -> int:
        """Return the process of SGLang's own main program: the launcher's child."""
        for pid, (parent, _) in self._session().items():
            if parent == self.process.pid:
                return pid
        raise AssertionError("the launcher has no child")

    def kill(self) -> None:
        """Kill whatever is left of what the launcher has started, and the launcher."""
        for pid, (_, group) in self._session().items():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                if group != self.process.pid:
                    os.killpg(group, signal.SIGKILL)
        self.process.kill()
        self.process.wait(STOP_SECONDS)

    def _session(self) -> dict[int, tuple[int, int]]:
        """Return pid -> (parent, process group) of every process of the launcher's session but itself."""
        found = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                _, parent, group, session = stat.read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.process.pid != int(stat.parent.name):
                    found[int(stat.parent.name)] = (int(parent), int(group))
        return found


@contextlib.contextmanager
def served(model: str, arguments: Sequence[str], folder: Path) -> Iterator[ServedSglang]:
    """Start a server, wait until it is up, and leave nothing of it behind."""
    server = ServedSglang(model, arguments, folder)
    try:
        server.wait_until_up()
        yield server
    finally:
        server.kill()
