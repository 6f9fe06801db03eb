"""Knows how results reach a person or a program: tables to a terminal, JSON to a pipe.

Data goes to stdout, words to stderr. Colour only on a terminal, never when piped or with ``NO_COLOR``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from forwardpass.cli.terminal import json_for_terminal

__all__ = [
    "aligned",
    "ending_quietly",
    "say",
    "write_bytes",
    "write_json",
    "write_lines",
]


@contextmanager
def ending_quietly() -> Iterator[None]:
    """End the command without a word when whoever reads our output has seen enough (``| head``)."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at exit


def say(message: str) -> None:
    """Write words for a person to stderr."""
    click.echo(message, err=True)


def write_json(value: Any) -> None:
    """Write one JSON document to stdout, indented for people, keys in their own order.

    It holds what strangers wrote (worker ids), so that nothing in it is left for a terminal to obey.
    """
    document = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    write_bytes([json_for_terminal(document).encode()])


def write_bytes(lines: Iterable[bytes]) -> None:
    """Write lines to stdout as they are, each with a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(b"".join(line + b"\n" for line in lines))
    sys.stdout.buffer.flush()


def write_lines(lines: Iterable[str]) -> None:
    """Write lines of text to stdout."""
    sys.stdout.write("".join(line + "\n" for line in lines))
    sys.stdout.flush()


def aligned(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return rows as lines of a plain table: the first ``left`` columns to the left, others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines
