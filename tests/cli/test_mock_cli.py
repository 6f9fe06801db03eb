"""``forwardpass mock``: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner, Result

from forwardpass.cli.main import Exit
from forwardpass.cli.mock import mock
from forwardpass.config.variables import TABLE
from forwardpass.engines.mock.faults import FaultKind
from forwardpass.errors import ConfigError, PortUnavailable
from forwardpass.testing.ports import free_port

CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)
LIMIT_SECONDS = 30.0


def run(*arguments: object, env: dict[str, str | None] | None = None) -> Result:
    """Run the command in this process."""
    return CliRunner(env={**CLEAN, **(env or {})}).invoke(
        mock, [str(argument) for argument in arguments], standalone_mode=False
    )


def test_words_go_to_stderr_and_the_counts_to_stdout():
    """Where it listens is said at once; at the end there is one line per rank."""
    base = free_port(2)
    result = run("--port", base, "--seconds", 30, "--fast")
    lines = result.stdout.splitlines()

    assert result.return_value == Exit.DONE
    assert f"rank 1 publishes on tcp://127.0.0.1:{base + 1}" in result.stderr
    assert [line.split(":")[0] for line in lines] == ["rank 0", "rank 1"]
    assert all("requests finished" in line and "0 dropped" in line for line in lines)


def test_the_counts_as_json():
    """One document: seconds of the engine's time, and per rank its port, passes, requests and fate."""
    base = free_port(2)
    result = run("--port", base, "--ranks", 1, "--seconds", 30, "--fast", "--json")
    document = json.loads(result.stdout)
    (rank,) = document["ranks"]

    assert document["seconds"] == 30.0
    assert (rank["dp_rank"], rank["port"]) == (0, base)
    assert rank["passes"] == rank["published"]["delivered"] > 500
    assert rank["requests"]["submitted"] >= rank["requests"]["finished"] > 100


def test_a_seed_repeats_the_run():
    """Simulated runs of one seed do the same; another seed does something else."""
    base = free_port(2)
    passes = [
        [rank["requests"] for rank in json.loads(done.stdout)["ranks"]]
        for done in (
            run("--port", base, "--seconds", 20, "--fast", "--json", "--seed", seed) for seed in (1, 1, 2)
        )
    ]

    assert passes[0] == passes[1] != passes[2]


def test_asynchronous_order_is_faster():
    """With the host hidden behind the GPU the same load needs shorter passes, so there are more of them."""
    base = free_port(2)
    synchronous, asynchronous = (
        json.loads(run("--port", base, "--seconds", 20, "--fast", "--json", *more).stdout)["ranks"][0][
            "passes"
        ]
        for more in ([], ["--async"])
    )

    assert asynchronous > synchronous


def test_a_delay_comes_before_the_first_request():
    """Nothing runs before it has passed."""
    result = run("--port", free_port(2), "--seconds", 5, "--delay", 10, "--fast", "--json")

    assert [rank["passes"] for rank in json.loads(result.stdout)["ranks"]] == [0, 0]


def test_the_base_port_may_come_from_the_environment():
    """Without --port the variable of the stream counts."""
    base = free_port(2)
    result = run("--seconds", 1, "--fast", env={"DYN_FORWARDPASS_METRIC_PORT": str(base)})

    assert f"rank 0 publishes on tcp://127.0.0.1:{base}" in result.stderr


def test_the_worker_id_is_the_launchers_or_drawn():
    """D-29: an id in the environment is used; else a random decimal one, so that no stream is nameless."""
    given = run("--port", free_port(2), "--seconds", 1, "--fast", env={"DYN_FPM_WORKER_ID": "4711"})
    drawn = [
        run("--port", free_port(2), "--seconds", 1, "--fast").stderr.split("worker ")[1] for _ in range(2)
    ]

    assert "worker 4711;" in given.stderr
    assert drawn[0].split(";")[0].isdecimal()
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize(
    ("arguments", "variable"),
    [
        (["--fault", "explode=0@1s"], "--fault"),
        (["--fault", "pause=5@1s"], "--fault"),
        (["--port", "80"], "--port"),
        (["--port", "x"], "--port"),
    ],
)
def test_wrong_values_are_refused_by_the_option_that_gave_them(arguments, variable):
    """The error names the option, what was found and what is accepted; nothing is started."""
    result = run(*arguments)

    assert isinstance(result.exception, ConfigError)
    assert result.exception.variable == variable
    assert result.stderr == result.stdout == ""


def test_a_taken_port_is_an_error():
    """An engine whose only work is to publish does not go on when it cannot."""
    base = free_port(2)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", base + 1))
        holder.listen()
        result = run("--port", base, "--seconds", 1)

    assert isinstance(result.exception, PortUnavailable)
    assert result.exception.port == base + 1


def test_the_help_lists_every_fault():
    """The kinds, their meaning and their default come from the table."""
    text = run("--help").stdout

    assert all(f"  {kind} " in text for kind in FaultKind)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number):
    """Ctrl-C and SIGTERM end the run in good order: the counts are printed and the status is 0."""
    base = free_port(2)
    process = subprocess.Popen(
        [sys.executable, "-m", "forwardpass", "mock", "--port", str(base), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        first = process.stderr.readline()
        time.sleep(0.5)
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.wait(LIMIT_SECONDS)
    ranks = json.loads(stdout)["ranks"]

    assert first == f"rank 0 publishes on tcp://127.0.0.1:{base}\n"
    assert process.returncode == 0
    assert "Traceback" not in stderr
    assert [rank["published"]["pending"] for rank in ranks] == [0, 0]


def test_the_module_is_the_command():
    """A mistake on the real command line is one line on stderr and exit code 2."""
    done = subprocess.run(
        [sys.executable, "-m", "forwardpass", "mock", "--fault", "explode=0@1s"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == Exit.USAGE
    assert done.stderr.startswith("forwardpass: --fault='explode=0@1s': expected a kind of fault: pause, ")
    assert done.stderr.count("\n") == 1
