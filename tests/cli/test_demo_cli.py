"""``forwardpass demo``: a real engine process, real sockets, real trace files, and the page at the end."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from forwardpass.cli.demo_engine import free_base_port, start_engine
from forwardpass.cli.main import Exit
from forwardpass.config.settings import process_environment
from forwardpass.errors import EngineError
from forwardpass.trace.reader import read_trace

LIMIT_SECONDS = 60.0


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start the command as a person does, with its output piped."""
    return subprocess.Popen(
        [sys.executable, "-m", "forwardpass", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def children(pid: int) -> list[int]:
    """Return the processes that ``pid`` started and that still run."""
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_demonstration_from_start_to_end(tmp_path: Path):
    """It records every pass of both ranks that the engine counted, says so, and says where to go on."""
    began = time.monotonic()
    process = start("--seconds", "3", "--output", str(tmp_path / "here"))
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    rows = list(read_trace([tmp_path / "here"]))
    passes = [row for row in rows if row.metrics.wall_time > 0]
    counted = re.search(r"The engine counted ([\d,]+) passes by itself; the trace holds every one", stderr)

    assert process.returncode == Exit.DONE
    assert time.monotonic() - began < 30
    assert counted is not None
    assert int(counted[1].replace(",", "")) == len(passes) > 100
    assert set(Counter(row.metrics.dp_rank for row in passes)) == {0, 1}
    assert len({row.metrics.worker_id for row in rows}) == 1
    assert {row.source.producer_id for row in rows} == {rows[0].metrics.worker_id}
    assert {row.capture_mode for row in rows} == {"full"}
    assert all(word in stdout for word in ("kind of pass", "p99", "tokens", "queue", "gaps", "intact"))
    assert "\x1b" not in stdout + stderr
    assert " rows on disk; rank 0: " in stderr
    assert f"trace cat {tmp_path}/here/demo | head" in stderr


def test_ending_it_early_still_sums_up(tmp_path: Path):
    """SIGINT ends the engine and the recording in good order; the page shows what there was."""
    process = start("--seconds", "120", "--output", str(tmp_path))
    try:
        assert process.stderr is not None
        while "rows on disk" not in process.stderr.readline():
            assert process.poll() is None
        (engine,) = children(process.pid)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait(LIMIT_SECONDS)

    assert process.returncode == Exit.INTERRUPTED
    assert "kind of pass" in stdout
    assert "the trace holds every one of them" in stderr
    assert not Path(f"/proc/{engine}").exists()


def test_the_engine_ends_with_a_killed_demonstration(tmp_path: Path):
    """Even SIGKILL leaves no engine behind."""
    process = start("--seconds", "120", "--output", str(tmp_path))
    try:
        assert process.stderr is not None
        process.stderr.readline()
        (engine,) = children(process.pid)
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_SECONDS)
    deadline = time.monotonic() + LIMIT_SECONDS
    while Path(f"/proc/{engine}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)

    assert not Path(f"/proc/{engine}").exists()


def test_a_folder_that_cannot_be_written_ends_it_at_once():
    """Exit code 3 and one line that names the path."""
    process = start("--seconds", "120", "--output", "/proc/no-such-folder")
    stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)

    assert process.returncode == Exit.INPUT
    assert stdout == ""
    assert "/proc/no-such-folder" in stderr
    assert stderr.count("\n") == 1


def test_ports_of_others_are_stepped_over():
    """A block with a taken port is not used; the next whole one is."""
    start_at = free_base_port(2, 26_000)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", start_at + 1))
        holder.listen()
        found = free_base_port(2, start_at)

    assert found >= start_at + 3


def test_no_ports_at_all_is_an_engine_error():
    """The search ends below the ports for outgoing connections."""
    with pytest.raises(EngineError):
        free_base_port(16, 32_760)


def test_an_engine_that_dies_is_reported():
    """Killed half-way it leaves no counts, and that is an error rather than a zero."""

    async def run() -> None:
        engine = await start_engine(
            ranks=1, seconds=60, seed=0, worker_id="7", environment=process_environment()
        )
        await engine.kill()
        await engine.result()

    with pytest.raises(EngineError):
        asyncio.run(run())


def test_an_engine_that_cannot_start_is_reported_with_its_own_words():
    """What the process said is part of the error."""

    async def run() -> None:
        await start_engine(ranks=1, seconds=-60, seed=0, worker_id="7", environment=process_environment())

    with pytest.raises(EngineError, match="--seconds"):
        asyncio.run(run())
