"""``forwardpass doctor`` about engines that run on this host: programs in their places, on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_process import clean_environment, finish, start

from forwardpass.testing.ports import free_port

PROGRAM = textwrap.dedent(
    """
    import sys, time
    import zmq
    from forwardpass.wire.codec import encode
    from forwardpass.wire.frames import join
    from forwardpass.wire.schema import ForwardPassMetrics
    given = dict(zip(sys.argv[1:], [*sys.argv[2:], ""]))
    name = given.get("--forward-pass-metrics-ipc-name")
    socket = zmq.Context.instance().socket(zmq.PUB)
    if name and "--silent" not in sys.argv:
        socket.bind(name + ".0")
    print("up", flush=True)
    for number in range(100_000):
        if name and "--silent" not in sys.argv:
            socket.send_multipart(join(number, encode(ForwardPassMetrics(worker_id="w", counter_id=number))))
        time.sleep(0.05)
    """
)


ON = ["--enable-forward-pass-metrics"]
NAMED = [*ON, "--forward-pass-metrics-ipc-name"]
SGLANG: dict[str, tuple[list[str], str]] = {
    "off": ([], "without --enable-forward-pass-metrics"),
    "nameless": (ON, "whose name it invented"),
    "gone": ([*NAMED, "ipc:///tmp/fpm-no-such", "--silent"], "/tmp/fpm-no-such.0 is not there"),
    "embedding": (["--is-embedding"], "its role, embedding"),
}
"""Arguments of a server, and what keeps it from publishing."""
TRTLLM: dict[str, tuple[str | None, str, str]] = {
    "statistics": ("enable_iter_perf_stats: true\n", "ok", "forwardpass trtllm"),
    "events": ("kv_cache_config:\n  event_buffer_max_size: 1024\n", "warn", "KV cache events only"),
    "neither": ("max_batch_size: 8\n", "warn", "enable_iter_perf_stats is not true"),
    "pipe": (None, "warn", "enable_iter_perf_stats is not true"),  # nothing ever writes to it
}
"""An options file, the status, and what is said."""


@contextlib.contextmanager
def running(folder: Path, *command: str) -> Iterator[int]:
    """Run a program; yield its process id once it is up."""
    environment = clean_environment()
    environment["PYTHONPATH"] = f"{folder}:{environment.get('PYTHONPATH', '')}"
    process = subprocess.Popen(
        [sys.executable, *command], env=environment, stdout=subprocess.PIPE, cwd=folder
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process.pid
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


class Said(NamedTuple):
    """What one run of doctor said of all the programs."""

    engines: dict[str, dict[str, Any]]
    """Name of the case -> check."""
    arrival: dict[str, Any]
    status: int


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Run a program for every case, and doctor once."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "sglang").mkdir()
    (folder / "sglang" / "launch_server.py").write_text(PROGRAM)
    (folder / "trtllm-serve").write_text(PROGRAM)
    pids: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        sockets = stack.enter_context(tempfile.TemporaryDirectory(prefix="fpm"))
        servers = {name: arguments for name, (arguments, _) in SGLANG.items()}
        servers["publishing"] = [*NAMED, f"ipc://{sockets}/s"]
        for name, arguments in servers.items():
            pids[name] = stack.enter_context(running(folder, "-m", "sglang.launch_server", *arguments))
        for name, (text, _, _) in TRTLLM.items():
            options = folder / f"{name}.yaml"
            os.mkfifo(options) if text is None else options.write_text(text)
            command = [str(folder / "trtllm-serve"), "m", "--extra_llm_api_options", options.name]
            pids[name] = stack.enter_context(running(folder, *command))
        status, out, err = finish(start(["doctor", "--json", "--wait", "1", "--port", str(free_port())]))
    assert not err
    checks = {check["name"].rpartition(", pid ")[2]: check for check in json.loads(out)["checks"]}
    return Said({name: checks[str(pid)] for name, pid in pids.items()}, checks["arrival"], status)


@pytest.mark.parametrize("case", SGLANG)
def test_what_keeps_an_sglang_server_from_publishing(said: Said, case: str) -> None:
    """ROLE-04: A server that runs is found by its command line, with the reason and the remedy."""
    check = said.engines[case]

    assert check["status"] == "warn"
    assert SGLANG[case][1] in check["found"]
    assert check["next_step"]


def test_an_sglang_server_that_publishes_arrives(said: Said) -> None:
    """ROLE-04, SGL-07: Its socket is listened to, so that no port has to speak."""
    assert said.engines["publishing"]["status"] == "ok"
    assert "publishes on its sockets" in said.engines["publishing"]["found"]
    assert (said.arrival["status"], said.status) == ("ok", 0)


@pytest.mark.parametrize("case", TRTLLM)
def test_the_options_of_a_tensorrt_llm_server(said: Said, case: str) -> None:
    """ROLE-04, TRAP-11: Its options file says whether there are statistics; events alone give no passes."""
    _, status, words = TRTLLM[case]

    assert said.engines[case]["status"] == status
    assert words in said.engines[case]["found"] + said.engines[case]["next_step"]
