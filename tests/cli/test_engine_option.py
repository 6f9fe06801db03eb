"""How recorders and readers say what ``wall_time`` measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engine_process import engine_at, finish, start

from forwardpass.cli.main import Exit
from forwardpass.testing.ports import free_port
from forwardpass.trace.ledger import decode_ledger_line

GOLDEN = Path(__file__).parent.parent / "golden"


def stats(*arguments: str) -> dict[str, object]:
    """Return the summary of ``trace stats``."""
    status, out, err = finish(start(["trace", "stats", "--json", *arguments]))
    assert status == Exit.DONE, err
    summary: dict[str, object] = json.loads(out)["summary"]
    return summary


def test_what_a_recorder_was_told_is_in_the_ledger_and_in_the_summary(tmp_path: Path) -> None:
    """LEDGER-17: ``record --engine`` says it in every line; ``trace stats`` names it, and its own option does
    not change what the recorder knew.
    """
    port = free_port()
    with engine_at(port):
        url = f"tcp://127.0.0.1:{port}"
        command = ["record", url, "--engine", "sglang", "--seconds", "1.5", "--output", str(tmp_path / "fpm")]
        status, out, err = finish(start(command))

    assert status == Exit.DONE, err
    assert "; wall_time is gpu_span" in out
    (ledger,) = tmp_path.glob("fpm.*.ledger")
    lines = [decode_ledger_line(text) for text in ledger.read_bytes().splitlines(keepends=True)]
    assert {(line.engine, line.wall_time) for line in lines if line is not None} == {("sglang", "gpu_span")}
    assert stats(str(tmp_path / "fpm"))["wall_times"] == ["gpu_span"]
    assert stats(str(tmp_path / "fpm"), "--engine", "vllm")["wall_times"] == ["gpu_span"]


@pytest.mark.parametrize(("option", "expected"), [([], [""]), (["--engine", "sglang"], ["gpu_span"])])
def test_a_trace_without_a_ledger_is_what_the_reader_says(option: list[str], expected: list[str]) -> None:
    """LEDGER-17: The reference writes no ledger; the reader may know the engine."""
    assert stats(str(GOLDEN / "sglang-cpu-dynamo-full"), *option)["wall_times"] == expected


@pytest.mark.parametrize("command", [["record"], ["trace", "stats"]])
def test_an_engine_that_nobody_provides_is_wrong_use(command: list[str]) -> None:
    """LEDGER-17: The option is named, with the engines that there are."""
    status, _, err = finish(start([*command, "--engine", "no\x1bne"]))

    assert status == Exit.USAGE
    assert "mock, sglang, trtllm, vllm" in err
    assert "\x1b" not in err
