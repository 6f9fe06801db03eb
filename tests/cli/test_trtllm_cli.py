"""``forwardpass trtllm`` against an HTTP server that answers as trtllm-serve documents it."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from engine_process import finish, start

from forwardpass.cli.main import Exit
from forwardpass.engines.trtllm.endpoint import parse_endpoint
from forwardpass.errors import EngineError
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace

sys.path.insert(0, str(Path(__file__).parent.parent / "unit" / "engines"))
from trtllm_rows import row


class Statistics:
    """A server whose ``/metrics`` hands out what waits, once."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.body: bytes | None = None
        """Sent instead of what waits."""
        self.status = 200
        self.asked = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked += 1
                found = self.path == "/metrics"
                rows, outer.waiting = (outer.waiting, []) if found else ([], outer.waiting)
                body = outer.body if outer.body is not None else json.dumps(rows).encode()
                self.send_response(outer.status if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.port = free_port()
        self._server = HTTPServer(("127.0.0.1", self.port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def url(self) -> str:
        """The address to give to the command."""
        return f"http://127.0.0.1:{self.port}"

    def wait_until_taken(self) -> None:
        """Wait until nothing waits any more."""
        deadline = time.monotonic() + 30
        asked = self.asked
        while self.waiting or self.asked < asked + 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        """Stop and join."""
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@pytest.fixture
def statistics() -> Iterator[Statistics]:
    """Run a server for one test."""
    server = Statistics()
    yield server
    server.close()


def options(statistics: Statistics, tmp_path: Path, *more: str) -> list[str]:
    """Return the command line."""
    command = ["trtllm", "--metrics-url", statistics.url, "--interval", "0.05"]
    return [*command, "--output", str(tmp_path / "fpm"), *more]


def test_rows_become_the_trace(statistics: Statistics, tmp_path: Path) -> None:
    """TRT-01, TRT-05, TRT-06: Every row of both ranks is one row of the trace with its own counter from 1,
    and what comes right before the stop is recorded too; the port's variable is not looked at.
    """
    statistics.waiting = [row(rank=rank, numGenRequests=step) for step in range(20) for rank in (0, 1)]
    process = start(options(statistics, tmp_path, "--ranks", "2"), DYN_FORWARDPASS_METRIC_PORT="none")
    statistics.wait_until_taken()
    statistics.waiting = [row(numGenRequests=99)]
    process.send_signal(signal.SIGINT)
    status, out, err = finish(process)

    assert status == Exit.DONE, err
    assert "41 passes" in out
    passes = [one.metrics for one in read_trace(sorted(tmp_path.glob("fpm.*.jsonl.gz")))]
    passes = [one for one in passes if one.wall_time > 0]
    for rank, steps in ((0, [*range(20), 99]), (1, list(range(20)))):
        own = [one for one in passes if one.dp_rank == rank]
        assert [one.scheduled_requests.num_decode_requests for one in own] == steps
        assert [one.counter_id for one in own][:20] == list(range(1, 21))
    assert {one.wall_time for one in passes} == {0.0125}
    assert len({one.worker_id for one in passes}) == 1


def test_a_build_without_the_keys_ends_by_itself(statistics: Statistics, tmp_path: Path) -> None:
    """TRT-02, TRAP-09: One line names what is missing, nothing is published; the exit code is a finding."""
    statistics.waiting = [row(numCtxKvTokens=None), row(numCtxKvTokens=None)]
    status, _, err = finish(start(options(statistics, tmp_path)))

    assert status == Exit.FINDING
    assert err.count("lack numCtxKvTokens; no forward passes are published") == 1
    assert not list(tmp_path.glob("fpm.*.jsonl.gz"))


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (404, b"[]", "status 404; expected 200"),
        (200, b"# HELP x\nx 1\n", "expected a JSON list"),
        (200, b'{"iter": 1}', "expected a JSON list"),
        (200, b"[" * 100_000, "expected a JSON list"),
    ],
    ids=["missing", "prometheus", "object", "deep"],
)
def test_what_is_no_list_is_said_once(
    statistics: Statistics, tmp_path: Path, status: int, body: bytes, words: str
) -> None:
    """TRT-05: Another answer is one warning, however often it is asked for, and no heartbeats call the
    engine idle.
    """
    statistics.status, statistics.body = status, body
    process = start(options(statistics, tmp_path))
    deadline = time.monotonic() + 30
    while statistics.asked < 4:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, _, err = finish(process)

    assert code == Exit.FINDING
    assert err.count(words) == 1
    assert not list(tmp_path.glob("fpm.*.jsonl.gz"))


def test_a_server_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    """TRT-05: Nobody at the address is one warning, and the command waits for it to come up."""
    url = f"http://127.0.0.1:{free_port()}"
    command = ["trtllm", "--metrics-url", url, "--interval", "0.05", "--seconds", "0.5"]
    status, _, err = finish(start([*command, "--output", str(tmp_path / "fpm")]))

    assert status == Exit.FINDING
    assert err.count("statistics cannot be read") == 1
    assert "Traceback" not in err


def test_an_answer_that_never_ends_is_given_up() -> None:
    """TRT-05: A server that sends a byte now and then does not hold the poller for ever."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        ended = threading.Event()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
                while not ended.wait(0.02):
                    connection.sendall(b" ")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            endpoint = parse_endpoint(f"http://127.0.0.1:{listener.getsockname()[1]}")
            with pytest.raises(EngineError, match="no end"):
                endpoint.fetch(0.2)
        finally:
            ended.set()
            thread.join(10)


def test_a_wrong_address_is_wrong_use() -> None:
    """TRT-05: The option is named, with what would be accepted."""
    status, _, err = finish(start(["trtllm", "--metrics-url", "ftp://x"]))

    assert status == Exit.USAGE
    assert "--metrics-url='ftp://x': expected http://HOST:PORT" in err
