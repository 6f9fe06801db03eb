"""``forwardpass tail`` beside a real publisher in another process."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from engine_process import clean_environment, engine_at, finish, run, start

from forwardpass.cli.main import Exit
from forwardpass.testing.nats_server import find_nats_server, nats_server
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import encode
from forwardpass.wire.frames import join
from forwardpass.wire.schema import ForwardPassMetrics


def test_json_lines_until_the_limit() -> None:
    """--json gives one document per pass with every field, as many as asked for, in order."""
    base = free_port(2)
    with engine_at(base):
        code, out, err = run("tail", f"tcp://127.0.0.1:{base}", "--json", "--limit", "20")
    lines = [json.loads(line) for line in out.splitlines()]

    assert (code, err) == (Exit.DONE, "")
    assert [line["seq"] for line in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + 20))
    assert all(line["fpm"]["counter_id"] == line["seq"] for line in lines)
    assert set(lines[0]["fpm"]) == set(ForwardPassMetrics.__struct_fields__)
    assert abs(lines[0]["received_at_unix_ms"] - time.time() * 1000) < 120_000


def test_table_of_two_ranks() -> None:
    """Without --json there is a header and one aligned row per pass of each rank."""
    base = free_port(3)
    with engine_at(base, ranks=2):
        code, out, _ = run("tail", "--ranks", "2", "--limit", "30", DYN_FORWARDPASS_METRIC_PORT=str(base))
    header, *rows = out.splitlines()

    assert code == Exit.DONE
    assert header.split()[:2] == ["time", "UTC"]
    assert len(rows) == 30
    assert {row.split()[2] for row in rows} == {"0", "1"}
    assert {row.split()[1] for row in rows} == {"4192"}
    assert {len(row) for row in rows} == {len(header)}
    assert "\x1b" not in out


def test_one_rank() -> None:
    """--rank shows only that rank, and needs no --ranks."""
    base = free_port(3)
    with engine_at(base, ranks=2):
        _, out, _ = run(
            "tail", "--rank", "1", "--limit", "10", "--json", DYN_FORWARDPASS_METRIC_PORT=str(base)
        )

    assert [json.loads(line)["fpm"]["dp_rank"] for line in out.splitlines()] == [1] * 10


def test_unreadable_messages_are_counted() -> None:
    """What cannot be decoded is counted on stderr; escape sequences in ids are shown, not sent."""
    base = free_port(2)
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    socket.bind(f"tcp://127.0.0.1:{base}")
    process = start(["tail", f"tcp://127.0.0.1:{base}", "--limit", "5"])
    seq = 0
    while process.poll() is None and seq < 3000:
        good = encode(ForwardPassMetrics(worker_id="\x1b]0;owned\x07", counter_id=seq, wall_time=0.1))
        for payload in (b"junk", good):
            socket.send_multipart(join(seq, payload))
            seq += 1
        time.sleep(0.01)
    code, out, err = finish(process)
    socket.close(0)
    context.term()

    assert code == Exit.DONE
    assert "?]0;owned?" in out
    assert "\x1b" not in out + err
    assert "messages could not be read" in err


def test_broken_pipe_is_quiet() -> None:
    """When the reader of our output has had enough, tail ends without a word."""
    base = free_port(2)
    with engine_at(base):
        command = f"{sys.executable} -m forwardpass tail tcp://127.0.0.1:{base} --json | head -n 3"
        piped = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            capture_output=True,
            text=True,
            timeout=60,
            env=clean_environment(),
            check=False,
        )

    assert (piped.returncode, piped.stderr) == (Exit.DONE, "")
    assert len(piped.stdout.splitlines()) == 3


def test_nothing_arrives() -> None:
    """Without a publisher tail says so after three seconds, and its status is 1."""
    code, out, err = run("tail", f"tcp://127.0.0.1:{free_port(2)}", "--seconds", "3.5", "--json")

    assert (code, out) == (Exit.FINDING, "")
    assert "forwardpass doctor" in err


def test_interrupted() -> None:
    """Ctrl-C ends tail with status 130 and no traceback, with the lines so far."""
    base = free_port(2)
    with engine_at(base):
        process = start(["tail", f"tcp://127.0.0.1:{base}", "--json"])
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        code, _, err = finish(process)

    assert json.loads(first)["fpm"]["worker_id"] == "4192"
    assert (code, err.strip()) == (Exit.INTERRUPTED, "")


def test_wrong_url() -> None:
    """A URL that can never work is status 2 and named."""
    code, _, err = run("tail", "tcp://*:20380")

    assert code == Exit.USAGE
    assert "tcp://*:20380" in err


def test_it_imports_no_engine() -> None:
    """tail and record load neither vLLM nor torch."""
    code = (
        "import sys, forwardpass.cli.tail, forwardpass.cli.record; "
        "print({'vllm', 'torch'} & set(sys.modules))"
    )
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True, env=os.environ
    )

    assert output.stdout == "set()\n"


@pytest.mark.parametrize("scheme", ["zmq+file", "nats"])
def test_what_a_recorder_publishes_to_a_plane(scheme: str, tmp_path: Path) -> None:
    """``tail --plane`` shows what ``record --plane`` relays of an engine, in order, with its publisher."""
    if scheme == "nats" and (find_nats_server() is None or importlib.util.find_spec("nats") is None):
        pytest.skip("needs nats-server and nats-py")
    base = free_port(2)
    with ExitStack() as stack:
        url = stack.enter_context(nats_server()).url if scheme == "nats" else f"zmq+file:{tmp_path / 'kv'}"
        stack.enter_context(engine_at(base))
        plane = ["--plane", url, "--endpoint", "tests.backend.generate"]
        recorder = start(
            ["record", f"tcp://127.0.0.1:{base}", "--output", str(tmp_path / "t"), *plane],
            DYN_EVENT_PLANE_HOST="127.0.0.1",
        )
        try:
            code, out, err = run("tail", *plane, "--limit", "20", "--json", DYN_EVENT_PLANE_HOST="127.0.0.1")
        finally:
            recorder.terminate()
            finish(recorder)
    lines = [json.loads(line) for line in out.splitlines()]

    assert (code, err) == (Exit.DONE, "")
    assert [line["seq"] for line in lines] == list(range(lines[0]["seq"], lines[0]["seq"] + 20))
    assert len({line["publisher_id"] for line in lines}) == 1
    counters = [line["fpm"]["counter_id"] for line in lines]
    assert counters == list(range(counters[0], counters[0] + 20))
    assert all(line["received_at_unix_ms"] >= line["published_at_unix_ms"] - 1000 for line in lines)
