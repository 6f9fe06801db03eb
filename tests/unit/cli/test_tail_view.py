"""How one live forward pass reads."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import msgspec
import pytest

from forwardpass.cli.tail_lines import LiveLines
from forwardpass.cli.tail_view import HEADER, decode_message, json_line, table_line
from forwardpass.errors import WireError
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import encode
from forwardpass.wire.frames import Frames
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

PASS = ForwardPassMetrics(
    worker_id="4192",
    dp_rank=1,
    counter_id=42,
    wall_time=0.0125,
    scheduled_requests=ScheduledRequestMetrics(2, 256, 4.0, 64, 3, 1024, 2.5),
    queued_requests=QueuedRequestMetrics(1, 128, 0.0, 2, 50, 1.0),
)


def changed(path: str, value: Any) -> bytes:
    """Return the payload of ``PASS`` with one field set or added."""
    document = msgspec.to_builtins(PASS)
    *outer, name = path.split(".")
    inner = document
    for one in outer:
        inner = inner[one]
    inner[name] = value
    return msgpack.packb(document)


def test_table_line() -> None:
    """Every column stands under its title; the queue is both kinds of waiting requests."""
    line = table_line(decode_message(encode(PASS)).metrics, 1_782_777_601_250, data_parallel=False)

    assert line.split() == [
        "00:00:01.250", "4192", "1", "42", "mixed", "12.500", "2", "256", "64", "3", "1024", "3", "178",
    ]  # fmt: skip
    assert len(line) == len(HEADER)
    assert HEADER.split()[:2] == ["time", "UTC"]
    assert line.index("4192") == HEADER.index("worker")
    assert line.index("42") + 2 == HEADER.index("counter") + len("counter") or " 42 " in line


def test_table_line_of_a_heartbeat_without_id() -> None:
    """A heartbeat of a worker without an id is still a row."""
    line = table_line(decode_message(encode(ForwardPassMetrics())).metrics, 0, data_parallel=False)

    assert line.split()[1:5] == ["-", "0", "0", "heartbeat"]


def test_table_line_cannot_drive_the_terminal() -> None:
    """Escape sequences in a worker id are shown as question marks, and a long id is cut."""
    line = table_line(
        decode_message(changed("worker_id", "\x1b]0;x\x07" * 9)).metrics, 0, data_parallel=False
    )

    assert line.isprintable()
    assert len(line) == len(HEADER)


def test_json_line_holds_everything() -> None:
    """A line of JSON has every field of the message, unknown ones at their place."""
    payload = changed("scheduled_requests.extend_lengths", [1, 2])
    line = json.loads(json_line(decode_message(payload), {"seq": 42}, 1234))
    expected = msgpack.unpackb(payload)

    assert (line["received_at_unix_ms"], line["seq"]) == (1234, 42)
    assert line["fpm"] == expected


def test_json_line_cannot_drive_the_terminal() -> None:
    """Control characters in ids and unknown fields are escaped; the value is the same."""
    payload = changed("note", "\x1b[2J\x9b2J\u202e")
    line = json_line(decode_message(payload), {"seq": 42}, 1234)

    assert line.isprintable()
    assert json.loads(line)["fpm"]["note"] == "\x1b[2J\x9b2J\u202e"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage",
        changed("version", 2),
        changed("wall_time", float("nan")),
        changed("blob", b"\x00"),
        changed("scheduled_requests.x", float("inf")),
        changed("dp_rank", "0"),
        encode(PASS).replace(b"\x87", b"\x88", 1) + b"\xa1x\x81\xa1y\xc7\x00\x05",
        encode(PASS).replace(b"\x87", b"\x88", 1) + b"\xa1x\xa2\xff\xfe",
    ],
)
def test_what_cannot_be_shown(payload: bytes) -> None:
    """What does not decode, or has no form in JSON, is a WireError and never a changed value."""
    with pytest.raises(WireError):
        decode_message(payload)


def test_missing_fields_are_shown_with_their_defaults() -> None:
    """tail is tolerant: an early message without most fields is a row."""
    line = table_line(decode_message(msgpack.packb({"dp_rank": 3})).metrics, 0, data_parallel=True)

    assert line.split()[2] == "3"


def test_lines_limit_rank_and_faults() -> None:
    """Lines come in order up to the limit, of one rank if asked; what is unreadable is counted."""
    lines = LiveLines(as_json=True, limit=2, rank=1, clock=ManualClock())
    other = encode(msgspec.structs.replace(PASS, dp_rank=0))
    for seq, payload in enumerate([encode(PASS), other, b"junk", encode(PASS), encode(PASS)]):
        lines.note(None, Frames(b"", seq, payload))

    assert [json.loads(line)["seq"] for line in lines.take()] == [0, 3]
    assert lines.take() == []
    assert (lines.finished, lines.shown, lines.unreadable) == (True, 2, 1)
