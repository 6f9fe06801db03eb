"""Knows how the sound rows of traces get into new files, while the old ones stay as they are.

A repaired file has the rows that a reader is sure of, byte for byte and in their order, in gzip members
that any program reads. Nothing is made up: what is damaged is left out and reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from forwardpass.errors import TracePathError
from forwardpass.trace.discover import ledger_of
from forwardpass.trace.new_file import NewTraceFile
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.report import FileFormat, FileReport

__all__ = ["RepairedFile", "repair"]


class RepairedFile(Struct, frozen=True):
    """What became of one file."""

    target: str | None
    """The new file; ``None`` if there was no row to write."""
    rows: int
    """Rows in it."""
    source: FileReport
    """What the old one holds."""

    @property
    def lossless(self) -> bool:
        """Whether every byte of the old file stands in a row of the new one."""
        return self.source.intact


def repair(files: Iterable[Path], folder: str | Path, *, unverified: bool = False) -> Iterator[RepairedFile]:
    """Write each of ``files`` anew into ``folder``, under its own name, and yield what became of it.

    Gzip stays gzip, plain lines stay plain. ``unverified`` also takes the whole rows of torn members, which
    no checksum proves. The folder is made if it is missing. A name that exists there in any form is not
    touched. Raises :class:`~forwardpass.errors.TracePathError` for it, and where the disk fails; the file
    that was being written is removed then, those before it stay.
    """
    target_folder = Path(folder)
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TracePathError(str(folder), f"cannot be made: {error.strerror}") from error
    for path in files:
        yield _repair_file(path, target_folder / path.name, unverified=unverified)


def _repair_file(path: Path, target: Path, *, unverified: bool) -> RepairedFile:
    reader = TraceReader(path, unverified=unverified)
    with NewTraceFile(target) as new:
        for batch in reader.batches():
            new.compressed = reader.report.files[0].format is FileFormat.GZIP
            for record in batch:
                new.add(record.line)
    if new.rows:
        _copy_ledger(path, target)
    return RepairedFile(str(target) if new.rows else None, new.rows, reader.report.files[0])


def _copy_ledger(path: Path, target: Path) -> None:
    """Copy what explains the gaps beside the new file, if it is there and the name is free."""
    ledger, copy = ledger_of(path), ledger_of(target)
    if ledger is None or copy is None:
        return
    with suppress(OSError), ledger.open("rb") as old, copy.open("xb") as new:
        shutil.copyfileobj(old, new)
