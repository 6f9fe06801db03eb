"""Knows how to show text that strangers wrote without letting it drive the terminal.

Worker ids and unknown fields come from the network. Escape sequences, control characters and invisible
direction marks in them are shown, not sent.
"""

from __future__ import annotations

import re
import shutil
from typing import TextIO

from forwardpass.config.settings import process_environment

__all__ = ["colourful", "json_for_terminal", "page_width", "printable", "redraws", "terminal_width"]

_PAGE = 110
"""Columns where there is no terminal."""

_HIDDEN_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What JSON leaves as it is and a terminal may obey: DEL, the C1 controls, separators, direction marks."""


def printable(text: str, limit: int = 200) -> str:
    """Return at most ``limit`` characters of ``text``, with ``?`` for each that has no visible form."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:limit])


def json_for_terminal(document: str) -> str:
    r"""Return the same JSON document with invisible characters as ``\uXXXX``.

    The result reads back to the same value, because such characters occur in strings only.
    """
    return _HIDDEN_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", document)


def redraws(stream: TextIO) -> bool:
    """Say whether a line on ``stream`` can be drawn over: a terminal, and not one that calls itself dumb."""
    return stream.isatty() and process_environment().get("TERM", "dumb") != "dumb"


def terminal_width(stream: TextIO) -> int | None:
    """Return the columns of the terminal that ``stream`` is, or ``None`` if it is none."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def page_width(stream: TextIO) -> int:
    """Return how wide tables may be: the terminal, or what fits most pages where ``stream`` is none."""
    return max(40, terminal_width(stream) or _PAGE)


def colourful(stream: TextIO) -> bool:
    """Say whether colours may be used: on a terminal that is not dumb, unless ``NO_COLOR`` is set."""
    return redraws(stream) and not process_environment().get("NO_COLOR")
