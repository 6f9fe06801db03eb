"""The recorder beside an engine's process, without vLLM: one per engine, complete, and never left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forwardpass.config.handover import parse_mark, process_start
from forwardpass.config.variables import TABLE
from forwardpass.engines.vllm.companion import WATCH_SECONDS
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace

SCRIPT = Path(__file__).parent / "recorded_engine.py"
LIMIT_SECONDS = 40.0


class Engine:
    """One process that has a recorder, and what it said."""

    def __init__(self, environment: dict[str, str], told: dict[str, Any]) -> None:
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), json.dumps({"base_port": self.port, "worker_id": "77", **told})],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.said: dict[str, Any] = json.loads(self.process.stdout.readline() or "{}")
        self.words = ""

    def hear(self, text: str, seconds: float) -> str:
        """Return the line of its words that has ``text``, which has to come within ``seconds``."""
        assert self.process.stderr is not None
        heard, deadline = b"", time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.process.stderr], [], [], 0.1)[0]:
                heard += os.read(self.process.stderr.fileno(), 65536)
            for line in heard.decode().splitlines(keepends=True):
                if text in line and line.endswith("\n"):
                    return line
        raise AssertionError(f"{text!r} not said within {seconds} s: {heard.decode()}")

    def end(self) -> int:
        """Return its exit status; it must not need long."""
        _, self.words = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Engine]]:
    """Return a function that starts an engine's process with a trace in ``tmp_path``."""
    ours = {variable.name for variable in TABLE}
    environment = {name: text for name, text in os.environ.items() if name not in ours}
    environment |= {
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_MODE": "full",
        "DYN_FPM_OUTPUT_PATH": str(tmp_path / "fpm"),
    }
    engines: list[Engine] = []

    def start_engine(variables: dict[str, str] | None = None, **told: Any) -> Engine:
        engines.append(Engine(environment | (variables or {}), told))
        return engines[-1]

    yield start_engine
    for engine in engines:
        if engine.process.poll() is None:
            engine.process.kill()
            engine.process.communicate(timeout=LIMIT_SECONDS)
        for pid in engine.said.get("pids", []):
            assert wait_until_gone(pid)


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + LIMIT_SECONDS
    while process_start(pid) is not None and time.monotonic() < deadline:
        time.sleep(0.05)
    return process_start(pid) is None


def passes(folder: Path) -> int:
    """Return how many passes every trace file in ``folder`` holds."""
    files = list(folder.glob("fpm.*.jsonl.gz"))
    return sum(row.metrics.wall_time > 0 for row in read_trace(files)) if files else 0


def test_the_trace_is_complete_when_the_process_is_gone(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-46, D-28: What the engine sends while it ends is recorded, and the process waits for it."""
    engine = start(late=40)

    assert engine.end() == 0
    (pid,) = engine.said["pids"]
    assert process_start(pid) is None
    assert passes(tmp_path) == 140
    assert len([line for line in engine.words.splitlines() if line]) == 3
    assert f"port {engine.port}, worker id 77" in engine.words


def test_a_killed_process_leaves_its_trace_and_no_recorder(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    """ENG-46: Whatever ends the engine's process ends the recorder too, with what it received written."""
    engine = start(kill=True)
    (pid,) = engine.said["pids"]

    assert engine.end() == -signal.SIGKILL
    assert wait_until_gone(pid)
    assert passes(tmp_path) == 100


def test_the_recorder_outlives_the_thread_that_started_it(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    """ENG-46: An engine may be built in a thread; the kernel's death signal would come with its end."""
    assert start(thread=True).end() == 0
    assert passes(tmp_path) == 100


def test_one_recorder_serves_one_engine_after_the_other(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-45: Engines that follow each other at the same ports share a recorder, and the mark names it."""
    engine = start(engines=2)

    assert engine.end() == 0
    first, second = engine.said["pids"]
    assert first == second
    assert {getattr(parse_mark(mark), "pid", None) for mark in engine.said["marks"]} == {first}
    assert passes(tmp_path) == 200


def test_other_settings_get_another_recorder(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-45: A program that changes where it records is obeyed by its next engine."""
    engine = start(engines=2, change=True)

    assert engine.end() == 0
    first, second = engine.said["pids"]
    assert first != second
    assert passes(tmp_path) == 200


def test_ctrl_c_reaches_the_engine_alone(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-46: The recorder is in a session of its own, and an interrupt that reaches it all the same is not
    its business; termination waits for the engine.
    """
    engine = start(hang=True)
    (pid,) = engine.said["pids"]
    assert os.getsid(pid) != os.getsid(engine.process.pid)

    os.kill(pid, signal.SIGINT)
    os.kill(pid, signal.SIGTERM)
    time.sleep(1)
    assert process_start(pid) is not None
    engine.process.send_signal(signal.SIGINT)
    engine.end()

    assert passes(tmp_path) == 100


def test_a_recorder_that_dies_costs_one_line(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-47: Its end is told within a second or two, once, while the engine's process runs on and ends as
    it would have.
    """
    engine = start(hang=True)
    (pid,) = engine.said["pids"]
    os.kill(pid, signal.SIGKILL)
    told = engine.hear(
        "ended before the engine", seconds=WATCH_SECONDS + 5
    )  # some seconds for a busy machine
    running = engine.process.poll() is None
    time.sleep(2 * WATCH_SECONDS)
    engine.process.send_signal(signal.SIGINT)
    engine.end()

    assert running
    assert f"(pid {pid}) ended before the engine with status -9" in told
    assert "serving goes on" in told
    assert "ended before the engine" not in engine.words


def test_a_recorder_that_dies_at_the_very_end_is_told_of(start: Callable[..., Engine]) -> None:
    """ENG-47: Also where nobody has looked since: the process that waits for it says so."""
    engine = start(hang=True)
    (pid,) = engine.said["pids"]
    os.kill(pid, signal.SIGKILL)
    engine.process.send_signal(signal.SIGINT)
    engine.end()

    # whether it had ended when it was asked to is a matter of microseconds
    assert engine.words.count(f"(pid {pid}) ended ") == 1


def test_a_forked_process_has_no_recorder_to_watch(start: Callable[..., Engine]) -> None:
    """ENG-46: Engine processes may be forked from the one that has the recorder; only that one tells."""
    engine = start(fork=True, hang=True)
    (pid,) = engine.said["pids"]
    os.kill(pid, signal.SIGKILL)
    time.sleep(3 * WATCH_SECONDS)
    engine.process.send_signal(signal.SIGINT)
    engine.end()

    # whether it had ended when it was asked to is a matter of microseconds
    assert engine.words.count(f"(pid {pid}) ended ") == 1


def test_a_bad_folder_costs_one_line(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-47: Where nothing can be written the recorder says so and leaves; the engine publishes on."""
    (tmp_path / "file").write_text("")
    engine = start({"DYN_FPM_OUTPUT_PATH": str(tmp_path / "file" / "fpm")})

    assert engine.end() == 0
    assert engine.said["marks"] == [None]
    assert len([line for line in engine.words.splitlines() if line]) == 1


def test_a_taken_port_is_not_recorded(start: Callable[..., Engine], tmp_path: Path) -> None:
    """ENG-47, D-13: A stream that somebody else holds is theirs; one line names the holder."""
    import socket

    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        code = (
            "import sys; from forwardpass.engines.vllm.companion import *\n"
            "import os\n"
            f"order = RecorderOrder({port}, 0, 1, ((0, 'tcp://127.0.0.1:{port}'),), '1', 'aggregated')\n"
            "keep_recorder(order, None); print(os.environ.get('FORWARDPASS_RECORDER'))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True
        )

    assert done.stdout.split() == ["None"]
    assert f"pid {os.getpid()}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
