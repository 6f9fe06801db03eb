"""``forwardpass sglang serve`` around a program in the place of SGLang's module that replays its frames.

The frames are those that a released SGLang sent; that program itself is run by ``make test-sglang``.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from small_server import Launch

from forwardpass.cli.main import Exit
from forwardpass.config.variables import TABLE
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

GOLDEN = Path(__file__).parent.parent / "golden" / "sglang-cpu-raw" / "raw_zmq_frames.jsonl.gz"

SERVER = """
import gzip, json, os, signal, sys, time
import zmq

def say(**facts):
    with open(os.environ["SERVER_LOG"], "a") as log:
        log.write(json.dumps(facts) + "\\n")

ours = {k: v for k, v in os.environ.items() if k.startswith(("DYN_", "FORWARDPASS_"))}
say(argv=sys.argv[1:], pid=os.getpid(), environment=ours)
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(int(os.environ.get("SERVER_STATUS", "0"))))
given = dict(argument.partition("=")[::2] for argument in sys.argv[1:])
base = given.get("--forward-pass-metrics-ipc-name")
if base is not None and base.startswith("ipc:"):
    socket = zmq.Context.instance().socket(zmq.XPUB)  # a PUB that hears of its subscribers
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(base + ".0")
    assert socket.poll(20000), "nobody subscribed"
    with gzip.open(os.environ["FRAMES"], "rt") as lines:
        for line in lines:
            socket.send_multipart([bytes.fromhex(frame) for frame in json.loads(line)["frames"]])
say(up=True)
while True:
    time.sleep(0.05)
