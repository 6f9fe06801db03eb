"""Knows how rows are spread over the folders of a dataset that engines of data lakes read.

``namespace=…/component=…/date=YYYY-MM-DD/part-000000.parquet``: the date is that of the observation, in UTC.
Values are percent-encoded where a folder's name needs it; text that is empty stands in the folder that such
engines take for null, because a name cannot be empty.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from forwardpass.columnar.extra import arrow_library
from forwardpass.columnar.formats import PARTITIONED_BY, ROW_GROUP_ROWS, ParquetFile

__all__ = ["DatasetWriter", "Key", "partition_folder", "split_rows"]

MAX_OPEN = 32
"""Files written to at the same time; the one used longest ago is finished for another, and a new part begins
when more of its rows come."""

_NULL = "__HIVE_DEFAULT_PARTITION__"
_DAY_MS = 86_400_000

Key = tuple[str, str, int]
"""Namespace, component and day since 1970-01-01."""


def partition_folder(key: Key) -> Path:
    """Return the folder of a partition, relative to the dataset's."""
    namespace, component, day = key
    pa = arrow_library()
    date = pa.scalar(day, pa.date32()).as_py().isoformat()
    names = [
        f"{name}={_quoted(value)}" for name, value in zip(PARTITIONED_BY, (namespace, component), strict=True)
    ]
    return Path(*names, f"date={date}")


def split_rows(batch: Any) -> Iterable[tuple[Key, Any]]:
    """Return the rows of each partition, in the order in which partitions begin."""
    days = [moment // _DAY_MS for moment in batch["observed_at_unix_ms"].to_pylist()]
    names = [batch[name].to_pylist() for name in PARTITIONED_BY]
    keys: list[Key] = list(zip(*names, days, strict=True))
    distinct = dict.fromkeys(keys)
    if len(distinct) == 1:
        return [(keys[0], batch)]
    places: dict[Key, list[int]] = {key: [] for key in distinct}
    for place, key in enumerate(keys):
        places[key].append(place)
    return [(key, batch.take(arrow_library().array(found))) for key, found in places.items()]


class DatasetWriter:
    """Writes record batches into the files of a new dataset below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._pa = arrow_library()
        self._folder = folder
        self._open: dict[Key, tuple[ParquetFile, BinaryIO]] = {}
        self._parts: dict[Key, int] = {}
        self.files = 0

    def write(self, batch: Any) -> None:
        """Take the next rows. Raises ``OSError`` where the disk fails."""
        for key, rows in split_rows(batch):
            self._writer(key).write(rows)
        if sum(writer.pending_rows for writer, _ in self._open.values()) >= 2 * ROW_GROUP_ROWS:
            max((writer for writer, _ in self._open.values()), key=lambda each: each.pending_rows).flush()

    def close(self) -> None:
        """Finish every file. Raises ``OSError``."""
        while self._open:
            self._finish(next(iter(self._open)))

    def abandon(self) -> None:
        """Let go of every file, whatever state it is in."""
        for writer, file in self._open.values():
            writer.abandon()
            file.close()
        self._open.clear()

    def _writer(self, key: Key) -> ParquetFile:
        found = self._open.pop(key, None)
        if found is None:
            if len(self._open) >= MAX_OPEN:
                self._finish(next(iter(self._open)))
            found = self._begin(key)
        self._open[key] = found  # the last one is the one used last
        return found[0]

    def _begin(self, key: Key) -> tuple[ParquetFile, BinaryIO]:
        folder = self._folder / partition_folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        part = self._parts.get(key, 0)
        self._parts[key] = part + 1
        self.files += 1
        file = open(folder / f"part-{part:06d}.parquet", "xb")  # noqa: SIM115  it stays open for more rows
        return ParquetFile(file, without=PARTITIONED_BY), file

    def _finish(self, key: Key) -> None:
        writer, file = self._open[key]
        writer.close()
        del self._open[key]
        file.close()


def _quoted(value: str) -> str:
    return quote(value, safe=" ") if value else _NULL
