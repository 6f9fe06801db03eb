"""Knows how one live forward pass reads: as a row of a table, or as a line of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from forwardpass.analyze.derived import queue_depth, queued_tokens
from forwardpass.analyze.kinds import kind_of
from forwardpass.cli.summary_view import format_time
from forwardpass.cli.terminal import json_for_terminal, printable
from forwardpass.wire.codec import BYTES_ERRORS, decode_full, malformed
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import require_json

__all__ = ["HEADER", "LiveMessage", "decode_message", "json_line", "table_line"]

_COLUMNS = (
    ("time UTC", 12), ("worker", -16), ("rank", 4), ("counter", 9), ("kind", -9), ("wall ms", 9),
    ("prefill", 7), ("tokens", 7), ("cached", 7), ("decode", 6), ("kv tokens", 10),
    ("queue", 6), ("tokens", 8),
)  # fmt: skip
"""Title and width; negative widths are aligned to the left."""


def _row(cells: tuple[object, ...]) -> str:
    words = (
        str(cell).rjust(width) if width > 0 else str(cell).ljust(-width)
        for cell, (_, width) in zip(cells, _COLUMNS, strict=True)
    )
    return "  ".join(words).rstrip()


HEADER = _row(tuple(title for title, _ in _COLUMNS))


class LiveMessage(NamedTuple):
    """One message that can be shown."""

    metrics: ForwardPassMetrics
    document: dict[str, Any]
    """All its fields, unknown ones at the end of their map; ready for JSON."""


def decode_message(payload: bytes) -> LiveMessage:
    """Return the message in ``payload``.

    Raises :class:`WireError`, also for a message that JSON has no form for.
    """
    decoded = decode_full(payload)
    document: dict[str, Any] = msgspec.to_builtins(decoded.metrics)
    try:
        for name, value in decoded.unknown.items():
            if isinstance(value, dict):  # unknown fields of a nested map
                document[name] |= {inner: msgspec.msgpack.decode(raw) for inner, raw in value.items()}
            else:
                document[name] = msgspec.msgpack.decode(value)
    except BYTES_ERRORS as error:
        raise malformed(error) from error
    require_json(document)
    return LiveMessage(decoded.metrics, document)


def table_line(metrics: ForwardPassMetrics, received_unix_ms: int, *, data_parallel: bool) -> str:
    """Return one row under :data:`HEADER`."""
    scheduled = metrics.scheduled_requests
    return _row(
        (
            format_time(received_unix_ms)[11:23],
            printable(metrics.worker_id, 16) or "-",
            metrics.dp_rank,
            metrics.counter_id,
            kind_of(metrics, data_parallel=data_parallel),
            f"{metrics.wall_time * 1000:.3f}",
            scheduled.num_prefill_requests,
            scheduled.sum_prefill_tokens,
            scheduled.sum_prefill_kv_tokens,
            scheduled.num_decode_requests,
            scheduled.sum_decode_kv_tokens,
            queue_depth(metrics),
            queued_tokens(metrics),
        )
    )


def json_line(message: LiveMessage, origin: Mapping[str, int], received_unix_ms: int) -> str:
    """Return one compact JSON document: when it came, its ``origin`` (its sequence there, ``seq``, at least),
    and the whole message as ``fpm``.
    """
    document = {"received_at_unix_ms": received_unix_ms, **origin, "fpm": message.document}
    return json_for_terminal(msgspec.json.encode(document).decode())
