"""Knows how rows are written in each format: Parquet, Arrow (file and stream), CSV and JSON lines.

Parquet encodings were chosen by size (200,000 passes of a simulated engine, gzip 31.4 bytes a row,
2026-12-01): defaults with zstd 3: 25.2 bytes; integers as deltas and floats split by byte: 14.0; with zstd 9
and variances, which are mostly zero, by dictionary: 12.9. Writing that takes 0.7 us a row.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, BinaryIO, Protocol

import msgspec
from msgspec import Raw

from forwardpass.columnar.extra import arrow_library, load
from forwardpass.columnar.schema import COLUMNS, Kind, arrow_schema

__all__ = [
    "ORDER",
    "PARTITIONED_BY",
    "ROW_GROUP_ROWS",
    "ArrowFile",
    "ArrowStream",
    "CsvText",
    "ExportFormat",
    "JsonLines",
    "ParquetFile",
    "RowWriter",
    "writer_for",
]

ROW_GROUP_ROWS = 65_536
"""Rows of a Parquet row group and of an Arrow batch: about 11 MB of columns."""

MAX_GATHERED_BYTES = 32 << 20
"""Columns are written at this size, however few rows they are: ``extra`` may be long."""

ORDER = ("worker_id", "dp_rank", "observed_at_unix_ms")
"""How the rows of each Parquet row group are sorted; rows that are equal in these stay in their order."""

PARTITIONED_BY = ("namespace", "component")
"""Columns that stand in the names of a dataset's folders instead of in its files."""


class ExportFormat(StrEnum):
    """A format of exported rows."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    NDJSON = "ndjson"


class RowWriter(Protocol):
    """Takes record batches of the usual schema and writes them."""

    def write(self, batch: Any) -> None:
        """Take the next rows. Raises ``OSError`` where the disk fails."""

    def close(self) -> None:
        """Write what is pending and the format's end. Raises ``OSError``."""

    def abandon(self) -> None:
        """Write nothing more, whatever is pending."""


def writer_for(form: ExportFormat, file: BinaryIO, *, stream: bool = False) -> RowWriter:
    """Return what writes ``form`` into ``file``. ``stream``: Arrow's form for pipes, not that for files.

    Raises :class:`~forwardpass.errors.MissingExtra`.
    """
    if form is ExportFormat.PARQUET:
        return ParquetFile(file)
    if form is ExportFormat.ARROW:
        return ArrowStream(file) if stream else ArrowFile(file)
    return CsvText(file) if form is ExportFormat.CSV else JsonLines(file)


class _Gathered:
    """Collects batches until they are worth writing."""

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self.rows = 0
        self._bytes = 0

    def add(self, batch: Any) -> bool:
        """Take a batch; say whether it is time to write."""
        self._batches.append(batch)
        self.rows += batch.num_rows
        self._bytes += batch.nbytes
        return self.rows >= ROW_GROUP_ROWS or self._bytes >= MAX_GATHERED_BYTES

    def take(self) -> Any:
        """Return all as one ``pyarrow.Table``, or ``None`` if there is no row, and begin anew."""
        batches, self._batches, self.rows, self._bytes = self._batches, [], 0, 0
        if not batches:
            return None
        return arrow_library().Table.from_batches(batches).unify_dictionaries().combine_chunks()


