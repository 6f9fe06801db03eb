"""Knows how the text of a variable becomes a value. Raises ``ValueError``; the caller names the variable.

Integers follow the reference's parser: blanks around, an optional ``+``, ASCII digits, at most
2**64 - 1. Python's ``int()`` would also take ``1_000``, ``-0`` and Arabic digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from forwardpass.wire.keys import Endpoint

__all__ = ["boolean", "choice", "endpoint", "integer", "port_or_none", "seconds", "text", "trace_prefix"]

_INTEGER = re.compile(r"\+?0*([0-9]{1,20})\Z")
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?\Z")
_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no", ""})
_MAX_U64 = 2**64 - 1


def boolean(value: str) -> bool:
    """Return the truth of ``value``; blank is false."""
    word = value.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(value)


def integer(minimum: int = 1, maximum: int = _MAX_U64) -> Callable[[str], int]:
    """Return a parser for integers in ``minimum`` … ``maximum``."""

    def parse(value: str) -> int:
        match = _INTEGER.match(value.strip())
        if match is None:
            raise ValueError(value)
        number = int(match[1])
        if not minimum <= number <= maximum:
            raise ValueError(value)
        return number

    return parse


def port_or_none(minimum: int, maximum: int) -> Callable[[str], int | None]:
    """Return a parser for a base port; blank is ``None``."""
    number = integer(minimum, maximum)
    return lambda value: number(value) if value.strip() else None


def seconds(value: str) -> float:
    """Return a number of seconds >= 0, written as a plain decimal."""
    word = value.strip()
    if not _DECIMAL.match(word):
        raise ValueError(value)
    return float(word)


def choice(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for one of ``words``, in any case, blanks around it ignored."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(value)
        return word

    return parse


def text(value: str) -> str:
    """Return ``value`` without the blanks around it."""
    return value.strip()


def endpoint(value: str) -> Endpoint:
    """Return a Dynamo endpoint written ``namespace.component.endpoint``."""
    return Endpoint.parse(value.strip())


def trace_prefix(value: str) -> str:
    """Return the segment prefix: a path without a trailing ``.jsonl.gz`` or ``.jsonl``."""
    path = value.strip()
    for suffix in (".jsonl.gz", ".jsonl"):
        if path.endswith(suffix):
            path = path[: -len(suffix)]
            break
    if not Path(path).name or path.endswith("/") or "\0" in path:
        raise ValueError(value)
    return path
