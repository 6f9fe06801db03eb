"""Knows how to keep recorders running beside the engine, and how to end them again and again.

Every life is a ``forwardpass record`` process of its own: a relay, a trace and a new producer.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_vllm import environment

from soak.engine import SoakFailed

__all__ = ["Life", "Recorder", "Restarter"]

STOP_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
"""Longest wait for the first row of a life; its random time counts from then on."""


@dataclass
class Life:
    """One recorder from its start to its end."""

    name: str
    prefix: Path
    pid: int
    began: float
    """Monotonic seconds."""
    asked: float = 0.0
    """When it was sent its signal; 0.0 while it lives."""
    ended: float = 0.0
    killed: bool = False
    status: int | None = None
    result: dict[str, Any] | None = None
    """What it said of itself with ``--json``; nothing if it was killed."""
    words: str = ""


class Recorder:
    """Starts and ends one life at a time."""

    def __init__(self, folder: Path, name: str, url: str, *options: str) -> None:
        self.lives: list[Life] = []
        self._folder, self._name = folder, name
        self._command = [sys.executable, "-m", "forwardpass", "record", url, "--json", "--quiet", *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin a life."""
        name = f"{self._name}-{len(self.lives):03d}"
        prefix = self._folder / name
        with prefix.with_suffix(".out").open("wb") as out, prefix.with_suffix(".err").open("wb") as err:
            self._process = subprocess.Popen(
                [*self._command, "--output", str(prefix)],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.lives.append(Life(name, prefix, self._process.pid, time.monotonic()))

    def records(self) -> bool:
        """Say whether the life that is running has rows on the disk."""
        prefix = self.lives[-1].prefix
        return any(path.stat().st_size for path in self._folder.glob(f"{prefix.name}.*.jsonl.gz"))

    def end(self, *, kill: bool) -> None:
        """End the life that is running, by SIGTERM or SIGKILL. Raises :class:`SoakFailed`."""
        process, life = self._process, self.lives[-1]
        if process is None:
            return
        crashed = process.poll() is not None
        life.asked, life.killed = time.monotonic(), kill
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        try:
            life.status = process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            process.kill()
            raise SoakFailed(f"{life.name} did not stop within {STOP_SECONDS:.0f} s") from error
        life.ended, self._process = time.monotonic(), None
        life.words = life.prefix.with_suffix(".err").read_text(errors="replace")
        if crashed:
            raise SoakFailed(f"{life.name} ended by itself with status {life.status}: {life.words[-2000:]}")
        if not kill:
            life.result = json.loads(life.prefix.with_suffix(".out").read_bytes())


class Restarter(threading.Thread):
    """Ends and starts a recorder at random moments, by SIGTERM and SIGKILL in turn, until it is stopped."""

    def __init__(
        self, recorder: Recorder, seconds: tuple[float, float], rng: random.Random, go: threading.Event
    ) -> None:
        super().__init__(name="restarter", daemon=True)
        self.failure: SoakFailed | None = None
        self._go = go
        self.restarts = 0
        """Lives ended at a random moment, the first by SIGTERM, the second by SIGKILL, and so on."""
        self._recorder, self._seconds, self._rng = recorder, seconds, rng
        self._ended = threading.Event()

    def run(self) -> None:
        """Restart from ``go`` on until stopped; the last life ends by SIGTERM."""
        self._go.wait()
        try:
            while not self._ended.is_set():
                self._recorder.start()
                self._wait_for_rows()
                asked = self._ended.wait(self._rng.uniform(*self._seconds))
                unborn = asked and not self._recorder.records()  # it may not have set up its signals yet
                self._recorder.end(kill=unborn or (self.restarts % 2 == 1 and not asked))
                self.restarts += not asked
        except SoakFailed as error:
            self.failure = error

    def _wait_for_rows(self) -> None:
        """Let the recorder begin to record; nothing may come while an engine starts."""
        until = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < until and not self._recorder.records() and not self._ended.wait(0.1):
            pass

    def stop(self) -> None:
        """End the last life. Raises :class:`SoakFailed` if a life ended as it should not."""
        self._ended.set()
        self._go.set()
        self.join(2 * STOP_SECONDS)
        if self.failure is not None:
            raise self.failure