class ParquetFile:
    """Writes sorted row groups. ``without`` names columns that are left out, ``numbers`` columns of whole
    numbers of at least 0 that the batches have besides, at their end.
    """

    def __init__(
        self, file: BinaryIO, *, without: tuple[str, ...] = (), numbers: tuple[str, ...] = ()
    ) -> None:
        self._pa = arrow_library()
        parquet = load("pyarrow.parquet")
        self._without = without
        self._gathered = _Gathered()
        schema = arrow_schema()
        for name in without:
            schema = schema.remove(schema.get_field_index(name))
        for name in numbers:
            schema = schema.append(self._pa.field(name, self._pa.uint64()))
        words = "each row group by " + ", ".join(ORDER)
        schema = schema.with_metadata({**schema.metadata, b"forwardpass.order": words.encode()})
        kept = [column for column in COLUMNS if column.name not in without]
        self._schema = schema
        self._writer = parquet.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=9,
            use_dictionary=[column.name for column in kept if _by_dictionary(column.name, column.kind)],
            column_encoding={
                **dict.fromkeys(numbers, "DELTA_BINARY_PACKED"),
                **{
                    column.name: "DELTA_BINARY_PACKED" if column.kind is Kind.INTEGER else "BYTE_STREAM_SPLIT"
                    for column in kept
                    if not _by_dictionary(column.name, column.kind)
                },
            },
            sorting_columns=parquet.SortingColumn.from_ordering(
                schema, [(name, "ascending") for name in ORDER]
            ),
        )

    @property
    def pending_rows(self) -> int:
        """Rows that are held until they are enough for a row group."""
        return self._gathered.rows

    def write(self, batch: Any) -> None:
        """Take the next rows."""
        if self._gathered.add(batch):
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one row group."""
        table = self._gathered.take()
        if table is not None:
            table = self._sorted(table).drop_columns(list(self._without))
            self._writer.write_table(table.replace_schema_metadata(self._schema.metadata), len(table))

    def close(self) -> None:
        """Write what is pending and the footer."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Write nothing more; the writer would write its footer when it is collected."""
        self._writer.is_open = False

    def _sorted(self, table: Any) -> Any:
        keys = table.select(list(ORDER))
        keys = keys.set_column(0, "worker_id", keys["worker_id"].cast("string"))  # dictionaries do not sort
        order = self._pa.compute.sort_indices(keys, [(name, "ascending") for name in ORDER])
        return table.take(order)


def _by_dictionary(name: str, kind: Kind) -> bool:
    if kind is Kind.NUMBER:
        return name not in ("wall_time", "scheduled_var_decode_kv_tokens")
    return kind is not Kind.INTEGER


class ArrowStream:
    """Writes Arrow's streaming form, in the order of the rows. Text is plain: not every reader of Arrow takes
    dictionaries that change.
    """

    def __init__(self, file: BinaryIO) -> None:
        pa = arrow_library()
        self._schema = arrow_schema(dictionaries=False)
        self._gathered = _Gathered()
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        self._writer = self._open(pa)(file, self._schema, options=options)

    def write(self, batch: Any) -> None:
        """Take the next rows."""
        if self._gathered.add(batch):
            self._flush()

    def close(self) -> None:
        """Write what is pending and the end."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Do nothing: it writes by itself nothing more."""

    def _open(self, pa: Any) -> Any:
        return pa.ipc.new_stream

    def _flush(self) -> None:
        table = self._gathered.take()
        if table is not None:
            self._writer.write_table(table.cast(self._schema))


class ArrowFile(ArrowStream):
    """Writes Arrow's form for files, also called Feather."""

    def _open(self, pa: Any) -> Any:
        return pa.ipc.new_file


class CsvText:
    """Writes a line of names and a line for each row. Null is an empty field, empty text is ``""``."""

    def __init__(self, file: BinaryIO) -> None:
        self._schema = arrow_schema(dictionaries=False)
        self._pa = arrow_library()
        self._writer = load("pyarrow.csv").CSVWriter(file, self._schema)

    def write(self, batch: Any) -> None:
        """Write rows."""
        self._writer.write_table(self._pa.Table.from_batches([batch]).cast(self._schema))

    def close(self) -> None:
        """Write what is pending."""
        self._writer.close()

    def abandon(self) -> None:
        """Do nothing: it writes by itself nothing more."""


class JsonLines:
    """Writes one JSON object a line; ``extra`` is an object in it, or null."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, batch: Any) -> None:
        """Write rows."""
        rows: Iterable[dict[str, Any]] = batch.to_pylist()
        self._file.write(self._encode([_with_object(row) for row in rows]))

    def close(self) -> None:
        """Do nothing: each row is written when it comes."""

    def abandon(self) -> None:
        """Do nothing, for the same reason."""


def _with_object(row: dict[str, Any]) -> dict[str, Any]:
    if row["extra"] is not None:
        row["extra"] = Raw(row["extra"].encode())
    return row
