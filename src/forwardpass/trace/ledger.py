"""Knows the lines of a ledger: what a recorder saw and lost, written beside a segment and never inside it.

A segment ``<prefix>.<producer>.<index>.jsonl.gz`` has a ledger ``<prefix>.<producer>.<index>.ledger``: JSON
lines, each for the time since the line before. A trace is complete without it; a counter that is missing in
the trace is explained by it. Format: ``docs/spec/ledger-v1.md``.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import blake2b
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct, field

from forwardpass.wire.codec import BYTES_ERRORS

__all__ = [
    "LEDGER_SCHEMA",
    "LEDGER_SUFFIX",
    "MAX_NAME",
    "MAX_RANGES",
    "CounterRange",
    "EventKind",
    "LedgerEvent",
    "LedgerLine",
    "LedgerTotals",
    "LostRange",
    "Origin",
    "StreamWindow",
    "decode_ledger_line",
    "encode_ledger_line",
    "ledger_name",
]

LEDGER_SCHEMA = "forwardpass.trace.ledger.v1"
LEDGER_SUFFIX = ".ledger"

MAX_RANGES = 64
"""Ranges that one event or window lists; what is beyond is only counted."""


MAX_NAME = 256
"""Characters of a worker's name: a payload's may be a megabyte, and a ledger holds thousands of them."""
_DIGEST_BYTES = 16


class Origin(NamedTuple):
    """What a recorder knows of the engine whose messages it records; empty where it does not."""

    engine: str = ""
    """Its name, such as ``vllm``."""
    wall_time: str = ""
    """What ``wall_time`` measures there, as in :class:`~forwardpass.engines.base.TimingScope`."""


class CounterRange(NamedTuple):
    """Counters ``first`` to ``last``, both included."""

    first: int
    last: int


class LostRange(NamedTuple):
    """Counters that reached the recorder and are not in the trace."""

    first: int
    last: int
    reason: str
    """As in :class:`~forwardpass.counters.DropReason`."""


class EventKind(StrEnum):
    """What happened to a stream before its messages reached the trace."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    """The connection to the publisher ended; what it sends until the next one is not seen."""
    WIRE_GAP = "wire_gap"
    """The publisher's sequence skipped numbers."""
    RESTART = "restart"
    """The publisher's sequence began again (or two publishers take turns)."""
    STALLED = "stalled"
    """Nothing was received for a while because the recorder's process stood still."""
    SILENT = "silent"
    """Nothing came for a while although the connection stood and publishers speak every second: paused, hung,
    or without heartbeats.
    """
    RECEIVE_ERROR = "receive_error"
    """The socket failed and was made anew."""


class LedgerEvent(Struct, frozen=True, omit_defaults=True):
    """Something that the relay of one stream saw."""

    kind: EventKind
    unix_ms: int
    """When it was noticed."""
    url: str
    """The stream's address."""
    worker_id: str | None = None
    dp_rank: int | None = None
    """Whose messages came after it; ``None`` where that is not known."""
    ranges: list[CounterRange] = field(default_factory=list)
    """Of a gap: the numbers that were skipped, the first ``MAX_RANGES`` of them."""
    count: int = 0
    """Of a gap: how many numbers were skipped, in all."""
    reconnected: bool = False
    """Of a gap: the connection was lost and made again since the message before it."""
    last: int | None = None
    """Of a restart: the last number before it."""
    first: int | None = None
    """Of a restart: the first number after it."""
    seconds: float | None = None
    """Of a stall or a silence: how long."""


class StreamWindow(Struct, omit_defaults=True):
    """What came of one stream in the time of a line."""

    namespace: str
    component: str
    worker_id: str
    dp_rank: int
    first: int
    last: int
    """Counters of the first and the last message whose fate was decided."""
    written: int = 0
    """Rows in the trace."""
    sampled_out: int = 0
    """Messages that sampled mode passed over, as it should."""
    missing: int = 0
    """Counters skipped between messages as they reached the trace: lost on the way to the writer."""
    restarts: int = 0
    """Times that the counter went back."""
    lost: list[LostRange] = field(default_factory=list)
    """Messages that reached the writer and are not in the trace; the first ``MAX_RANGES`` ranges."""
    lost_count: int = 0
    """How many they are, in all."""


class LedgerTotals(Struct, frozen=True):
    """Messages since the recorder began: ``offered = written + sampled_out + pending + all of dropped``."""

    offered: int
    written: int
    sampled_out: int
    pending: int
    dropped: dict[str, int]


class LedgerLine(Struct, omit_defaults=True):
    """What happened since the line before."""

    producer_id: str
    run: str
    """One life of a recorder: random, the same in all its lines."""
    capture_mode: str
    from_unix_ms: int
    to_unix_ms: int
    totals: LedgerTotals
    schema: Literal["forwardpass.trace.ledger.v1"] = "forwardpass.trace.ledger.v1"
    engine: str = ""
    """As in :class:`Origin`."""
    wall_time: str = ""
    closed: bool = False
    """The last line of a recorder that was stopped; one that was killed has none."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Of the totals: what was dropped in this time."""
    streams: list[StreamWindow] = field(default_factory=list)
    events: list[LedgerEvent] = field(default_factory=list)
    events_omitted: int = 0
    """Events that there was no room for."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LedgerLine)
_SCHEMA_FIRST = b'{"schema":"' + LEDGER_SCHEMA.encode() + b'",'


def encode_ledger_line(line: LedgerLine) -> bytes:
    """Return ``line`` as JSON with its newline; the schema comes first, so that ``head`` tells the format."""
    return _SCHEMA_FIRST + _encoder.encode(line)[1:] + b"\n"


def decode_ledger_line(text: bytes) -> LedgerLine | None:
    """Return the line in ``text``, or ``None`` if it is torn, damaged or of another format."""
    if not text.startswith(_SCHEMA_FIRST):
        return None
    try:
        return _decoder.decode(text)
    except BYTES_ERRORS:
        return None


def ledger_name(worker_id: str) -> str:
    """Return what a ledger calls a worker: its id, the end of a longer one than ``MAX_NAME`` as a digest."""
    if len(worker_id) <= MAX_NAME:
        return worker_id
    digest = blake2b(worker_id.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{worker_id[: MAX_NAME - 1 - len(digest)]}…{digest}"
