"""Log lines of a command: one line each, and nothing in them that drives a terminal."""

from __future__ import annotations

import logging
import sys

import pytest

from forwardpass.cli.logs import log_to_stderr
from forwardpass.quiet import QuietLog

logger = logging.getLogger("forwardpass.tests.logs")


@pytest.fixture(autouse=True)
def _restored() -> object:
    package = logging.getLogger("forwardpass")
    before = (package.level, list(package.handlers))
    yield None
    package.setLevel(before[0])
    package.handlers[:] = before[1]


def test_a_message_cannot_send_escapes_or_forge_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters that a peer put into a quoted name are shown as question marks, newlines too."""
    log_to_stderr()
    logger.warning("refused $.%s", "\x1b[2Jx\nforwardpass: error: all is lost\u202e")

    assert (
        capsys.readouterr().err == "forwardpass: warning: refused $.?[2Jx?forwardpass: error: all is lost?\n"
    )


def test_a_traceback_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """An internal error is shown with its traceback, each line without control characters."""
    log_to_stderr()
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        logger.exception("failed")
    lines = capsys.readouterr().err.splitlines()

    assert lines[0] == "forwardpass: error: failed"
    assert lines[1].startswith("Traceback")
    assert lines[-1] == "ValueError: ?[31mred"


def test_a_quiet_warning_reaches_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """A repeated warning, which asks for no traceback with ``exc_info=False``, is a line like any other."""
    log_to_stderr()
    QuietLog(logger).warning("frames", "skipped 3 frames")

    assert capsys.readouterr().err == "forwardpass: warning: skipped 3 frames\n"


@pytest.mark.parametrize("stderr", ["none", "closed"])
def test_a_missing_stderr_is_no_error(
    stderr: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process started without stderr, or whose stderr was closed, loses the line and nothing else."""
    log_to_stderr()
    closed = open("/dev/null", "w")  # noqa: SIM115
    closed.close()
    monkeypatch.setattr(sys, "stderr", None if stderr == "none" else closed)

    logger.warning("to nobody")

    assert capsys.readouterr().out == ""


def test_a_line_that_cannot_be_made_stops_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with the wrong arguments is reported by logging itself; the caller goes on."""
    monkeypatch.setattr(logging.getLogger("forwardpass"), "propagate", False)  # pytest's own handler raises
    log_to_stderr()
    logger.warning("%d messages", "many")

    assert "Logging error" in capsys.readouterr().err
