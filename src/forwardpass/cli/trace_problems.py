"""Knows how what could not be used of a trace is told: the first few, and how many in all."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from forwardpass.cli.main import Exit
from forwardpass.cli.output import say
from forwardpass.cli.terminal import printable
from forwardpass.trace.report import Problem

__all__ = ["SAID_PROBLEMS", "say_problems"]

SAID_PROBLEMS = 5


def say_problems(problems: Iterable[Problem], count: int) -> Exit:
    """Say the first of ``count`` problems on stderr; return the exit code of a command that met them."""
    if not count:
        return Exit.DONE
    for problem in islice(problems, SAID_PROBLEMS):
        say(printable(str(problem), 400))
    if count > SAID_PROBLEMS:
        say(f"{count} problems in all; `forwardpass trace verify` lists them")
    return Exit.PARTIAL
