"""What every command answers to wrong use: one line that names it, and exit code 2; and what help says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = [
    [], ["demo"], ["mock"], ["vllm"], ["vllm", "serve"], ["record"], ["tail"], ["trace"], ["trace", "ls"],
    ["trace", "cat"], ["trace", "stats"], ["trace", "verify"], ["trace", "clean"], ["doctor"], ["env"],
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
        (["record", "--plane", "nosuch:x"], "--plane='nosuch:x': expected a plane URL (memory:…)"),
        (["record", "--mode", "all"], '--mode=\'all\': expected "sampled" or "full"'),
        (["tail", "--limit", "0"], "--limit='0': expected a whole number of at least 1"),
        (["trace", "cat", "--since", "soon"], "--since='soon': expected Unix milliseconds or a time such"),
        (["trace", "clean", "--older-than", "1"], "--older-than='1': expected a number and s, m, h or d"),
        (["doctor", "--block", "70000:2"], "--block='70000:2': expected a base port and a number of ranks"),
        (["doctor", "--port", "65535", "--ranks", "5"], "--port=65535: expected a base port up to 65530"),
        (["trace", "stats", ""], "PREFIX='': expected a prefix, a folder or a file"),
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
