"""What every command answers to wrong use: one line that names it, and exit code 2; and what help says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    [], ["demo"], ["mock"], ["vllm"], ["vllm", "serve"], ["sglang"], ["sglang", "serve"], ["record"],
    ["tail"], ["trace"], ["trace", "ls"], ["trace", "cat"], ["trace", "stats"], ["trace", "verify"],
    ["trace", "repair"], ["trace", "merge"], ["trace", "gaps"], ["trace", "plan"], ["trace", "prune"],
    ["trace", "export"], ["trace", "sql"], ["trace", "derive"], ["doctor"], ["env"], ["trtllm"],
    ["collect"], ["bench"], ["bench", "plan"], ["bench", "run"], ["bench", "validate"], ["bench", "merge"],
    ["bench", "show"], ["bench", "diff"], ["bench", "probe"],
]  # fmt: skip


def run(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [sys.executable, "-m", "forwardpass", *arguments]
    settings: dict[str, object] = {"capture_output": True, "text": True, "timeout": 60, **options}
    return subprocess.run(command, check=False, **settings)  # type: ignore[call-overload, no-any-return]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "forwardpass")
def test_help_has_an_example_and_the_exit_codes(command: list[str]) -> None:
    """The help of every command shows at least one call and says what its exit code means."""
    done = run(*command, "--help")

    assert done.returncode == 0
    assert "Example" in done.stdout
    assert "xit code" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--ranks", "x"], "--ranks='x': expected a whole number from 1 to 16"),
        (["demo", "--seconds", "nan"], "--seconds='nan': expected a number from 0.5 to 3600"),
        (["demo", "--output", ""], "--output='': expected a folder"),
        (["mock", "--seed", "1.5"], "--seed='1.5': expected a whole number"),
        (["record", "--seconds", "inf"], "--seconds='inf': expected a number above 0"),
        (["record", "--plane", "nosuch:x"], "--plane='nosuch:x': expected a plane URL (memory:…, nats:…"),
        (
            ["collect", "--nats", "http://a"],
            "FORWARDPASS_PLANE='http://a': expected nats: or nats://host:port",
        ),
        (["collect", "--stream", "a.b"], "--stream='a.b': expected 1 to 128 letters"),
        (["collect", "--name", "../x"], "--name='../x': expected 1 to 64 letters"),
        (["collect", "--fsync", "often"], "--fsync='often': expected"),
        (
            ["collect", "--batch-seconds", "20"],
            "--batch-seconds=20.0: expected at most half of --ack-wait (30)",
        ),
        (["record", "--mode", "all"], '--mode=\'all\': expected "sampled" or "full"'),
        (["tail", "--limit", "0"], "--limit='0': expected a whole number of at least 1"),
        (["tail", "--plane", "nosuch:x"], "--plane='nosuch:x': expected a plane URL (memory:…"),
        (
            ["tail", "--plane", "memory:x", "--ranks", "2"],
            "--plane='memory:x': expected either a plane or",
        ),
        (["tail", "--plane", " "], "--plane=' ': expected"),
        (["tail", "--endpoint", "a.b.c"], "--endpoint='a.b.c': expected a --plane with it"),
        (["tail", "--plane", "memory:x", "--endpoint", "a.b"], "--endpoint='a.b': expected"),
        (["trace", "cat", "--since", "soon"], "--since='soon': expected Unix milliseconds or a time such"),
        (
            ["trace", "prune", "t", "--older-than", "1"],
            "--older-than='1': expected a number and s, m, h or d",
        ),
        (["trace", "prune", "t", "--keep-bytes", "1x"], "--keep-bytes='1x': expected"),
        (["trace", "export", "t", "--to", "x.doc"], "--to='x.doc': expected a suffix .parquet, .arrow"),
        (
            ["trace", "export", "t", "--to", "-", "--format", "parquet"],
            "--to='-': expected a file for parquet",
        ),
        (["trace", "export", "t", "--to", ""], "--to='': expected a file, a folder"),
        (["trace", "export", "t", "--to", "-", "--dataset"], "--dataset='-': expected a folder"),
        (["trace", "sql", "SELECT 1", "t", "--table", "1=x"], "--table='1=x': expected NAME=PATH"),
        (["trace", "sql", "SELECT 1", "--memory", "x"], "--memory='x': expected a size in bytes"),
        (["trace", "sql", "SELECT 1", "--json", "--csv"], "--csv='--json': expected one of them"),
        (["trace", "sql", "SELEC", "tests/golden/vllm-cpu-full"], "Parser Error: syntax error"),
        (
            ["trace", "sql", "DROP TABLE trace", "tests/golden/vllm-cpu-full"],
            "expected one SELECT, found DROP",
        ),
        (
            ["trace", "derive", "t", "--iterations", "--by-rank-group"],
            "--iterations='--by-rank-group': exp",
        ),
        (["trace", "derive", "t", "--max-skew-ms", "-1"], "--max-skew-ms='-1': expected a whole number"),
        (["bench", "validate"], "Missing argument 'FILE...'"),
        (["bench", "merge"], "Missing argument 'FILE...'"),
        (["bench", "probe"], "Missing argument 'MERGED'"),
        (["bench", "probe", "a"], "--replies='': expected a file; or --engine, --failed or --skipped"),
        (["bench", "probe", "a", "--failed", ""], "--failed='': expected a text that is not empty"),
        (
            ["bench", "probe", "a", "--replies", "b", "--engine", "mock"],
            "--engine='mock': expected no --replies",
        ),
        (["bench", "merge", "a", "--output"], "Option '--output' requires an argument"),
        (["trace", "plan", "--rate", "0"], "--rate='0': expected"),
        (["trace", "merge", ""], "PREFIX='': expected a prefix, a folder or a file"),
        (["doctor", "--block", "70000:2"], "--block='70000:2': expected a base port and a number of ranks"),
        (["doctor", "--port", "65535", "--ranks", "5"], "--port=65535: expected a base port up to 65530"),
        (["trace", "stats", ""], "PREFIX='': expected a prefix, a folder or a file"),
        (["bench", "plan", "--benchmark-mode", "all"], "--benchmark-mode='all': expected prefill, decode or"),
        (["bench", "plan", "--benchmark-mode", ""], "--benchmark-mode='': expected prefill, decode or agg"),
        (
            ["bench", "plan", "--decode-max-batch-size-samples", "1"],
            "--decode-max-batch-size-samples='1': expected an integer of at least 2",
        ),
        (["bench", "plan", "--limits", "x", "--engine", "mock"], "--engine='mock': expected no --limits"),
        (["bench", "plan", "--seconds-per-pass", "0"], "--seconds-per-pass='0': expected a number above 0"),
        (["doctor", "extra"], "Got unexpected extra argument (extra)"),
        (["mock", "--bogus"], "No such option '--bogus'"),
        (["bogus"], "No such command 'bogus'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_use_is_one_line(arguments: list[str], words: str) -> None:
    """A wrong option or value ends with code 2 and one line: what, what was found, accepted, what happens."""
    done = run(*arguments)

    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("forwardpass: ")
    assert words in line
    assert "nothing was started" in line


@pytest.mark.parametrize("arguments", [["env"], ["env", "--json"], ["trace", "ls", "tests/golden"]])
def test_a_closed_stdout_is_no_traceback(arguments: list[str]) -> None:
    """A command whose stdout is closed from the start has nobody to write to, and does not fail for that."""
    command = [sys.executable, "-m", "forwardpass", *arguments]
    script = 'exec "$@" >&-'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *command], check=False, capture_output=True, text=True, timeout=60
    )

    assert "Traceback" not in done.stderr
    assert done.returncode in (0, 3)


def test_a_full_disk_under_stdout_is_named() -> None:
    """Output that cannot be written is a partial result, and said so without error numbers."""
    with open("/dev/full", "w") as full:
        done = run("env", "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)

    assert done.returncode == 4
    assert done.stderr == "forwardpass: the output cannot be written: No space left on device\n"


def test_a_worker_id_in_a_variable_does_not_drive_the_terminal() -> None:
    """``env`` shows what a variable holds without its control characters."""
    done = run("env", "--set", env={"DYN_FPM_WORKER_ID": "w\x1b[31mred"})

    assert "w?[31mred" in done.stdout


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    """An output folder that is a file: code 3, and the line says which path is no folder."""
    (tmp_path / "file").write_text("")
    done = run("record", "--seconds", "0.1", "--output", str(tmp_path / "file" / "t"))

    assert done.returncode == 3
    assert f"{tmp_path / 'file'} is not a folder" in done.stderr
    assert "Errno" not in done.stderr


def test_an_error_does_not_drive_the_terminal() -> None:
    """A path with control characters is shown without them, and a very long one is cut."""
    escape = run("trace", "ls", "/tmp/a\x1b[31mb")
    long = run("trace", "ls", "x" * 5000)

    assert "/tmp/a?[31mb: no such file" in escape.stderr
    assert (escape.returncode, long.returncode) == (3, 3)
    assert len(long.stderr) < 2100


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_worker_id_can_be_written_in_any_locale(encoding: str) -> None:
    """JSON is UTF-8 whatever the locale, and a table in a poor locale has escapes instead of a traceback."""
    environment = {"PYTHONIOENCODING": encoding, "DYN_FPM_WORKER_ID": "\u65e5\u672c", "LC_ALL": "C.UTF-8"}
    document = run("env", "--json", "--set", env=environment, text=False)
    table = run("env", "--set", env=environment, text=False)

    assert json.loads(document.stdout)["variables"][0]["value"] == "\u65e5\u672c"
    assert table.returncode == 0
    shown = b"\\u65e5\\u672c" if encoding == "latin-1" else "\u65e5\u672c".encode()
    assert shown in table.stdout
