"""Payloads of a publisher that means no good, with good ones in between, and what must hold of all output."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

GOOD = "good"
GOODS = 60
WORKERS = 10_000
LONG = 900_000
"""Characters of the longest names: a NATS server refuses a message above 1 MiB."""
NAMES = (
    "\x1b[2J\x1b]0;mine\x07", "../../../../evil", "/etc/evil", "a\nb\r\n{\"timestamp\":0}", "a\0b",
    "\x9b31mred",
    "\u202egood", "good\u200b", "", " ", "=cmd()", "a\x7f\x08\x08", "NaN", "\U0010ffff",
)  # fmt: skip
NUMBERS = (float("nan"), float("inf"), float("-inf"), 2.0**64, 2**64 - 1, -1, -(2**63), -0.0, 5e-324, 1e308)
DEEP = 100_000
_OBEYED = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Control characters but the end of a line, and invisible marks of direction."""
_VISIBLE_FILE_NAME = re.compile(r"[A-Za-z0-9._%=-]{1,255}")


def good(counter: int) -> bytes:
    """Return a message of the one engine that can be believed."""
    scheduled = ScheduledRequestMetrics(num_decode_requests=3, sum_decode_kv_tokens=300)
    return encode(ForwardPassMetrics(1, GOOD, 0, counter, 0.01, scheduled))


def fields(**changed: Any) -> dict[str, Any]:
    """Return a whole message as a map, some fields changed or added."""
    whole = msgpack.unpackb(encode(ForwardPassMetrics(1, "bad", 0, 7, 0.02)))
    return {**whole, **changed}


def wrong_numbers() -> Iterator[bytes]:
    """Yield messages with each odd number at each place of a number."""
    for number in NUMBERS:
        for name in ("version", "dp_rank", "counter_id", "wall_time"):
            yield msgpack.packb(fields(**{name: number}))
        for part in ("scheduled_requests", "queued_requests"):
            inner = fields()[part]
            for name in inner:
                yield msgpack.packb(fields(**{part: {**inner, name: number}}))


def wrong_shapes() -> Iterator[bytes]:
    """Yield what is no message at all, or hardly one."""
    whole = msgpack.packb(fields())
    yield b""
    yield b"\xc1" * 50
    yield from (whole[:cut] for cut in range(1, len(whole), 17))
    yield whole * 2
    yield msgpack.packb(list(fields().values()))
    yield b"\x91" * DEEP + b"\xc0"
    yield b"\x81\xa1x" * DEEP + b"\xc0"
    for name in ("extra", "worker_id", "scheduled_requests"):
        yield msgpack.packb(fields(**{name: 1}))[:-1] + b"\x91" * DEEP + b"\xc0"
        opened = b"\x88" + whole[1:] + msgpack.packb(name)
        yield opened + b"\x91" * DEEP + b"\xc0"
        yield opened + b"\x81\xa1x" * DEEP + b"\xc0"
        yield opened + msgpack.packb("a\x1b[31mgain")
    yield b"\xdf\xff\xff\xff\xff" + whole[1:]
    yield b"\xdd\xff\xff\xff\xff"
    for value in (b"\x1b[31m", b"\xff\xfe", None, True, 7, [], {}, [["x"]], msgpack.Timestamp(1, 2)):
        yield msgpack.packb(fields(worker_id=value))
        yield msgpack.packb(fields(extra=value))
        yield msgpack.packb(fields(scheduled_requests=value))
    yield msgpack.packb({**fields(), b"worker_id": "x", 7: 8, None: 9})
    dice = random.Random(7)
    yield from (dice.randbytes(dice.randrange(1, 600)) for _ in range(100))


def wrong_names() -> Iterator[bytes]:
    """Yield messages of workers, and with fields, whose names are a trap."""
    for name in (*NAMES, "x" * LONG, "\x1b" * (LONG // 2)):
        yield msgpack.packb(fields(worker_id=name))
        yield msgpack.packb(fields(**{name or "x": name[:20]}))
        yield msgpack.packb(fields(scheduled_requests={**fields()["scheduled_requests"], name: 1}))


def many_names() -> Iterator[bytes]:
    """Yield a message each of very many workers."""
    for number in range(WORKERS):
        yield msgpack.packb(fields(worker_id=f"\x1b{number}", dp_rank=number % 7))


def mixed() -> list[bytes]:
    """Return everything, good messages in between at even distances; the last one is good."""
    bad = [*wrong_numbers(), *wrong_shapes(), *wrong_names(), *many_names()]
    found: list[bytes] = []
    share = len(bad) // (GOODS - 1)
    for number in range(GOODS):
        found += [good(number), *bad[number * share : (number + 1) * share if number < GOODS - 2 else None]][
            : None if number < GOODS - 1 else 1
        ]
    return found


def check_text(text: str) -> None:
    """Check that nothing in ``text`` could drive a terminal."""
    odd = set(_OBEYED.findall(text))
    assert not odd, f"reaches the terminal: {odd!r}"


def check_files(folder: Path) -> None:
    """Check that every name below ``folder`` is harmless, and that ``inside`` is all that was written."""
    assert [path.name for path in folder.iterdir() if path.is_dir()] == ["inside"]
    for path in folder.rglob("*"):
        assert _VISIBLE_FILE_NAME.fullmatch(path.name), path
    assert not Path("/etc/evil").exists()
