"""Knows how lines of a trace become columns, with exactly the values that the tolerant reader gives.

The usual line has every field of the schema, no other, and integers of 64 bit. It is decoded by types that
accept nothing else, so that nothing needs to be looked for afterwards. If one line of a batch is not so,
each line is tried, and those that are not so are read by the tolerant reader's own decoder; then what the
columns cannot hold is collected in ``extra``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from forwardpass.columnar.extra import arrow_library
from forwardpass.columnar.schema import (
    PAYLOAD_FIELDS,
    QUEUED_FIELDS,
    SCHEDULED_FIELDS,
    arrow_schema,
)
from forwardpass.trace.record import TraceRecord, TraceSource, UnixMs, decode_lines
from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

__all__ = ["HIGHEST", "LOWEST", "ColumnDecoder"]

LOWEST, HIGHEST = -(2**63), 2**63 - 1
_Int64 = Annotated[int, Meta(ge=LOWEST, le=HIGHEST)]
"""Checking the bounds of each integer makes decoding a third slower, so that it is done only where making a
column failed."""

_METRICS_FIELDS = ForwardPassMetrics.__struct_fields__
_NESTED = {"scheduled_requests": SCHEDULED_FIELDS, "queued_requests": QUEUED_FIELDS}


def _strict(known: type[Struct], integer: Any, **nested: type[Struct]) -> type[Struct]:
    """Return a type with the fields of ``known``, each required, and no other accepted."""
    fields = []
    for field in msgspec.structs.fields(known):
        kind = nested.get(field.name, integer if field.type is int else field.type)
        fields.append((field.name, Literal[1] if field.name == "version" else kind))
    return msgspec.defstruct(f"Strict{known.__name__}", fields, gc=False, forbid_unknown_fields=True)


def _strict_row(integer: Any) -> type[Struct]:
    metrics = _strict(
        ForwardPassMetrics,
        integer,
        scheduled_requests=_strict(ScheduledRequestMetrics, integer),
        queued_requests=_strict(QueuedRequestMetrics, integer),
    )
    event = msgspec.defstruct(
        "StrictEvent",
        [
            ("schema", Literal["dynamo.fpm.trace.v1"]),
            ("source", TraceSource),
            ("capture_mode", str),
            ("observed_at_unix_ms", UnixMs),
            ("fpm", metrics),
        ],
        gc=False,
    )
    return msgspec.defstruct("StrictRow", [("timestamp", integer), ("event", event)], gc=False)


class _RawEvent(Struct, gc=False):
    fpm: dict[str, Raw]


class _RawRow(Struct, gc=False):
    event: _RawEvent


_decoder = msgspec.json.Decoder(_strict_row(int))
_decode_row, _decode_rows = _decoder.decode, _decoder.decode_lines
_decode_bounded_row = msgspec.json.Decoder(_strict_row(_Int64)).decode
_decode_raw_row = msgspec.json.Decoder(_RawRow).decode
_decode_raw_map = msgspec.json.Decoder(dict[str, Raw]).decode


_UNUSUAL = (*BYTES_ERRORS, struct.error)
"""What decoding a line of another shape, or packing an integer beyond 64 bit, may raise."""


class ColumnDecoder:
    """Makes a ``pyarrow.RecordBatch`` of lines, or ``None`` if one of them is no row.

    ``columns`` are those that are wanted (all by default); they come in the schema's order.
    Raises :class:`~forwardpass.errors.MissingExtra` when it is made.
    """

    def __init__(self, columns: Collection[str] | None = None) -> None:
        self._pa = arrow_library()
        whole = arrow_schema()
        self._text = whole.field("worker_id").type
        fields = [field for field in whole if columns is None or field.name in columns]
        self.schema = self._pa.schema(fields, metadata=whole.metadata)
        # Whether a row needs ``extra`` is only known when all its integers are looked at.
        self._made = whole if "extra" in self.schema.names else self.schema
        self._sources = {_PLACES[name][0] for name in self._made.names if name != "extra"}

    def __call__(self, lines: list[bytes]) -> Any:
        """Return the batch of ``lines`` (without newlines), in the order of the lines."""
        try:
            return self._batch([_decode_row(line) for line in lines])
        except _UNUSUAL:
            return self._any_lines(lines)

    def whole_text(self, text: bytes) -> Any:
        """Return the batch of a text of lines, each with its newline; ``None`` if one of them is unusual.

        One call for all lines takes 0.95 us a row, cutting them and a call for each 1.7; to see that the call
        read them line by line takes another 0.2 (2026-12-01).
        """
        try:
            rows = _decode_rows(text)
            return self._batch(rows) if _is_one_a_line(text, len(rows)) else None
        except _UNUSUAL:
            return None

    def _any_lines(self, lines: list[bytes]) -> Any:
        rows: list[Any] = []
        extras: list[str | None] = []
        for line in lines:
            row: Any
            extra = None
            try:
                row = _decode_bounded_row(line)
            except BYTES_ERRORS:
                records = decode_lines([line])
                if records is None:
                    return None
                row, extra = _without_what_no_column_holds(records[0])
            rows.append(row)
            extras.append(extra)
        return self._batch(rows, extras)

    def _batch(self, rows: Sequence[Any], extras: Sequence[str | None] | None = None) -> Any:
        pa, holes = self._pa, extras is not None
        if not rows:
            return pa.RecordBatch.from_pylist([], self.schema)
        objects = self._objects(rows)
        arrays = []
        for field in self._made:
            if field.name == "extra":
                arrays.append(pa.array(extras, pa.string()) if holes else pa.nulls(len(rows), pa.string()))
                continue
            source, name = _PLACES[field.name]
            values = _readers[name](objects[source])
            if field.type == self._text:
                arrays.append(self._text_array(values))
            else:
                arrays.append(self._number_array(values, field.type, holes=holes))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._made)
        return batch if self._made is self.schema else batch.select(self.schema.names)

    def _objects(self, rows: Sequence[Any]) -> dict[str, Sequence[Any]]:
        """Return where values are read from: the rows, and what stands in them."""
        events = [row.event for row in rows]
        objects: dict[str, Sequence[Any]] = {"row": rows, "event": events}
        if "source" in self._sources:
            objects["source"] = [event.source for event in events]
        if self._sources & {"fpm", *_NESTED}:
            payloads = objects["fpm"] = [event.fpm for event in events]
            for nested in self._sources & _NESTED.keys():
                objects[nested] = _readers[nested](payloads)
        return objects

    def _text_array(self, values: Sequence[str]) -> Any:
        """Return a dictionary-encoded array; mostly all values of a batch are the same one."""
        pa = self._pa
        if values.count(values[0]) == len(values):
            indices = pa.repeat(pa.scalar(0, pa.int32()), len(values))
            return pa.DictionaryArray.from_arrays(indices, pa.array(values[:1], pa.string()))
        return pa.array(values, pa.string()).dictionary_encode()

    def _number_array(self, values: Sequence[Any], kind: Any, *, holes: bool) -> Any:
        """Return an array of 64-bit values; without holes in a third of the time that Arrow takes for it.

        Raises ``struct.error`` for an integer beyond 64 bit.
        """
        pa = self._pa
        if holes:
            return pa.array(values, kind)
        letter = "q" if kind == pa.int64() else "d"
        packed = pa.py_buffer(struct.pack(f"{len(values)}{letter}", *values))
        return pa.Array.from_buffers(kind, len(values), [None, packed])


def _is_one_a_line(text: bytes, rows: int) -> bool:
    """Say whether each of the ``rows`` objects that ``text`` consists of has a line of its own.

    Whoever reads objects one after the other does not care where lines end; the reader of traces does.
    ``}{`` stands nowhere inside of an object, so each newline here is the end of one.
    """
    find = text.find
    lines, at = 1, find(b"\n")
    while text[at - 1 : at + 2] == b"}\n{":
        lines += 1
        at = find(b"\n", at + 1)
    return lines == rows and at == len(text) - 1


def _reader(name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return what reads one attribute of many objects.

    A comprehension of its own for each name takes 13 ns a value where ``attrgetter`` takes 23, and tuples of
    all fields make the garbage collector run for longer than both (Python 3.11, 2026-12-01).
    """
    read: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda objects: [each.{name} for each in objects]")
    return read


def _places() -> dict[str, tuple[str, str]]:
    """Return column -> what holds the value, and the name it has there."""
    places = {"timestamp": ("row", "timestamp")}
    places |= {name: ("event", name) for name in ("observed_at_unix_ms", "capture_mode")}
    places |= {name: ("source", name) for name in TraceSource.__struct_fields__}
    places |= {name: ("fpm", name) for name in PAYLOAD_FIELDS}
    for nested, names in _NESTED.items():
        prefix = nested.removesuffix("requests")
        places |= {prefix + name: (nested, name) for name in names}
    return places


_PLACES = _places()
_readers = {name: _reader(name) for name in (*_NESTED, *(name for _, name in _PLACES.values()))}


def _without_what_no_column_holds(record: TraceRecord) -> tuple[Any, str | None]:
    """Return a row with ``None`` for each integer beyond 64 bit, and the JSON of what is missing in it."""
    payload = _decode_raw_row(record.line).event.fpm
    extra: dict[str, Any] = {name: value for name, value in payload.items() if name not in _METRICS_FIELDS}
    metrics = _held(record.metrics, payload, extra)
    for nested, names in _NESTED.items():
        fields = _decode_raw_map(payload[nested]) if nested in payload else {}
        rest: dict[str, Any] = {name: value for name, value in fields.items() if name not in names}
        setattr(metrics, nested, _held(getattr(record.metrics, nested), fields, rest))
        if rest:
            extra[nested] = rest
    row = _OddRow(
        record.timestamp if LOWEST <= record.timestamp <= HIGHEST else None,
        _OddEvent(record.source, record.capture_mode, record.observed_at_unix_ms, metrics),
    )
    # An unknown field is not decoded, so that bytes in it may be no text: they are replaced, not guessed at.
    return row, msgspec.json.encode(extra).decode(errors="replace") if extra else None


def _held(known: Struct, written: dict[str, Raw], extra: dict[str, Any]) -> Struct:
    """Return the fields of ``known``; one that no column holds is ``None`` and goes to ``extra``."""
    values: list[Any] = []
    for name in known.__struct_fields__:
        value = getattr(known, name)
        if isinstance(value, int) and not LOWEST <= value <= HIGHEST:
            extra[name] = written[name]
            value = None
        values.append(value)
    odd: Struct = _ODD[type(known)](*values)
    return odd


class _OddEvent(Struct, gc=False):
    source: TraceSource
    capture_mode: str
    observed_at_unix_ms: int
    fpm: Any


class _OddRow(Struct, gc=False):
    timestamp: int | None
    event: _OddEvent


_ODD: dict[type[Struct], Any] = {
    known: msgspec.defstruct(f"Odd{known.__name__}", known.__struct_fields__)
    for known in (ForwardPassMetrics, ScheduledRequestMetrics, QueuedRequestMetrics)
}
"""Structs of the same fields that hold anything."""
