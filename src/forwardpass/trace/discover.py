"""Knows which files belong to a trace: by prefix, by folder, or by name, in the order they were written.

A segment is called ``<prefix>.<producer>.<index>.jsonl.gz``, the index in at least six digits. The order
is natural: by folder, prefix, producer and index as numbers, so that segment 1000000 follows 999999.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from forwardpass.errors import TracePathError
from forwardpass.trace.ledger import LEDGER_SUFFIX
from forwardpass.trace.segments import SegmentNames

__all__ = [
    "SegmentName",
    "by_producer",
    "find_segments",
    "ledger_of",
    "parse_ledger_name",
    "parse_segment_name",
]

_SEGMENT = re.compile(r"(?P<prefix>.+)\.(?P<producer>[A-Za-z0-9_-]+)\.[0-9]{6,20}\.jsonl\.gz", re.ASCII)
_TRACE_SUFFIXES = (".jsonl.gz", ".jsonl")


class SegmentName(NamedTuple):
    """A segment's file name, taken apart."""

    prefix: str
    producer: str
    number: int


def parse_segment_name(name: str) -> SegmentName | None:
    """Return the parts of a segment's file name (no folder), or ``None`` if it is none."""
    match = _SEGMENT.fullmatch(name)
    if match is None:
        return None
    index = SegmentNames(match["prefix"], match["producer"]).index_of(name)
    return None if index is None else SegmentName(match["prefix"], match["producer"], index)


def parse_ledger_name(name: str) -> SegmentName | None:
    """Return the segment that a ledger's file name (no folder) belongs to, or ``None`` if it is none."""
    if not name.endswith(LEDGER_SUFFIX):
        return None
    return parse_segment_name(name.removesuffix(LEDGER_SUFFIX) + ".jsonl.gz")


def find_segments(paths: str | Path | Iterable[str | Path]) -> list[Path]:
    """Return the files that ``paths`` stand for, each once, segments in natural order.

    Each path is a file of any name, a folder (its segments; if it has none, its ``*.jsonl.gz`` and
    ``*.jsonl`` files; folders in it are not searched), or the prefix that a writer was given. Files that
    are no segments keep the given order and come after the segments. Raises :class:`TracePathError` for
    a path that stands for nothing.
    """
    given = [paths] if isinstance(paths, (str, Path)) else list(paths)
    found: dict[Path, None] = {}
    for path in given:
        matches = _stands_for(Path(path))
        if not matches:
            raise TracePathError(str(path), "no such file, no folder with traces, no prefix of a trace")
        found.update(dict.fromkeys(matches))
    return sorted(found, key=_natural)


def by_producer(files: Iterable[Path]) -> list[list[Path]]:
    """Return the files by folder, prefix and producer, in order; one that is no segment stands alone."""
    found: dict[tuple[str, ...], list[Path]] = {}
    for path in files:
        name = parse_segment_name(path.name)
        key = (str(path),) if name is None else (str(path.parent), name.prefix, name.producer)
        found.setdefault(key, []).append(path)
    return list(found.values())


def ledger_of(path: Path) -> Path | None:
    """Return where the ledger of a segment is, if it has one; ``None`` for a file that is no segment."""
    name = parse_segment_name(path.name)
    if name is None:
        return None
    return path.parent / os.path.basename(SegmentNames(name.prefix, name.producer).ledger_path(name.number))


def _stands_for(path: Path) -> list[Path]:
    try:
        if path.is_dir():
            return _in_folder(path) + _with_prefix(path)
        if path.exists():
            return [path]
        return _with_prefix(path)
    except (OSError, ValueError) as error:
        raise TracePathError(str(path), str(error)) from error


def _in_folder(folder: Path) -> list[Path]:
    names = [name for name in sorted(os.listdir(folder)) if name.endswith(_TRACE_SUFFIXES)]
    names = [name for name in names if (folder / name).is_file()]
    segments = [name for name in names if parse_segment_name(name) is not None]
    return [folder / name for name in segments or names]


def _with_prefix(path: Path) -> list[Path]:
    prefix = path.name
    for suffix in _TRACE_SUFFIXES:
        prefix = prefix.removesuffix(suffix)
    if not prefix or not path.parent.is_dir():
        return []
    names = (name for name in os.listdir(path.parent) if name.startswith(prefix + "."))
    matches = [(parse_segment_name(name), path.parent / name) for name in names]
    return [file for name, file in matches if name is not None and name.prefix == prefix and file.is_file()]


def _natural(path: Path) -> tuple[object, ...]:
    name = parse_segment_name(path.name)
    if name is None:
        return (1,)
    producer = (0, int(name.producer), "") if _is_number(name.producer) else (1, 0, name.producer)
    return (0, str(path.parent), name.prefix, producer, name.number)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
