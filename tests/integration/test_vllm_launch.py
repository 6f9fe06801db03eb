"""``forwardpass vllm serve`` around a small server: arguments, environment, signals, drain, status.

The server is a script in the place of vLLM's module that publishes a real raw stream; what vLLM itself
does is tested with the real one, in ``tests/engine``.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_server import SERVER, Launch

from forwardpass.cli.main import Exit
from forwardpass.config.variables import TABLE
from forwardpass.engines.vllm.launch import SCHEDULER, find_vllm
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.wire.keys import MAX_PRODUCER_ID


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder for PYTHONPATH in which ``vllm`` is the small server, without metadata."""
    folder = tmp_path / "site"
    for package in ("vllm", "vllm/entrypoints", "vllm/entrypoints/openai", "vllm/entrypoints/cli"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("")
    (folder / "vllm/entrypoints/openai/api_server.py").write_text(SERVER)
    (folder / "vllm/entrypoints/cli/main.py").write_text(SERVER)
    return folder


@pytest.fixture
def launch(tmp_path: Path, site: Path) -> Iterator[Callable[..., Launch]]:
    """Return a function that starts the launcher; what is left at the end is killed."""
    launches: list[Launch] = []

    def start(*arguments: object, **environment: str) -> Launch:
        ours = {variable.name for variable in TABLE}
        inherited = {name: text for name, text in os.environ.items() if name not in ours}
        inherited["VLLM_PLUGINS"] = ""  # the small server loads none
        log = tmp_path / f"server-{len(launches)}.log"
        process = subprocess.Popen(
            [sys.executable, "-m", "forwardpass", "vllm", "serve", *map(str, arguments)],
            env={**inherited, "PYTHONPATH": str(site), "SERVER_LOG": str(log), **environment},
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


def test_the_whole_stream_is_recorded_and_the_status_is_the_servers(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """From the first pass to those of the shutdown nothing is lost; stop, drain, status, summary."""
    port = free_port()
    running = launch(
        "model", "--port", 1, "--fpm-trace", "--fpm-mode", "full", "--fpm-output", tmp_path / "fpm",
        "--fpm-port", port, "-dp", 1, SERVER_STATUS="7",
    ).wait_for("up")  # fmt: skip

    assert running.stop() == 7
    facts = running.facts()
    (file,) = tmp_path.glob("fpm.*.jsonl.gz")
    rows = list(read_trace([file]))
    passes = [row for row in rows if row.metrics.wall_time > 0]
    worker = facts["environment"]["DYN_FPM_WORKER_ID"]
    assert len(passes) == 150
    counters = [row.metrics.counter_id for row in rows]
    assert counters == list(range(counters[0], counters[0] + len(rows)))
    assert {row.metrics.worker_id for row in rows} == {row.source.producer_id for row in rows} == {worker}
    assert 0 < int(worker) <= MAX_PRODUCER_ID
    assert facts["signal"] == "SIGTERM"
    assert f"worker id {worker}" in running.words
    assert "no event plane" in running.words
    assert "150 passes" in running.words


def test_where_vllm_loads_the_plugin_the_scheduler_is_left_to_it(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """ENG-43: The launcher names no scheduler then; what the plugin goes by is in the environment."""
    port = free_port()
    running = launch(
        "model",
        "--fpm-trace",
        "--fpm-output",
        tmp_path / "fpm",
        "--fpm-port",
        port,
        VLLM_PLUGINS="forwardpass",
    ).wait_for("up")
    running.stop()
    facts = running.facts()

    assert facts["argv"] == ["--model", "model"]
    assert facts["environment"]["DYN_FORWARDPASS_METRIC_PORT"] == str(port)
    assert facts["environment"]["FORWARDPASS_RECORDER"].split(":")[0] == str(running.process.pid)


def test_the_server_gets_its_arguments_and_three_variables(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """Ours are taken out wherever they stand; the rest keeps its order; the environment says what is on."""
    port = free_port()
    running = launch(
        "--fpm_output", tmp_path / "fpm", "model", "-tp", "1", "--fpm-trace", "--served-model-name", "a", "b",
        f"--fpm-port={port}", "--", "--fpm-mode", "x", FORWARDPASS_BIND_HOST="127.0.0.1",
        DYN_FPM_WORKER_ID="stale",
    ).wait_for("up")  # fmt: skip
    running.stop()
    facts = running.facts()

    assert facts["module"] == "vllm.entrypoints.openai.api_server"
    assert facts["argv"] == [
        "--model", "model", f"--scheduler-cls={SCHEDULER}",
        "-tp", "1", "--served-model-name", "a", "b", "--fpm-mode", "x",
    ]  # fmt: skip
    worker = facts["environment"].pop("DYN_FPM_WORKER_ID")
    assert worker != "stale"
    mark = facts["environment"].pop("FORWARDPASS_RECORDER")  # tells the plugin in vLLM to leave it to us
    assert mark.split(":")[0] == str(running.process.pid)
    assert mark.split(":")[2:] == [str(port), "0", "1", worker]
    assert facts["environment"] == {
        "DYN_FPM_TRACE": "1",
        "DYN_FORWARDPASS_METRIC_PORT": str(port),
        "FORWARDPASS_BIND_HOST": "127.0.0.1",
    }


def test_a_vllm_with_metadata_is_started_by_its_command_line(
    launch: Callable[..., Launch], site: Path
) -> None:
    """Where a distribution called vllm is installed, ``vllm serve MODEL`` is what runs."""
    metadata = site / "vllm-0.33.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0\n")
    running = launch("model", "--port", 1, "--fpm-port", free_port()).wait_for("up")
    running.stop()

    assert running.facts()["module"] == "vllm.entrypoints.cli.main"
    assert running.facts()["argv"] == ["serve", "model", f"--scheduler-cls={SCHEDULER}", "--port", "1"]


def test_without_a_trace_the_launcher_becomes_vllm(launch: Callable[..., Launch]) -> None:
    """Nothing to relay, nothing to stay for: the same process, stock arguments, nothing said."""
    running = launch("model", "--no-fpm-trace", DYN_FPM_TRACE="1", SERVER_STATUS="5").wait_for("up")

    assert running.stop() == 5
    assert running.facts()["pid"] == running.process.pid
    assert running.facts()["argv"] == ["--model", "model"]
    assert running.facts()["environment"] == {"DYN_FPM_TRACE": "0"}
    assert running.words == ""


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        (["--fpm-trace", "--fpm-mode", "sometimes"], {}, "--fpm-mode='sometimes': expected \"sampled\""),
        (["--fpm-trace"], {"DYN_FPM_MAX_SEGMENTS": "-1"}, "DYN_FPM_MAX_SEGMENTS='-1': expected a positive"),
        ([], {"DYN_FPM_TRACE": "perhaps"}, "DYN_FPM_TRACE='perhaps': expected one of"),
        (["--fpm-trace", "--fpm-port", "80"], {}, "--fpm-port='80': expected an integer from 1024"),
        (["--fpm-trace"], {"DYN_FORWARDPASS_METRIC_PORT": "x"}, "DYN_FORWARDPASS_METRIC_PORT='x': expected"),
        (["--fpm-trace", "--fpm-endpoint", "a.b"], {}, "--fpm-endpoint='a.b': expected namespace."),
        (["--fpm-trace", "--runner", "pooling"], {}, "role 'pooling' has no relay"),
        (["--fpm-trace", "--convert=embed"], {}, "role 'embedding' has no relay"),
    ],
)
def test_what_is_wrong_costs_one_line_and_serving_goes_on(
    launch: Callable[..., Launch], flags: list[str], environment: dict[str, str], words: str
) -> None:
    """One warning with the name, what was found and what is accepted; vLLM runs without our scheduler."""
    running = launch("model", *flags, **environment).wait_for("up")

    assert running.stop() == 0
    (line,) = running.words.splitlines()
    assert line.startswith("forwardpass: warning: ")
    assert words in line
    assert "serving goes on" in line
    assert not any("scheduler" in argument for argument in running.facts()["argv"])


def test_an_invalid_trace_variable_is_no_news_when_the_port_is_set(launch: Callable[..., Launch]) -> None:
    """ENG-31: The port asks for generation whatever the trace variable says: no warning, no trace."""
    running = launch(
        "model", DYN_FPM_TRACE="perhaps", DYN_FORWARDPASS_METRIC_PORT=str(free_port())
    ).wait_for("up")  # fmt: skip
    running.stop()

    assert "warning" not in running.words
    assert "no trace" in running.words
    assert running.facts()["environment"]["DYN_FPM_TRACE"] == "0"


def test_strict_refuses_instead_of_serving_without(launch: Callable[..., Launch]) -> None:
    """``FORWARDPASS_STRICT`` turns an invalid stream setting into exit code 2."""
    running = launch("model", "--fpm-trace", "--fpm-port", "80", FORWARDPASS_STRICT="1")

    assert running.finish() == Exit.USAGE
    assert running.facts() == {}


def test_a_port_alone_relays_and_records_nothing(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """ENG-31: The older opt-in generates; persistence is asked for separately."""
    running = launch(
        "model", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm", "--plane", "memory:test"
    ).wait_for("up")
    running.stop()

    assert list(tmp_path.glob("fpm*")) == []
    assert "event plane memory:test" in running.words
    assert "messages relayed, none recorded" in running.words


def test_a_path_that_cannot_be_written_costs_the_trace_only(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """The engine generates and serves; the trace is off for this producer, said once."""
    (tmp_path / "file").write_text("")
    running = launch(
        "model", "--fpm-trace", "--fpm-port", free_port(), "--fpm-output", tmp_path / "file" / "fpm",
        SERVER_STATUS="4",
    ).wait_for("up")  # fmt: skip

    assert running.stop() == 4
    assert running.words.count("warning") == 1
    assert "trace files cannot be written here" in running.words


def test_a_taken_port_is_not_recorded_as_ours(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """One error names port, variable and holder; the server runs; nobody else's stream is recorded (D-13)."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        running = launch(
            "model", "--fpm-trace", "--fpm-port", port, "--fpm-output", tmp_path / "fpm"
        ).wait_for("up")
        status = running.stop()

    assert status == 0
    launcher_line = running.words.splitlines()[0]
    assert f"port {port} (DYN_FORWARDPASS_METRIC_PORT)" in launcher_line
    assert f"(pid {os.getpid()})" in launcher_line
    assert list(tmp_path.glob("fpm*")) == []


def test_strict_does_not_start_a_server_whose_port_is_taken(launch: Callable[..., Launch]) -> None:
    """``FORWARDPASS_STRICT``: the same error, and no server that would fail half a minute later (D-13)."""
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        running = launch("model", "--fpm-trace", "--fpm-port", port, FORWARDPASS_STRICT="1")
        status = running.finish()

    assert status not in (0, None)
    assert f"port {port} (DYN_FORWARDPASS_METRIC_PORT)" in running.words
    assert running.facts() == {}


def test_only_the_worker_that_was_started_is_recorded(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """Messages of another worker at our port are left out, with a line that names it; serving goes on."""
    running = launch(
        "model", "--fpm-trace", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm",
        SERVER_WORKER="4711",
    ).wait_for("up")  # fmt: skip

    assert running.stop() == 0
    assert list(tmp_path.glob("fpm*")) == []
    assert "carries the stream of worker '4711', not ours" in running.words
    assert "no forward pass arrived" in running.words


def test_a_plane_that_there_is_not_costs_the_recording_only(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """What cannot be relayed is said in one line; the server runs and its status is ours."""
    running = launch(
        "model", "--fpm-trace", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm",
        "--plane", "pigeon:x", SERVER_STATUS="6",
    )  # fmt: skip
    deadline = time.monotonic() + 30
    while "pid" not in running.facts() and running.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)

    assert running.stop() in (6, 128 + signal.SIGTERM)  # the latter before the server handles it
    assert "nothing is relayed or recorded" in running.words
    assert "serving goes on" in running.words
    assert "Traceback" not in running.words


def test_a_foreign_scheduler_is_kept_and_the_silence_explained(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """ENG-32: The operator's class is not replaced; a warning at the start and a line at the end say why."""
    running = launch(
        "model", "--fpm-trace", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm",
        "--scheduler-cls", "mine.Scheduler",
    ).wait_for("up")  # fmt: skip

    assert running.stop() == 0
    assert running.facts()["argv"] == ["--model", "model", "--scheduler-cls", "mine.Scheduler"]
    assert "--scheduler-cls mine.Scheduler is kept" in running.words
    assert "no forward pass arrived; the scheduler in use is not ours" in running.words


def test_a_config_file_is_looked_into(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """A scheduler in vLLM's YAML file is foreign as well; a file that cannot be read is vLLM's affair."""
    config = tmp_path / "serve.yaml"
    config.write_text("scheduler-cls: mine.Scheduler\n")
    running = launch("model", "--config", config, "--fpm-trace", "--fpm-port", free_port()).wait_for("up")
    running.stop()

    assert running.facts()["argv"] == ["--model", "model", "--config", str(config)]
    assert "--scheduler-cls mine.Scheduler is kept" in running.words


def test_a_config_file_that_cannot_be_read_is_left_to_vllm(launch: Callable[..., Launch]) -> None:
    """One warning, and vLLM gets its arguments untouched."""
    running = launch("model", "--config", "/nonexistent.yaml", "--no-fpm-trace").wait_for("up")
    running.stop()

    assert running.facts()["argv"] == ["--model", "model", "--config", "/nonexistent.yaml"]
    assert "--config is not looked into" in running.words


def test_a_server_that_dies_at_its_start_gives_its_status(
    launch: Callable[..., Launch], tmp_path: Path
) -> None:
    """The launcher does not outlive it, and says that nothing arrived."""
    running = launch(
        "model", "--fpm-trace", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm", SERVER_FAILS="3"
    )

    assert running.finish() == 3
    assert "no forward pass arrived" in running.words
    assert list(tmp_path.glob("fpm*")) == []


def test_a_server_that_is_killed_gives_a_shells_status(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """128 + 9, and what had arrived is recorded."""
    running = launch(
        "model",
        "--fpm-trace",
        "--fpm-mode",
        "full",
        "--fpm-port",
        free_port(),
        "--fpm-output",
        tmp_path / "fpm",
    ).wait_for("up")
    time.sleep(0.5)
    os.kill(running.facts()["pid"], signal.SIGKILL)

    assert running.finish() == 128 + signal.SIGKILL
    rows = list(read_trace(list(tmp_path.glob("fpm.*.gz"))))
    assert sum(row.metrics.wall_time > 0 for row in rows) == 50


def test_a_fixed_producer_goes_on_at_the_next_file(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """ENG-35: The producer id can be fixed, the worker id changes with every start (D-29)."""
    workers = []
    for _ in range(2):
        running = launch(
            "model", "--fpm-trace", "--fpm-mode", "full", "--fpm-port", free_port(), "--fpm-output",
            tmp_path / "fpm", "--producer-id", "west/1",
        ).wait_for("up")  # fmt: skip
        running.stop()
        workers.append(running.facts()["environment"]["DYN_FPM_WORKER_ID"])

    names = sorted(path.name for path in tmp_path.glob("fpm.*.gz"))
    assert names == ["fpm.west_1.000000.jsonl.gz", "fpm.west_1.000001.jsonl.gz"]
    assert workers[0] != workers[1]


def test_quiet_means_warnings_only(launch: Callable[..., Launch], tmp_path: Path) -> None:
    """``--fpm-quiet``: no line at the start, no summary at the end."""
    running = launch(
        "model", "--fpm-trace", "--fpm-quiet", "--fpm-port", free_port(), "--fpm-output", tmp_path / "fpm"
    ).wait_for("up")

    assert running.stop(signal.SIGINT) == 0
    assert running.facts()["signal"] == "SIGINT"
    assert running.words == ""
    assert len(list(tmp_path.glob("fpm.*.gz"))) == 1


def test_without_vllm_the_command_says_so(tmp_path: Path) -> None:
    """Exit code 3 and one line that names the interpreter and what to install."""
    if find_vllm() is not None:
        pytest.skip("vLLM is installed here")
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "vllm", "serve", "model"],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip

    assert done.returncode == Exit.INPUT
    assert sys.executable in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_explains_ours_and_points_to_vllms() -> None:
    """``--help`` needs no vLLM; it lists our options with their variables."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "vllm", "serve", "--help"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 0
    assert "`vllm serve --help`" in done.stdout
    assert "DYN_FPM_OUTPUT_PATH" in done.stdout


def test_an_option_of_ours_that_does_not_exist_is_wrong_use() -> None:
    """A typing error in our options is found at once, not after vLLM's start."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "vllm", "serve", "model", "--fpm-tracee"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == Exit.USAGE
    assert "--fpm-trace" in done.stderr
