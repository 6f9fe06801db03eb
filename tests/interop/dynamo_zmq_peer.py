"""Runs one end of Dynamo's own ZMQ event plane in a process of its own, for the tests beside this file."""

from __future__ import annotations

import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent / "peers" / "dynamo_zmq.py"
PATIENCE_SECONDS = 20.0
INSTALLED = importlib.util.find_spec("dynamo") is not None and (
    importlib.util.find_spec("dynamo._core") is not None
)


class Peer:
    """The peer's process: what it printed, line by line. A context manager that ends it."""

    def __init__(
        self, backend: str, role: str, *arguments: str, env: Mapping[str, str], endpoint: str
    ) -> None:
        quiet = {"DYN_LOG": "error", "DYN_EVENT_PLANE_HOST": "127.0.0.1", "DYN_EVENT_PLANE": "zmq"}
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, str(SCRIPT), backend, endpoint, role, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**kept, **quiet, **env},
        )
        self._lines: queue.Queue[dict[str, Any]] = queue.Queue()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Peer:
        assert self.next() == {"ready": True}
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.leave()
        finally:
            self.kill()

    def next(self, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """Return the next line that it prints."""
        try:
            return self._lines.get(timeout=seconds)
        except queue.Empty:
            raise AssertionError(f"the peer printed nothing: {''.join(self._errors)[-2000:]}") from None

    def ask(self, **words: object) -> dict[str, Any]:
        """Send a line and return the answer."""
        assert self._process.stdin is not None
        print(json.dumps(words), file=self._process.stdin, flush=True)
        return self.next()

    def payloads(self, wanted: Callable[[bytes], bool], count: int) -> list[bytes]:
        """Return the next ``count`` payloads that are ``wanted``."""
        found: list[bytes] = []
        until = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            payload = bytes.fromhex(self.next(max(0.0, until - time.monotonic()))["payload"])
            if wanted(payload):
                found.append(payload)
        return found

    def leave(self) -> None:
        """Let it end by itself, as a worker that shuts down."""
        if self._process.poll() is None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """End it at once."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE_SECONDS)
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._lines.put(json.loads(line))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)
