"""Knows how segments are named, numbered, rolled and pruned. It opens no file.

A segment is ``<prefix>.<producer>.<index>.jsonl.gz`` with the index in at least six digits, and its ledger
``<prefix>.<producer>.<index>.ledger``. Anything that does not reproduce its own name exactly is somebody
else's file.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from msgspec import Struct

from forwardpass.trace.ledger import LEDGER_SUFFIX
from forwardpass.wire.keys import sanitize_producer_id

__all__ = ["MAX_INDEX", "Entry", "Fill", "SegmentNames", "lonely_ledgers", "prunable"]

_SUFFIX = ".jsonl.gz"
_INDEX_DIGITS = 6
MAX_INDEX = 2**64 - 1
"""The highest number of a segment."""


class Entry(Struct, frozen=True):
    """One entry of the trace folder."""

    name: str
    regular: bool
    """A regular file, not a directory, symlink or device."""


class SegmentNames(Struct, frozen=True):
    """The names that the segments of one producer have."""

    prefix: str
    """Path without suffixes, as the settings give it."""
    producer: str
    """The producer id, already fit for a file name."""

    @classmethod
    def of(cls, prefix: str, producer_id: str) -> SegmentNames:
        """Return the names for a producer id as it appears in rows."""
        return cls(prefix, sanitize_producer_id(producer_id))

    @property
    def directory(self) -> str:
        """The folder the segments are in."""
        return os.path.dirname(self.prefix) or "."

    def path(self, index: int) -> str:
        """Return the path of segment ``index``."""
        return os.path.join(self.directory, self._name(index))

    def ledger_path(self, index: int) -> str:
        """Return the path of the ledger beside segment ``index``."""
        return os.path.join(self.directory, self._name(index, LEDGER_SUFFIX))

    def index_of(self, name: str) -> int | None:
        """Return the index of the segment called ``name`` (no folder), or ``None`` if it is none of ours."""
        return self._index(name, _SUFFIX)

    def ledger_index_of(self, name: str) -> int | None:
        """Return the index of the ledger called ``name`` (no folder), or ``None`` if it is none of ours."""
        return self._index(name, LEDGER_SUFFIX)

    def next_index(self, names: Iterable[str]) -> int:
        """Return the index after the highest among ``names``, whatever kind of entry has it; 0 for none.

        A ledger without its segment counts too: it tells of another life.
        """
        taken = (self._index(name, suffix) for name in names for suffix in (_SUFFIX, LEDGER_SUFFIX))
        return max((index + 1 for index in taken if index is not None), default=0)

    def _index(self, name: str, suffix: str) -> int | None:
        stem = self._stem()
        if not (name.startswith(stem) and name.endswith(suffix)):
            return None
        digits = name[len(stem) : -len(suffix)]
        if not (digits.isascii() and digits.isdigit()):
            return None
        index = int(digits)
        return index if index <= MAX_INDEX and self._name(index, suffix) == name else None

    def _stem(self) -> str:
        return f"{os.path.basename(self.prefix)}.{self.producer}."

    def _name(self, index: int, suffix: str = _SUFFIX) -> str:
        return f"{self._stem()}{index:0{_INDEX_DIGITS}d}{suffix}"


class Fill:
    """What the current segment holds: rows, and their uncompressed bytes with the newline."""

    __slots__ = ("bytes", "rows")

    def __init__(self) -> None:
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, row_bytes: int) -> None:
        """Count rows in, or out again with negative numbers."""
        self.rows += rows
        self.bytes += row_bytes

    def rolls_before(self, row_bytes: int, roll_bytes: int) -> bool:
        """Say whether a row of ``row_bytes`` belongs into the next segment.

        Reaching the limit exactly does not roll, and a row larger than the limit goes alone into an
        empty segment.
        """
        return self.rows > 0 and self.bytes + row_bytes > roll_bytes


def prunable(names: SegmentNames, entries: Iterable[Entry], max_segments: int, active: int) -> list[int]:
    """Return the indices to delete, lowest first, so that ``max_segments`` regular files remain.

    Only regular files count and only they are deleted; the ``active`` segment counts and never is.
    """
    found = (names.index_of(entry.name) for entry in entries if entry.regular)
    indices = sorted(index for index in found if index is not None)
    surplus = max(0, len(indices) - max_segments)
    return [index for index in indices if index != active][:surplus]


def lonely_ledgers(
    names: SegmentNames, entries: Collection[Entry], gone: Collection[int], active: int
) -> list[int]:
    """Return the indices of ledgers to delete: regular files older than the ``active`` segment whose segment
    is not among ``entries``, or ``gone``.
    """
    segments = {names.index_of(entry.name) for entry in entries}
    ledgers = (names.ledger_index_of(entry.name) for entry in entries if entry.regular)
    old = sorted(index for index in ledgers if index is not None and index < active)
    return [index for index in old if index not in segments or index in gone]
