"""Log lines of a command: one line each, and nothing in them that drives a terminal."""

from __future__ import annotations

import logging

import pytest

from forwardpass.cli.logs import log_to_stderr

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
