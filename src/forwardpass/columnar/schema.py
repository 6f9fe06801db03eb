"""Knows the columns of a trace: their names, types, units and meaning.

The columns are the envelope's fields and the payload's, the nested ones with a prefix. Integers are 64 bit
and signed, although they are never negative: engines of SQL refuse to subtract unsigned ones when the
difference is below zero. A larger one (the wire allows up to 2^64 - 1 for sums) is null in its column and
stands in ``extra``, with every digit.

History of ``COLUMNS_VERSION``: 1. A new field of the payload becomes a new column; until then it stands in
``extra``.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import msgspec

from forwardpass.columnar.extra import arrow_library
from forwardpass.trace.record import TRACE_SCHEMA
from forwardpass.wire.schema import (
    FPM_VERSION,
    ForwardPassMetrics,
    QueuedRequestMetrics,
    ScheduledRequestMetrics,
)

__all__ = [
    "COLUMNS",
    "COLUMNS_FORMAT",
    "COLUMNS_VERSION",
    "PAYLOAD_FIELDS",
    "QUEUED_FIELDS",
    "SCHEDULED_FIELDS",
    "Column",
    "Kind",
    "arrow_schema",
]

COLUMNS_FORMAT = "forwardpass.trace.columns"
COLUMNS_VERSION = 1


class Kind(Enum):
    """The type of a column."""

    TEXT = "text"
    """Of few different values."""
    INTEGER = "integer"
    """64 bit, signed."""
    NUMBER = "number"
    """64 bit, floating."""
    JSON = "json"
    """Text that is a JSON object."""


class Column(NamedTuple):
    """One column."""

    name: str
    kind: Kind
    unit: str
    description: str


PAYLOAD_FIELDS = tuple(
    name
    for name in ForwardPassMetrics.__struct_fields__
    if name not in ("version", "scheduled_requests", "queued_requests")
)
"""Fields of the payload that are columns of the same name."""
SCHEDULED_FIELDS = ScheduledRequestMetrics.__struct_fields__
"""Fields of ``scheduled_requests``; the columns begin with ``scheduled_``."""
QUEUED_FIELDS = QueuedRequestMetrics.__struct_fields__
"""Fields of ``queued_requests``; the columns begin with ``queued_``."""

_ENVELOPE = (
    Column("timestamp", Kind.INTEGER, "ms", "Time since this row's writer started; not to align producers"),
    Column("observed_at_unix_ms", Kind.INTEGER, "ms since 1970-01-01T00:00:00Z", "When it was observed"),
    Column("capture_mode", Kind.TEXT, "", "full or sampled"),
    Column("namespace", Kind.TEXT, "", "Namespace of the source"),
    Column("component", Kind.TEXT, "", "Component of the source"),
    Column("producer_id", Kind.TEXT, "", "Decimal id of the producer that wrote the row"),
)

_OF_PASS = {
    "worker_id": ("", "Decimal id of the worker"),
    "dp_rank": ("rank", "Global data-parallel rank of the scheduler that ran the pass"),
    "counter_id": ("messages", "The publisher's own sequence; not a step id"),
    "wall_time": ("s", "Time of the pass, as its engine defines it; 0 only in heartbeats"),
}

_OF_SCHEDULED = {
    "num_prefill_requests": ("requests", "New requests and continuations of chunked prefills in the pass"),
    "sum_prefill_tokens": ("tokens", "Prompt tokens computed in the pass; cached ones do not count"),
    "var_prefill_length": ("tokens^2", "Population variance of the lengths of their whole prompts"),
    "sum_prefill_kv_tokens": ("tokens", "Prompt tokens whose KV is read instead of computed"),
    "num_decode_requests": ("requests", "Requests in the generation phase in the pass"),
    "sum_decode_kv_tokens": ("tokens", "Sum of their context lengths in KV"),
    "var_decode_kv_tokens": ("tokens^2", "Population variance of those context lengths"),
}

_OF_QUEUED = {
    "num_prefill_requests": ("requests", "Requests that wait for their first pass"),
    "sum_prefill_tokens": ("tokens", "Sum of their whole prompt lengths"),
    "var_prefill_length": ("tokens^2", "Population variance of those lengths"),
    "num_decode_requests": ("requests", "Requests that were preempted or wait for transferred KV"),
    "sum_decode_kv_tokens": ("tokens", "Sum of their context lengths"),
    "var_decode_kv_tokens": ("tokens^2", "Population variance of those context lengths"),
}

_KINDS = {int: Kind.INTEGER, float: Kind.NUMBER, str: Kind.TEXT}


def _columns_of(
    struct: type[msgspec.Struct], names: tuple[str, ...], prefix: str, words: dict[str, tuple[str, str]]
) -> tuple[Column, ...]:
    kinds = {
        field.name: _KINDS[field.type] for field in msgspec.structs.fields(struct) if field.name in names
    }
    return tuple(Column(prefix + name, kinds[name], *words[name]) for name in names)


COLUMNS = (
    *_ENVELOPE,
    *_columns_of(ForwardPassMetrics, PAYLOAD_FIELDS, "", _OF_PASS),
    *_columns_of(ScheduledRequestMetrics, SCHEDULED_FIELDS, "scheduled_", _OF_SCHEDULED),
    *_columns_of(QueuedRequestMetrics, QUEUED_FIELDS, "queued_", _OF_QUEUED),
    Column(
        "extra",
        Kind.JSON,
        "",
        "Fields of the payload without a column, at their place, and integers beyond 64 bit; else null",
    ),
)
"""Every column, in order."""


def arrow_schema(*, dictionaries: bool = True) -> Any:
    """Return the columns as a ``pyarrow.Schema``.

    Each field's metadata has ``unit`` and ``description``; the schema's has the format's name and version and
    what it was made of. Text of few different values is dictionary-encoded, or plain without
    ``dictionaries``. Raises :class:`~forwardpass.errors.MissingExtra`.
    """
    pa = arrow_library()
    text = pa.dictionary(pa.int32(), pa.string()) if dictionaries else pa.string()
    types = {Kind.TEXT: text, Kind.INTEGER: pa.int64(), Kind.NUMBER: pa.float64(), Kind.JSON: pa.string()}
    fields = [
        pa.field(
            column.name,
            types[column.kind],
            metadata={"unit": column.unit, "description": column.description},
        )
        for column in COLUMNS
    ]
    return pa.schema(
        fields,
        metadata={
            "forwardpass.format": COLUMNS_FORMAT,
            "forwardpass.format_version": str(COLUMNS_VERSION),
            "forwardpass.source_schema": TRACE_SCHEMA,
            "forwardpass.message_version": str(FPM_VERSION),
        },
    )
