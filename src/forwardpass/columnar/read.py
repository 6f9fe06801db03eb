"""Knows how traces are read as columns: the tolerant reader's rows, in its order, as Arrow record batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forwardpass.columnar.decode import HIGHEST, ColumnDecoder
from forwardpass.columnar.extra import arrow_library
from forwardpass.columnar.schema import COLUMNS
from forwardpass.trace.reader import RowReader, TraceReport, log_problem
from forwardpass.trace.report import Problem
from forwardpass.trace.row_filter import RowFilter

if TYPE_CHECKING:
    import pyarrow

__all__ = ["ColumnReader", "read_trace_arrow"]

GATHER_BYTES = 1 << 20
"""Text decoded at once. Arrow and DuckDB need many rows to be fast: 2.5 us a row with half as many, 2.3 with
these, all columns (AMD EPYC, 2026-12-01)."""


def read_trace_arrow(
    paths: str | Path | Iterable[str | Path],
    *,
    on_problem: Callable[[Problem], None] | None = None,
    unverified: bool = False,
    columns: Collection[str] | None = None,
) -> pyarrow.RecordBatchReader:
    """Return the rows of the traces at ``paths`` as a stream of record batches.

    The rows are those of :func:`~forwardpass.trace.reader.read_trace`, in its order; ``paths``,
    ``on_problem`` and ``unverified`` are as there. The columns are those of
    :data:`~forwardpass.columnar.schema.COLUMNS`. A batch has about 1,500 rows, and one is held at a time.
    DuckDB, Polars and pandas take the stream as it is. ``columns`` names those that are wanted, all by
    default; they come in the schema's order.

    Raises :class:`~forwardpass.errors.TracePathError` as ``read_trace``,
    :class:`~forwardpass.errors.MissingExtra` without the extra ``analyze``, and ``ValueError`` for a column
    that does not exist.
    """
    reader = ColumnReader(paths, on_problem=on_problem or log_problem, unverified=unverified, columns=columns)
    return reader.stream()


class ColumnReader:
    """Reads traces once, as record batches of the rows that are ``wanted``; ``report`` is on all rows."""

    def __init__(
        self,
        paths: str | Path | Iterable[str | Path],
        *,
        on_problem: Callable[[Problem], None] | None = None,
        unverified: bool = False,
        wanted: RowFilter | None = None,
        columns: Collection[str] | None = None,
    ) -> None:
        self._pa = arrow_library()
        self._wanted = wanted or RowFilter()
        self._columns = _known(columns)
        looked_at = () if self._wanted.keeps_all else ("worker_id", "dp_rank", "observed_at_unix_ms")
        decoder = ColumnDecoder(None if columns is None else {*self._columns, *looked_at})
        self._reader: RowReader[Any] = RowReader(
            paths,
            decoder,
            on_problem=on_problem,
            unverified=unverified,
            decode_text=decoder.whole_text,
            gather_bytes=GATHER_BYTES,
        )

    @property
    def report(self) -> TraceReport:
        """What was in the files that were read so far."""
        return self._reader.report

    def batches(self) -> Iterator[Any]:
        """Yield ``pyarrow.RecordBatch`` objects; none is empty."""
        if self._wanted.keeps_all:
            yield from self._reader.batches()
            return
        for batch in self._reader.batches():
            kept = batch.filter(self._mask(batch))
            if kept.num_rows:
                yield kept.select(self._columns)

    def stream(self) -> Any:
        """Return the same as a ``pyarrow.RecordBatchReader``."""
        return self._pa.RecordBatchReader.from_batches(ColumnDecoder(self._columns).schema, self.batches())

    def _mask(self, batch: Any) -> Any:
        """Return for each row whether it is wanted; one whose rank no column holds is not."""
        compute, wanted = self._pa.compute, self._wanted
        observed = batch["observed_at_unix_ms"]
        conditions = []
        if wanted.worker is not None:
            conditions.append(compute.equal(batch["worker_id"].cast("string"), wanted.worker))
        if wanted.rank is not None:
            held = wanted.rank <= HIGHEST
            equal = compute.equal(batch["dp_rank"], wanted.rank if held else 0).fill_null(False)
            conditions.append(equal if held else compute.and_(equal, compute.invert(equal)))
        if wanted.since_unix_ms is not None:
            conditions.append(compute.greater_equal(observed, _in_range(wanted.since_unix_ms)))
        if wanted.until_unix_ms is not None:
            conditions.append(compute.less(observed, _in_range(wanted.until_unix_ms)))
        return reduce(compute.and_, conditions)


def _known(columns: Collection[str] | None) -> list[str]:
    """Return the wanted columns in the schema's order. Raises ``ValueError`` for one that does not exist."""
    names = [column.name for column in COLUMNS]
    if columns is None:
        return names
    for name in columns:
        if name not in names:
            raise ValueError(f"{name!r} is no column of a trace; these are: {', '.join(names)}")
    if not columns:
        raise ValueError("no column: a batch without one has no rows")
    return [name for name in names if name in columns]


def _in_range(moment: int) -> int:
    """Return a moment that compares with every time of a row as ``moment`` does, in 64 bit."""
    return max(-1, min(moment, HIGHEST))
