"""Knows how one live forward pass reads: as a row of a table, or as a line of JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from forwardpass.analyze.kinds import kind_of
from forwardpass.cli.summary_view import format_time
from forwardpass.cli.terminal import json_for_terminal, printable
from forwardpass.wire.codec import Decoded, decode_full
from forwardpass.wire.frames import Frames
from forwardpass.wire.validate import require_json

__all__ = ["HEADER", "decode_message", "json_line", "table_line"]

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


def decode_message(frames: Frames) -> Decoded:
    """Return the message with its unknown fields.

    Raises :class:`WireError`, also for a message that JSON has no form for.
    """
    decoded = decode_full(frames.payload)
    require_json(_document(decoded))
    return decoded


def table_line(decoded: Decoded, received_unix_ms: int, *, data_parallel: bool) -> str:
    """Return one row under :data:`HEADER`."""
    metrics = decoded.metrics
    scheduled, queued = metrics.scheduled_requests, metrics.queued_requests
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
            queued.num_prefill_requests + queued.num_decode_requests,
            queued.sum_prefill_tokens + queued.sum_decode_kv_tokens,
        )
    )


def json_line(decoded: Decoded, seq: int, received_unix_ms: int) -> str:
    """Return one compact JSON document: when it came, its sequence, and the whole message as ``fpm``."""
    document = {"received_at_unix_ms": received_unix_ms, "seq": seq, "fpm": _document(decoded)}
    return json_for_terminal(msgspec.json.encode(document).decode())


def _document(decoded: Decoded) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(decoded.metrics)
    for name, value in decoded.unknown.items():
        nested = document.get(name)
        document[name] = {**nested, **value} if isinstance(nested, dict) else value
    return document
