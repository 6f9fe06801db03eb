"""What a row's columns must hold, worked out from the record that the tolerant reader gives."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from forwardpass.columnar.schema import COLUMNS
from forwardpass.trace.record import TraceRecord

__all__ = ["expected_row", "expected_rows", "rows_of"]

KNOWN = {
    "scheduled_requests": "scheduled_",
    "queued_requests": "queued_",
}


def fits(value: Any) -> bool:
    """Say whether a column of 64 bit holds it."""
    return not isinstance(value, int) or -(2**63) <= value < 2**63


def put(row: dict[str, Any], rest: dict[str, Any], column: str, name: str, value: Any) -> None:
    """Put a value into its column, or into the rest."""
    row[column] = value if fits(value) else None
    if not fits(value):
        rest[name] = value


def expected_row(record: TraceRecord) -> dict[str, Any]:
    """Return column -> value, ``extra`` as a parsed object."""
    written = json.loads(record.line)["event"]["fpm"]
    rest = {name: value for name, value in written.items() if name not in record.metrics.__struct_fields__}
    row: dict[str, Any] = {
        "timestamp": record.timestamp if fits(record.timestamp) else None,
        "observed_at_unix_ms": record.observed_at_unix_ms,
        "capture_mode": record.capture_mode,
        "namespace": record.source.namespace,
        "component": record.source.component,
        "producer_id": record.source.producer_id,
    }
    for name in ("worker_id", "dp_rank", "counter_id", "wall_time"):
        put(row, rest, name, name, getattr(record.metrics, name))
    for nested, prefix in KNOWN.items():
        struct = getattr(record.metrics, nested)
        fields = written.get(nested, {})
        inner = {name: value for name, value in fields.items() if name not in struct.__struct_fields__}
        for name in struct.__struct_fields__:
            put(row, inner, prefix + name, name, getattr(struct, name))
        if inner:
            rest[nested] = inner
    row["extra"] = rest or None
    assert list(row) == [column.name for column in COLUMNS]
    return row


def expected_rows(records: Iterable[TraceRecord]) -> list[dict[str, Any]]:
    """Return the same of each record."""
    return [expected_row(record) for record in records]


def rows_of(batches: Iterable[Any]) -> list[dict[str, Any]]:
    """Return the rows of record batches or a table, ``extra`` as a parsed object."""
    rows = [row for batch in batches for row in batch.to_pylist()]
    return [{**row, "extra": row["extra"] and json.loads(row["extra"])} for row in rows]
