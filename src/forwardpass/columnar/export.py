"""Knows how rows of traces get into a new file, a new dataset or a pipe."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from forwardpass.columnar.dataset import DatasetWriter
from forwardpass.columnar.formats import ExportFormat, writer_for
from forwardpass.columnar.new_output import new_file, new_folder

__all__ = ["Exported", "export_dataset", "export_file", "export_pipe", "format_of"]

_SUFFIXES = {
    ".parquet": ExportFormat.PARQUET,
    ".arrow": ExportFormat.ARROW,
    ".feather": ExportFormat.ARROW,
    ".arrows": ExportFormat.ARROW,
    ".csv": ExportFormat.CSV,
    ".ndjson": ExportFormat.NDJSON,
    ".jsonl": ExportFormat.NDJSON,
}


class Exported(Struct, frozen=True):
    """What was written."""

    rows: int
    files: int
    size: int
    """Bytes of all files."""


def format_of(path: str | Path) -> ExportFormat | None:
    """Return the format that a file's name tells, or ``None``."""
    return _SUFFIXES.get(Path(path).suffix.lower())


def export_file(
    batches: Iterable[Any], path: str | Path, form: ExportFormat, *, force: bool = False
) -> Exported:
    """Write record batches to the new file ``path``; ``.arrows`` takes Arrow's form for pipes.

    It is there whole or not at all. Raises :class:`~forwardpass.errors.TracePathError` for a name that is
    there already (unless ``force``) and where the disk fails, and what reading the batches raises.
    """
    path = Path(path)
    with new_file(path, force=force) as file:
        rows = export_pipe(batches, file, form, stream=path.suffix.lower() == ".arrows")
    return Exported(rows, 1, path.stat().st_size)


def export_pipe(batches: Iterable[Any], file: BinaryIO, form: ExportFormat, *, stream: bool = True) -> int:
    """Write record batches to an open file, and return how many rows. Raises ``OSError``."""
    writer = writer_for(form, file, stream=stream)
    rows = 0
    try:
        for batch in batches:
            writer.write(batch)
            rows += batch.num_rows
        writer.close()
    finally:
        writer.abandon()
    return rows


def export_dataset(batches: Iterable[Any], folder: str | Path, *, force: bool = False) -> Exported:
    """Write record batches to a new dataset (see :mod:`~forwardpass.columnar.dataset`); raises as above."""
    folder, rows = Path(folder), 0
    with new_folder(folder, force=force) as temporary:
        writer = DatasetWriter(temporary)
        try:
            for batch in batches:
                writer.write(batch)
                rows += batch.num_rows
            writer.close()
        finally:
            writer.abandon()
    return Exported(rows, writer.files, sum(path.stat().st_size for path in folder.rglob("*.parquet")))
