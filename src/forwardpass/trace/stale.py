"""Knows which producers' files nobody writes any more, and removes them on request (decision D-27).

Retention never touches another producer's files, and a restart is a new producer: their files stay until
somebody asks for this.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

from forwardpass.errors import TracePathError
from forwardpass.trace.discover import parse_ledger_name, parse_segment_name

__all__ = ["SegmentState", "StaleProducer", "beyond", "remove", "stale_producers", "survey"]


class SegmentState(Struct, frozen=True):
    """One segment, or its ledger, as it is on the disk."""

    path: str
    producer: str
    """As in the file name."""
    size: int
    written_unix_ms: int
    """When it was last written."""
    held: bool
    """Some process on this host has it open."""


class StaleProducer(Struct, frozen=True):
    """A producer that seems to be gone."""

    producer: str
    """As in the file names."""
    paths: tuple[str, ...]
    size: int
    """Bytes of all its files."""
    written_unix_ms: int
    """When the newest of them was last written."""


def stale_producers(segments: Iterable[SegmentState], before_unix_ms: int) -> list[StaleProducer]:
    """Return the producers none of whose files was written since, or is open; the longest silent first."""
    by_producer: dict[str, list[SegmentState]] = {}
    for segment in segments:
        by_producer.setdefault(segment.producer, []).append(segment)
    found = [
        StaleProducer(
            producer,
            tuple(segment.path for segment in sorted(own, key=lambda s: s.path)),
            sum(segment.size for segment in own),
            max(segment.written_unix_ms for segment in own),
        )
        for producer, own in by_producer.items()
        if not any(segment.held or segment.written_unix_ms >= before_unix_ms for segment in own)
    ]
    return sorted(found, key=lambda stale: (stale.written_unix_ms, stale.producer))


def beyond(
    stale: Sequence[StaleProducer],
    segments: Collection[SegmentState],
    *,
    producers: int | None = None,
    size: int | None = None,
) -> list[StaleProducer]:
    """Return those of ``stale`` that must go, in their order, so that at most so many ``producers`` and bytes
    are left of ``segments``; all of them without a limit. Who is not stale counts, and stays.
    """
    if producers is None and size is None:
        return list(stale)
    left = len({segment.producer for segment in segments})
    total = sum(segment.size for segment in segments)
    gone = []
    for each in stale:
        if (producers is None or left <= producers) and (size is None or total <= size):
            break
        gone.append(each)
        left, total = left - 1, total - each.size
    return gone


def survey(prefix: str) -> list[SegmentState]:
    """Return the segments and ledgers of every producer with this prefix. Links and folders are none.

    Raises :class:`~forwardpass.errors.TracePathError` if the folder cannot be read.
    """
    directory, stem = os.path.split(prefix)
    found = []
    try:
        with os.scandir(directory or ".") as listing:
            for entry in listing:
                name = parse_segment_name(entry.name) or parse_ledger_name(entry.name)
                if name is None or name.prefix != stem or not entry.is_file(follow_symlinks=False):
                    continue
                with suppress(FileNotFoundError):  # retention has just removed it
                    found.append((entry.path, name.producer, entry.stat(follow_symlinks=False)))
    except OSError as error:
        raise TracePathError(prefix, str(error)) from error
    held = _held_open({(stat.st_dev, stat.st_ino) for _, _, stat in found})
    return [
        SegmentState(
            path, producer, stat.st_size, stat.st_mtime_ns // 1_000_000, (stat.st_dev, stat.st_ino) in held
        )
        for path, producer, stat in found
    ]


def remove(stale: StaleProducer) -> list[OSError]:
    """Delete the producer's files; return what could not be done. Files that are gone already are done."""
    errors = []
    for path in stale.paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            errors.append(error)
    return errors


def _held_open(wanted: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return which of these (device, inode) some process has open, as far as we may look."""
    held = set()
    for process in _numbers("/proc"):
        for descriptor in _numbers(f"/proc/{process}/fd"):
            with suppress(OSError):
                stat = os.stat(f"/proc/{process}/fd/{descriptor}")
                if (stat.st_dev, stat.st_ino) in wanted:
                    held.add((stat.st_dev, stat.st_ino))
    return held


def _numbers(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.isdigit()]
    except OSError:
        return []
