"""NVIDIA Dynamo's own simulated engine and frontend, started on this machine and driven over HTTP.

They run from a folder inside the engine environment (``make test`` puts them there) with file discovery, on
the loopback interface, and with a home of their own, for the frontend keeps model cards there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

DYNAMO = Path(sys.prefix) / "dynamo"
MODEL = "tiny"
UP_SECONDS = 60.0
STOP_SECONDS = 30.0


class ReferenceDeployment:
    """One frontend and its workers. ``environment`` is what joins a process to it."""

    def __init__(self, folder: Path, model: str, environment: dict[str, str], plane: dict[str, str]) -> None:
        self.folder = folder
        self.model = model
        self.base = environment or dict(os.environ)
        """What processes that do not belong to the deployment are started with."""
        self.environment = self.base | {
            "HOME": str(folder),
            "HF_HUB_OFFLINE": "1",
            "DYN_DISCOVERY_BACKEND": "file",
            "DYN_FILE_KV": str(folder / "kv"),
            "DYN_REQUEST_PLANE": "tcp",
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_TCP_RESPONSE_STREAM_HOST": "127.0.0.1",
            **(plane or {"DYN_EVENT_PLANE": "zmq", "DYN_EVENT_PLANE_HOST": "127.0.0.1"}),
        }
        self.http_port = free_port(first=12_000, last=19_999)
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start ``python -m COMMAND`` of the reference; what it says goes into a file of its own."""
        environment = self.environment | {"PYTHONPATH": str(DYNAMO)} | variables
        with (self.folder / f"{command[0]}.{len(self._started)}.txt").open("wb") as words:
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                env=environment,
                stdout=words,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def start_frontend(self) -> None:
        """Start what clients talk to."""
        self.start("dynamo.frontend", "--http-port", str(self.http_port), "--http-host", "127.0.0.1")

    def start_mocker(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a worker of simulated ranks, which traces each of its passes."""
        return self.start(
            *("dynamo.mocker", "--model-path", self.model, "--model-name", MODEL, *options),
            DYN_FPM_TRACE="1",
            DYN_FPM_MODE="full",
            DYN_FPM_OUTPUT_PATH=str(self.folder / "reference"),
        )

    def wait_until_up(self) -> None:
        """Wait until the frontend knows the model."""
        deadline = time.monotonic() + UP_SECONDS
        while time.monotonic() < deadline:
            assert all(process.poll() is None for process in self._started), self.words()
            with contextlib.suppress(OSError):
                if MODEL in self._request("GET", "/v1/models", None)[1]:
                    return
            time.sleep(0.1)
        raise AssertionError(f"not up within {UP_SECONDS} s: {self.words()}")

    def complete(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """Ask for one completion and return the answer."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
        status, text = self._request("POST", "/v1/completions", json.dumps(body))
        assert status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer

    def rows(self) -> list[TraceRecord]:
        """Return what the reference has traced."""
        return list(read_trace(sorted(self.folder.glob("reference.*.jsonl.gz"))))

    def words(self) -> str:
        """Return the end of what each process has said."""
        return "\n".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("dynamo.*.txt")))

    def stop(self) -> None:
        """Stop what runs, the workers first, as an operator does; kill what does not end."""
        for process in reversed(self._started):
            process.send_signal(signal.SIGTERM)
        for process in self._started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(STOP_SECONDS)

    def _request(self, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=60)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@contextlib.contextmanager
def deployed(
    folder: Path, model: str, *options: str, workers: int = 1, plane: dict[str, str] | None = None
) -> Iterator[ReferenceDeployment]:
    """Start a frontend and ``workers`` mockers, wait until they serve, and leave nothing of them behind."""
    deployment = ReferenceDeployment(folder, model, dict(os.environ), plane or {})
    try:
        deployment.start_frontend()
        for _ in range(workers):
            deployment.start_mocker(*options)
        deployment.wait_until_up()
        yield deployment
    finally:
        deployment.stop()
