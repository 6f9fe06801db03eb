"""Knows the record that one line of a trace holds, and how to read it.

A line is one JSON object, ``{"timestamp": …, "event": {…, "fpm": {…}}}``, written by us or by NVIDIA
Dynamo's trace sink. Reading is tolerant where writers differ (fields that are missing from ``fpm`` take
the schema's defaults, unknown fields are kept, integers may stand for floats) and strict about what
makes a row a row: the envelope's fields, the schema's name, the message's version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from forwardpass.errors import TraceRecordError
from forwardpass.wire.codec import BYTES_ERRORS
from forwardpass.wire.schema import FPM_VERSION, ForwardPassMetrics

__all__ = [
    "TRACE_SCHEMA",
    "LineFault",
    "MessageId",
    "TraceRecord",
    "TraceSource",
    "UnixMs",
    "begins_with_row",
    "decode_line",
    "decode_lines",
    "fault_of",
]

TRACE_SCHEMA = "dynamo.fpm.trace.v1"


_Unsigned = Annotated[int, Meta(ge=0)]


class TraceSource(Struct, frozen=True, gc=False):
    """Who wrote a row."""

    namespace: str
    component: str
    producer_id: str
    """Decimal id of the runtime connection (or stand-in) whose writer this is."""


class MessageId(Struct, frozen=True, gc=False):
    """Which message of an event plane a row was made of. Collectors write it; recorders do not.

    Two rows with the same one are the same message, which a broker delivered twice.
    """

    publisher_id: _Unsigned
    """The publisher's random id."""
    sequence: _Unsigned
    """The publisher's own number of the message."""


class TraceRecord(Struct, frozen=True, gc=False):
    """One row of a trace."""

    timestamp: int
    """Milliseconds since this row's writer started; begins again with each writer."""
    schema: str
    source: TraceSource
    capture_mode: str
    """``full`` or ``sampled``."""
    observed_at_unix_ms: int
    """Wall clock when the payload was offered to the trace, milliseconds since the Unix epoch."""
    metrics: ForwardPassMetrics
    line: bytes
    """The row as written, without its newline."""
    message_id: MessageId | None = None
    """Set if a collector wrote the row."""

    @property
    def fpm(self) -> dict[str, Any]:
        """The payload as written: key order, unknown fields and integers kept. Decoded on every use.

        Raises :class:`TraceRecordError` for a number in an unknown field that Python cannot hold.
        """
        try:
            document: dict[str, Any] = msgspec.json.decode(self.line)["event"]["fpm"]
        except BYTES_ERRORS as error:
            raise TraceRecordError("<record>", 1, _words(error)) from error
        return document


class LineFault(StrEnum):
    """Why a line is not a record."""

    BAD_JSON = "bad_json"
    WRONG_SCHEMA = "wrong_schema"
    NOT_A_RECORD = "not_a_record"
    UNSUPPORTED_VERSION = "unsupported_version"


UnixMs = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
"""Until the end of the year 9999: later is no time, and date arithmetic would fail on it."""


class _Event(Struct, frozen=True, gc=False):
    schema: Literal["dynamo.fpm.trace.v1"]
    source: TraceSource
    capture_mode: str
    observed_at_unix_ms: UnixMs
    fpm: ForwardPassMetrics
    message_id: MessageId | None = None


class _Row(Struct, frozen=True, gc=False):
    timestamp: int
    event: _Event


class _Fault(NamedTuple):
    fault: LineFault
    reason: str


_row_decoder = msgspec.json.Decoder(_Row)


def begins_with_row(text: bytes, max_row_bytes: int) -> bool | None:
    """Say whether ``text`` begins with a row; ``None`` if more of it is needed to know."""
    line, newline, _ = text.partition(b"\n")
    if newline:
        return decode_lines([line]) is not None
    return None if len(text) <= max_row_bytes else False


def decode_lines(lines: list[bytes]) -> list[TraceRecord] | None:
    """Return the records of ``lines``, or ``None`` if any of them is not a record. For speed only."""
    decode = _row_decoder.decode
    records = []
    try:
        for line in lines:
            row = decode(line)
            event = row.event
            metrics = event.fpm
            if metrics.version != FPM_VERSION:
                return None
            records.append(
                TraceRecord(
                    row.timestamp,
                    event.schema,
                    event.source,
                    event.capture_mode,
                    event.observed_at_unix_ms,
                    metrics,
                    line,
                    event.message_id,
                )
            )
    except BYTES_ERRORS:
        return None
    return records


def decode_line(line: bytes, path: str = "<line>", number: int = 1) -> TraceRecord:
    """Return the record in ``line``. Raises :class:`TraceRecordError` that names ``path`` and ``number``."""
    records = decode_lines([line])
    if records is None:
        raise TraceRecordError(path, number, fault_of(line).reason)
    return records[0]


def fault_of(line: bytes) -> _Fault:
    """Return why ``line`` is not a record: the kind, and words for a person."""
    try:
        document = msgspec.json.decode(line)
    except BYTES_ERRORS as error:
        return _Fault(LineFault.BAD_JSON, f"not JSON: {_words(error)}")
    event = document.get("event") if isinstance(document, dict) else None
    if isinstance(event, dict):
        schema = event.get("schema")
        if isinstance(schema, str) and schema != TRACE_SCHEMA:
            return _Fault(
                LineFault.WRONG_SCHEMA, f"schema {schema[:80]!r}; this reader understands {TRACE_SCHEMA}"
            )
        version = event["fpm"].get("version") if isinstance(event.get("fpm"), dict) else None
        if type(version) is int and version != FPM_VERSION:
            reason = f"message version {version}; this reader understands {FPM_VERSION}"
            return _Fault(LineFault.UNSUPPORTED_VERSION, reason)
    try:
        _row_decoder.decode(line)
    except BYTES_ERRORS as error:
        return _Fault(LineFault.NOT_A_RECORD, _words(error))
    return _Fault(LineFault.NOT_A_RECORD, "not a record")


def _words(error: BaseException) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)
