"""Helpers of the command line's tests: a real publisher in a process of its own, and our command."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forwardpass.config.variables import TABLE

LIMIT_SECONDS = 60.0

_started: list[subprocess.Popen[str]] = []

_ENGINE = textwrap.dedent(
    """
    import json, sys, threading, time
    from forwardpass.config.settings import PublisherSettings
    from forwardpass.publish.publisher import FpmPublisher
    from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics
    options = json.loads(sys.argv[1])
    settings = PublisherSettings(base_port=options["port"], worker_id=options["worker_id"])
    ranks = range(options["ranks"])
    publishers = [FpmPublisher(settings, dp_rank=rank) for rank in ranks]
    go = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), go.set()), daemon=True).start()
    print("up", flush=True)
    scheduled = ScheduledRequestMetrics(num_decode_requests=2)
    one = ForwardPassMetrics(wall_time=0.004, scheduled_requests=scheduled)
    while not go.is_set():
        for publisher in publishers:
            publisher.publish(one)
        time.sleep(1 / options["per_second"])
    for publisher in publishers:
        publisher.shutdown(5)
    time.sleep(0.2)
    numbers = [publisher.counts().offered + publisher.heartbeats for publisher in publishers]
    print(json.dumps(numbers), flush=True)
    """
)


class Engine:
    """Publishes passes of each rank until it is told to stop."""

    def __init__(self, port: int, ranks: int = 1, per_second: float = 200, worker_id: str = "4192") -> None:
        options = {"port": port, "ranks": ranks, "per_second": per_second, "worker_id": worker_id}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ENGINE, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=clean_environment(),
        )
        _started.append(self.process)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "up\n"

    def stop(self) -> None:
        """Let it publish what it has and end."""
        if self.process.stdin is not None and not self.process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.process.communicate("stop\n", timeout=LIMIT_SECONDS)
        self.process.wait(LIMIT_SECONDS)


@contextlib.contextmanager
def engine_at(port: int, **options: Any) -> Iterator[Engine]:
    """Run an engine and stop it."""
    engine = Engine(port, **options)
    try:
        yield engine
    finally:
        engine.stop()


def clean_environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without our variables, then with ``variables``."""
    ours = {variable.name for variable in TABLE}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    return {**kept, **variables}


def start(arguments: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """Start ``forwardpass`` with arguments and variables."""
    process = subprocess.Popen(
        [sys.executable, "-m", "forwardpass", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(**variables),
    )
    _started.append(process)
    return process


def end_all() -> None:
    """Kill what was started and still runs, and close the pipes of everything."""
    while _started:
        process = _started.pop()
        process.kill()
        process.wait(LIMIT_SECONDS)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end and return status, stdout and stderr."""
    try:
        out, err = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def run(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run ``forwardpass`` to its end and return status, stdout and stderr."""
    return finish(start(arguments, **variables))


def trace_rows(folder: Path, pattern: str = "*.jsonl.gz") -> list[dict[str, Any]]:
    """Return the events of all trace files in ``folder``, read with the standard library."""
    return [
        json.loads(line)["event"]
        for path in sorted(folder.glob(pattern))
        for line in gzip.decompress(path.read_bytes()).splitlines()
    ]


def wait_for_rows(folder: Path, count: int) -> None:
    """Wait until the trace files in ``folder`` hold ``count`` rows."""
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        if sum(1 for _ in trace_rows(folder)) >= count:
            return
        time.sleep(0.1)
    raise AssertionError(f"there are not {count} rows in time")