"""


def payloads() -> list[bytes]:
    """Return what the released SGLang sent, in order."""
    lines = gzip.decompress(GOLDEN.read_bytes()).decode().splitlines()
    return [bytes.fromhex(json.loads(line)["frames"][2]) for line in lines]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Launch]]:
    """Return a function that starts the launcher; what is left at the end is killed."""
    (tmp_path / "site" / "sglang").mkdir(parents=True)
    (tmp_path / "site" / "sglang" / "__init__.py").write_text("")
    (tmp_path / "site" / "sglang" / "launch_server.py").write_text(SERVER)
    launches: list[Launch] = []

    def start(*arguments: object, **environment: str) -> Launch:
        ours = {variable.name for variable in TABLE}
        inherited = {name: text for name, text in os.environ.items() if name not in ours}
        inherited["PYTHONPATH"] = os.pathsep.join(
            filter(None, [str(tmp_path / "site"), inherited.get("PYTHONPATH")])
        )
        log = tmp_path / f"server-{len(launches)}.log"
        process = subprocess.Popen(
            [sys.executable, "-m", "forwardpass", "sglang", "serve", *map(str, arguments)],
            env={**inherited, "SERVER_LOG": str(log), "FRAMES": str(GOLDEN), **environment},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        launches.append(Launch(process, log))
        return launches[-1]

    yield start
    for started in launches:
        pid = started.facts().get("pid")
        if started.process.poll() is None:
            started.process.kill()
            started.process.communicate(timeout=20)
            if pid is not None and Path(f"/proc/{pid}").exists():
                os.kill(pid, signal.SIGKILL)


def rows_in(folder: Path) -> list[TraceRecord]:
    """Return the rows that are in the files now."""
    return list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))


def folder_of(launched: Launch) -> Path:
    """Return the folder of the sockets, from the arguments that the server got."""
    (name,) = [text for text in launched.facts()["argv"] if text.startswith("--forward-pass-metrics-ipc")]
    return Path(name.partition("ipc://")[2]).parent


def test_sglangs_frames_become_the_rows_of_the_trace(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """SGL-02, SGL-03, D-16: Every captured frame, over a real socket, is a row with the same text; the server
    gets its own arguments and the three of its publisher; its status is ours; no socket is left.
    """
    running = launch(
        "--model-path", "m", "--fpm-trace", "--fpm-mode", "full", "--fpm-output", tmp_path / "fpm",
        "--forward-pass-metrics-worker-id", "w-sgl", SERVER_STATUS="7",
    ).wait_for("up")  # fmt: skip
    folder = folder_of(running)
    assert folder.is_dir()
    assert running.stop() == 7

    rows = rows_in(tmp_path)
    written = [msgspec.json.decode(row.line)["event"]["fpm"] for row in rows]
    assert json.dumps(written) == json.dumps([msgspec.msgpack.decode(one) for one in payloads()])
    assert not folder.exists()
    argv = running.facts()["argv"]
    assert argv[0] == "--enable-forward-pass-metrics"
    assert argv[2:] == ["--model-path", "m", "--forward-pass-metrics-worker-id", "w-sgl"]
    assert f"listening to SGLang (aggregated role) at ipc://{folder}/fpm.0, worker id w-sgl" in running.words
    assert re.search(r"\d+ passes and \d+ heartbeats of 1 rank", running.words)


def test_a_killed_server_leaves_no_socket(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """SGL-03, D-16: SIGKILL removes nothing by itself; the launcher does, and the trace is whole."""
    running = launch(
        "--fpm-trace", "--fpm-mode", "full", "--fpm-output", tmp_path / "fpm",
        "--forward-pass-metrics-worker-id=w-sgl",
    ).wait_for("up")  # fmt: skip
    folder = folder_of(running)
    deadline = time.monotonic() + 30
    while len(rows_in(tmp_path)) < len(payloads()):  # what is not sent yet dies with its sender
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(running.facts()["pid"], signal.SIGKILL)

    assert running.finish() == 128 + signal.SIGKILL
    assert not folder.exists()
    assert len(rows_in(tmp_path)) == len(payloads())


def test_messages_of_another_worker_are_left_out(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """SGL-02: The id that we drew is in the arguments, and what has another one is not ours."""
    running = launch("--fpm-trace", "--fpm-output", tmp_path / "fpm").wait_for("up")
    running.stop()

    ids = [text for text in running.facts()["argv"] if text.startswith("--forward-pass-metrics-worker-id=")]
    assert len(ids) == 1
    assert f"worker id {ids[0].partition('=')[2]};" in running.words
    assert "carries the stream of worker 'w-sgl', not ours" in running.words
    assert not list(tmp_path.glob("fpm.*.jsonl.gz"))


SWITCHED: dict[str, tuple[list[str], dict[str, str], bool, str]] = {
    "embedding": (["--is-embedding", "--fpm-trace"], {}, False, "sglang role 'embedding' has no relay"),
    "no": (["--no-fpm-trace"], {"DYN_FPM_TRACE": "1"}, False, ""),
    "nothing": ([], {}, False, ""),
    "gateway": (["--tokenizer-worker-num", "2"], {}, False, ""),
    "bad mode": (["--fpm-trace"], {"DYN_FPM_MODE": "sometimes"}, False, "serving goes on"),
    "blank port": ([], {"DYN_FORWARDPASS_METRIC_PORT": " "}, False, ""),
    "port": ([], {"DYN_FORWARDPASS_METRIC_PORT": "no port"}, True, "no trace; "),
    "no socket": (
        ["--fpm-trace", "--forward-pass-metrics-ipc-name=tcp://127.0.0.1:1"],
        {},
        True,
        "expected ipc://PATH; nothing is recorded; serving goes on",
    ),
}
"""Arguments and environment; whether the publisher is on, and what is said."""


def test_what_is_switched_on_and_said(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """ROLE-01, ROLE-02, ROLE-03: Serving goes on whatever is asked; a role that cannot be observed and a bad
    setting cost one line; a port's variable opts in by being set, whatever it says, and records nothing.
    """
    started = {
        case: launch(*arguments, "--fpm-output", tmp_path / "fpm", **environment)
        for case, (arguments, environment, _, _) in SWITCHED.items()
    }
    for case, running in started.items():
        _, _, switched, words = SWITCHED[case]
        running.wait_for("up")
        running.stop()
        assert ("--enable-forward-pass-metrics" in running.facts()["argv"]) is switched, case
        assert words in running.words, case
        assert bool(running.words) is bool(words), case
    assert not list(tmp_path.glob("fpm.*.jsonl.gz"))


def test_gateway_mode_is_refused_before_anything_starts(launch: Callable[..., Launch]) -> None:
    """ROLE-03: Several tokenizer processes with a trace asked for: one line, wrong use, no server."""
    running = launch("--tokenizer-worker-num", "2", "--fpm-trace")

    assert running.finish() == Exit.USAGE
    assert "--tokenizer-worker-num=2: expected 1 or --no-fpm-trace" in running.words
    assert running.facts() == {}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--forward-pass-metrics-ipc-name=tcp://127.0.0.1:1"], "expected ipc://PATH"),
        (["--forward-pass-metrics-ipc-name", f"ipc:///tmp/{'x' * 110}"], "expected tcp://HOST:PORT"),
        (["--fpm-mode", "sometimes"], ""),
    ],
    ids=["tcp", "long", "mode"],
)
def test_strict_refuses_what_cannot_be_streamed(
    launch: Callable[..., Launch], tmp_path: Path, arguments: list[str], words: str
) -> None:
    """SGL-02, D-13: With FORWARDPASS_STRICT a stream that cannot be read is wrong use, and nothing starts; a
    setting of the trace alone still costs the trace only.
    """
    output = ["--fpm-output", str(tmp_path / "fpm")]
    running = launch("--fpm-trace", *arguments, *output, FORWARDPASS_STRICT="1")
    if words:
        assert running.finish() == Exit.USAGE
        assert words in running.words
        assert running.facts() == {}
    else:
        running.wait_for("up")
        assert running.stop() == 0
        assert "serving goes on" in running.words


def test_without_sglang_it_says_so(tmp_path: Path) -> None:
    """SGL-02: No SGLang in this environment is one line that names the interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "sglang", "serve", "--fpm-trace"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )

    assert done.returncode == Exit.INPUT
    assert done.stderr == f"forwardpass: SGLang is not installed for {sys.executable}; install it there\n"
