"""Knows how a document becomes indented JSON text piece by piece, without being in memory as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import Raw

__all__ = ["Rows", "indented", "object_text"]

INDENT = 2


class Rows:
    """A list in a document whose items are made one after the other, each as JSON text."""

    def __init__(self, texts: Iterable[bytes | Raw]) -> None:
        self.texts = texts


def object_text(items: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """Yield the text of an object of ``items``: values to be encoded, or :class:`Rows`.

    The text depends on the values alone, also where rows were written in another style.
    """
    separator = b"{\n"
    for key, value in items:
        yield separator + b"  " + msgspec.json.encode(key) + b": "
        separator = b",\n"
        if isinstance(value, Rows):
            yield from _list_text(value)
        else:
            yield indented(msgspec.json.encode(value), 1)
    yield b"{}" if separator == b"{\n" else b"\n}"


def indented(text: bytes | Raw, depth: int) -> bytes:
    """Return JSON text with a line for each value, all but the first of them ``depth`` levels in."""
    formatted = msgspec.json.format(text, indent=INDENT)
    return formatted.replace(b"\n", b"\n" + b" " * (INDENT * depth))  # no newline stands within a string


def _list_text(rows: Rows) -> Iterator[bytes]:
    separator = b"[\n    "
    for text in rows.texts:
        yield separator + indented(text, 2)
        separator = b",\n    "
    yield b"[]" if separator.startswith(b"[") else b"\n  ]"
