"""Knows how the text of a variable becomes a value. Raises ``ValueError``; the caller names the variable.

Integers follow the reference's parser: blanks around, an optional ``+``, ASCII digits, at most
2**64 - 1. Python's ``int()`` would also take ``1_000``, ``-0`` and Arabic digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from forwardpass.wire.keys import Endpoint

__all__ = [
    "above_zero",
    "at_least_one",
    "boolean",
    "choice",
    "endpoint",
    "exact",
    "file_path",
    "integer",
    "or_none",
    "port_or_none",
    "seconds",
    "sha256",
    "switched_on",
    "text",
    "trace_prefix",
    "unicode_text",
    "verbatim",
]

_T = TypeVar("_T")
_INTEGER = re.compile(r"\+?0*([0-9]{1,20})\Z")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}\Z")
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


def switched_on(value: str) -> bool:
    """Return the truth of ``value``, for what is on by default; blank is true."""
    return boolean(value) if value.strip() else True


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


def or_none(parser: Callable[[str], _T]) -> Callable[[str], _T | None]:
    """Return ``parser``, for which blank is ``None``."""
    return lambda value: parser(value) if value.strip() else None


def seconds(value: str) -> float:
    """Return a number of seconds >= 0, written as a plain decimal."""
    word = value.strip()
    if not _DECIMAL.match(word):
        raise ValueError(value)
    return float(word)


def above_zero(value: str) -> int | float:
    """Return a number of seconds above 0, as an integer if it is whole."""
    number = seconds(value)
    if not number:
        raise ValueError(value)
    return int(number) if number.is_integer() else number


def at_least_one(value: str) -> float:
    """Return a number of seconds; what is below 1 counts as 1."""
    return max(1.0, seconds(value))


def choice(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for one of ``words``, in any case, blanks around it ignored."""

    def parse(value: str) -> str:
        word = value.strip().lower()
        if word not in words:
            raise ValueError(value)
        return word

    return parse


def exact(words: Sequence[str]) -> Callable[[str], str]:
    """Return a parser for one of ``words`` and nothing else."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(value)
        return value

    return parse


def verbatim(value: str) -> str:
    """Return ``value`` as it is: blanks may belong to it."""
    return value


def unicode_text(value: str) -> str:
    """Return ``value`` as it is, if it is text and not other bytes."""
    value.encode()
    return value


def text(value: str) -> str:
    """Return ``value`` without the blanks around it."""
    return value.strip()


def file_path(value: str) -> str:
    """Return a path that ends in a file name, without the blanks around it."""
    path = value.strip()
    if not Path(path).name or path.endswith("/") or "\0" in path:
        raise ValueError(value)
    return path


def sha256(value: str) -> str:
    """Return a SHA-256 in lower case; blank is blank."""
    digest = value.strip()
    if digest and not _SHA256.match(digest):
        raise ValueError(value)
    return digest.lower()


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
