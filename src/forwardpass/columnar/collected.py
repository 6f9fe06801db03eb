"""Knows how a collector writes a Parquet dataset that others write to as well.

The folders are those of :mod:`~forwardpass.columnar.dataset`. Each batch becomes new files, one in each of
its folders, complete and forced to the disk before they get their names, ``part-<collector>-<n>.parquet``.
Besides the usual columns they have ``message_sequence``: with ``producer_id``, the id of the publisher, it
tells which message a row is.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from forwardpass.columnar.dataset import partition_folder, split_rows
from forwardpass.columnar.decode import ColumnDecoder
from forwardpass.columnar.extra import arrow_library, load
from forwardpass.columnar.formats import PARTITIONED_BY, ParquetFile
from forwardpass.trace.folders import make_folder, sync_folder
from forwardpass.trace.preflight import prove_writable
from forwardpass.trace.record import MessageId

__all__ = ["SEQUENCE_COLUMN", "CollectedDataset"]

SEQUENCE_COLUMN = "message_sequence"


class CollectedDataset:
    """One collector's files in a dataset.

    Raises :class:`~forwardpass.errors.TracePathError` for a folder that cannot be written and
    :class:`~forwardpass.errors.MissingExtra`.
    """

    def __init__(self, folder: str | Path, name: str) -> None:
        self._pa = arrow_library()
        self._folder = Path(folder)
        prove_writable(str(self._folder / "part"))
        self._stem = f"part-{name}-{secrets.token_hex(4)}"
        self._number = 0
        self._decode = ColumnDecoder()
        self._files: list[str] = []
        self.last_error: str | None = None

    def messages(self, most: int) -> list[MessageId]:
        """Return the messages of the newest ``most`` rows or so of the dataset, newest file last."""
        newest_last: list[MessageId] = []
        for path in _newest_first(self._folder):
            newest_last[:0] = self._messages_of(path)
            if len(newest_last) >= most:
                break
        return newest_last[-most:]

    def write(self, lines: Sequence[bytes], sequences: Sequence[int]) -> bool:
        """Write rows, given as lines of a trace; return whether all of them are on the disk now.

        If not, none of them is.
        """
        batch = self._decode([line.rstrip(b"\n") for line in lines])
        batch = batch.append_column(SEQUENCE_COLUMN, self._pa.array(sequences, self._pa.uint64()))
        number, self._number = self._number, self._number + 1
        done: list[Path] = []
        try:
            for key, rows in split_rows(batch):
                done.append(self._write_part(self._folder / partition_folder(key), number, rows))
        except OSError as error:
            self.last_error = error.strerror or str(error)
            for path in done:
                with suppress(OSError):
                    path.unlink()
            return False
        self._files += map(str, done)
        return True

    @property
    def files(self) -> tuple[str, ...]:
        """The files written here, oldest first."""
        return tuple(self._files)

    def _write_part(self, folder: Path, number: int, rows: Any) -> Path:
        for changed in make_folder(str(folder)):
            with suppress(OSError):
                sync_folder(changed)
        path = folder / f"{self._stem}-{number:06d}.parquet"
        hidden = folder / f".{path.name}.tmp"
        try:
            with hidden.open("xb") as file:
                writer = ParquetFile(file, without=PARTITIONED_BY, numbers=(SEQUENCE_COLUMN,))
                try:
                    writer.write(rows)
                    writer.close()
                finally:
                    writer.abandon()
                file.flush()
                os.fsync(file.fileno())
            hidden.rename(path)
        except BaseException:
            with suppress(OSError):
                hidden.unlink()
            raise
        with suppress(OSError):
            sync_folder(str(folder))
        return path

    def _messages_of(self, path: Path) -> Iterable[MessageId]:
        parquet = load("pyarrow.parquet")
        try:
            # Without partitioning: names of folders are not wanted here.
            table = parquet.ParquetFile(path).read(columns=["producer_id", SEQUENCE_COLUMN])
        except (OSError, ValueError):  # gone, somebody else's, or cut short by a power loss
            return
        publishers = table["producer_id"].cast("string").to_pylist()
        for publisher, sequence in zip(publishers, table[SEQUENCE_COLUMN].to_pylist(), strict=True):
            if publisher.isascii() and publisher.isdigit() and sequence is not None:
                yield MessageId(int(publisher), sequence)


def _newest_first(folder: Path) -> list[Path]:
    times: dict[Path, float] = {}
    for path in folder.rglob("part-*.parquet"):
        with suppress(OSError):
            times[path] = path.stat().st_mtime
    return sorted(times, key=lambda path: times[path], reverse=True)
