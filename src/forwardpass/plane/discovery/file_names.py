"""Knows how a record's path becomes a file name of file discovery, and back.

Every byte that is no ASCII letter or digit is written as ``%XX``, also a ``%``, a dash or a slash.
"""

from __future__ import annotations

import re

__all__ = ["TEMPORARY_PREFIX", "file_name", "path_of"]

TEMPORARY_PREFIX = ".tmp_"
"""Names that begin so are being written; readers pass over them."""

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_NAME = re.compile(r"(?:[A-Za-z0-9]|%[0-9A-F]{2})+\Z")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def file_name(path: str) -> str:
    """Return the file name of the record at ``path``."""
    raw = path.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in raw)


def path_of(name: str) -> str | None:
    """Return the path of the record in a file called ``name``, or ``None`` for the name of no record."""
    if not _NAME.match(name):
        return None
    raw = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name).encode("latin-1")
    try:
        path = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return path if file_name(path) == name else None
