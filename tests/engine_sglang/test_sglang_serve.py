"""A released SGLang under ``forwardpass sglang serve``: every row against what was asked over HTTP."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from served_sglang import served

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(400)]

FIRST = list(range(10, 50))
CHUNKED = list(range(100, 700))
CHUNK = 256


def rows_of(folder: Path, prefix: str = "fpm") -> list[TraceRecord]:
    """Return every row, ordered by rank and counter."""
    rows = list(read_trace(sorted(folder.glob(f"{prefix}.*.jsonl.gz"))))
    return sorted(rows, key=lambda row: (row.metrics.dp_rank, row.metrics.counter_id))


def scheduled(rows: list[TraceRecord]) -> list[tuple[int, ...]]:
    """Return (prefills, tokens, kv, decodes, kv) of each pass; heartbeats and SGLang's own probe left out.

    SGLang answers /health with a generated token: one prefill of one token.
    """
    passes = [row.metrics.scheduled_requests for row in rows if row.metrics.wall_time > 0]
    found = [
        (
            one.num_prefill_requests,
            one.sum_prefill_tokens,
            one.sum_prefill_kv_tokens,
            one.num_decode_requests,
            one.sum_decode_kv_tokens,
        )
        for one in passes
    ]
    return [one for one in found if one != (1, 1, 0, 0, 0)]


def decoded_in(folder: Path) -> list[TraceRecord]:
    """Return the rows so far in which something was decoded."""
    return [row for row in rows_of(folder) if row.metrics.scheduled_requests.num_decode_requests]


def decodes(prompt: int, answer: int) -> list[tuple[int, ...]]:
    """Return the decode passes of one request alone: the prefill made the first token."""
    return [(0, 0, 0, 1, prompt + made) for made in range(1, answer)]


def sockets(words: str) -> list[str]:
    """Return the paths of the streams that the launcher said it listens to."""
    line = re.search(r"listening to SGLang \(.*?\) at (.*), worker id", words)
    assert line is not None
    return [url.removeprefix("ipc://") for url in line[1].split(", ")]


def doctor_of(pid: int) -> dict[str, str]:
    """Return what ``doctor`` says of the server that is process ``pid``."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "doctor", "--json"], capture_output=True, text=True, timeout=60
    )
    checks = json.loads(done.stdout)["checks"]
    return next(check for check in checks if check["name"] == f"SGLang, pid {pid}")


def test_every_row_is_what_was_asked_for(sglang_model: str, tmp_path: Path) -> None:
    """SGL-02, SGL-03, SGL-08, D-16: One prompt, the same again from the cache, and one in three chunks: what
    each pass ran is known exactly, the context includes the token computed now, and no socket is left.
    """
    options = ["--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(tmp_path / "fpm")]
    with served(sglang_model, options, tmp_path) as server:
        accounts = [server.generate(FIRST, 8), server.generate(FIRST, 8), server.generate(CHUNKED, 4)]
        assert server.stop() == 0

    cached = accounts[1]["cached_tokens"]
    assert accounts[0]["cached_tokens"] == accounts[2]["cached_tokens"] == 0 < cached
    rows = rows_of(tmp_path)
    assert scheduled(rows) == [
        (1, 40, 0, 0, 0), *decodes(40, 8),
        (1, 40 - cached, cached, 0, 0), *decodes(40, 8),
        (1, CHUNK, 0, 0, 0), (1, CHUNK, CHUNK, 0, 0), (1, 600 - 2 * CHUNK, 2 * CHUNK, 0, 0), *decodes(600, 4),
    ]  # fmt: skip
    assert [row.metrics.counter_id for row in rows] == list(range(len(rows)))
    (worker,) = {row.metrics.worker_id for row in rows}
    assert f"worker id {worker}" in server.words
    assert all(row.metrics.wall_time < 60 for row in rows)
    (path,) = sockets(server.words)
    assert not Path(path).parent.exists()


def test_a_killed_server_leaves_its_trace_and_no_socket(sglang_model: str, tmp_path: Path) -> None:
    """SGL-03, SGL-04, D-16: After SIGKILL of a server with two replicas the trace of both ranks is whole, the
    folder of the sockets is gone, and the status is the server's.
    """
    options = ["--dp-size", "2", "--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(tmp_path / "fpm")]
    with served(sglang_model, options, tmp_path) as server:
        for first in range(4):
            server.generate(list(range(first, first + 30)), 5)
        deadline = time.monotonic() + 30
        while len(decoded_in(tmp_path)) < 4 * 4:  # what is not sent yet dies with its sender
            assert time.monotonic() < deadline
            time.sleep(0.1)
        server_pid = server.server_pid()
        subprocess.run(["kill", "-KILL", str(server_pid)], check=True, timeout=10)
        assert server.ended() == 128 + signal.SIGKILL

    paths = [Path(path) for path in sockets(server.words)]
    assert [path.suffix for path in paths] == [".0", ".1"]
    assert not paths[0].parent.exists()
    decoded = decoded_in(tmp_path)
    assert len(decoded) == 4 * 4
    assert {row.metrics.dp_rank for row in decoded} == {0, 1}


def test_a_stock_server_is_recorded_from_beside(sglang_model: str, tmp_path: Path) -> None:
    """SGL-07, ROLE-04: ``record`` reads the sockets of a server that knows nothing of us, and leaves its id
    alone; ``doctor`` finds it by its command line and hears it.
    """
    base = Path("/tmp") / f"fpm-test-{free_port()}"
    own = [
        *("--no-fpm-trace", "--enable-forward-pass-metrics", "--forward-pass-metrics-worker-id", "foreign"),
        *("--forward-pass-metrics-ipc-name", f"ipc://{base}"),
    ]
    command = [sys.executable, "-m", "forwardpass", "record", f"ipc://{base}", "--ranks", "1"]
    recorder = subprocess.Popen(
        [*command, "--output", str(tmp_path / "beside"), "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        with served(sglang_model, own, tmp_path) as server:
            server.generate(FIRST, 8)
            assert server.request("GET", "/health", None)[0] == 200  # it comes after the passes before it
            said = doctor_of(server.process.pid)
            recorder.send_signal(signal.SIGINT)
            out, _ = recorder.communicate(timeout=60)
            server.stop()
    finally:
        recorder.kill()
        recorder.wait(10)
        for left in base.parent.glob(f"{base.name}*"):
            left.unlink()

    assert said["status"] == "ok", said
    assert "publishes on its sockets" in said["found"]
    assert sum(relay["received"] for relay in json.loads(out)["relays"]) > 8
    rows = rows_of(tmp_path, "beside")
    assert scheduled(rows) == [(1, 40, 0, 0, 0), *decodes(40, 8)]
    assert {row.metrics.worker_id for row in rows} == {"foreign"}
    assert {row.source.producer_id for row in rows} != {"foreign"}
