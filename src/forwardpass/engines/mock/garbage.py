"""Knows payloads that no publisher should send, one of each kind that a reader must survive."""

from __future__ import annotations

from itertools import cycle, islice

import msgspec

from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["garbage"]


def _kinds() -> tuple[bytes, ...]:
    good = encode(ForwardPassMetrics(worker_id="garbage"))
    fields = msgspec.msgpack.decode(good)
    pack = msgspec.msgpack.encode
    return (
        b"",
        bytes(range(256)),  # a positive integer and 255 bytes too many
        good[: len(good) // 2],
        b"\x00" + good,
        pack(list(fields.values())),  # the array form that some texts describe
        pack({**fields, "version": 2}),
        pack({**fields, "wall_time": float("nan")}),
        pack({**fields, "scheduled_requests": None}),
        b"\x91" * 5000,  # nested deeper than any decoder follows
    )


def garbage(count: int) -> list[bytes]:
    """Return ``count`` payloads, all kinds in turn; none passes the strict validation."""
    return list(islice(cycle(_kinds()), count))
