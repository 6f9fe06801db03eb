"""Dynamo's own tracker finds the keys that ours finds."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgpack
import pytest

from forwardpass.errors import MalformedPayload
from forwardpass.wire.key_scan import scan_key

PROGRAM = Path(__file__).parent / "dynamo_tracker.py"


def packed(fields: list[tuple[Any, Any]]) -> bytes:
    """Return a map with these pairs in order; a value in bytes is MessagePack already."""
    packer = msgpack.Packer()
    parts = [packer.pack(k) + (v if isinstance(v, bytes) else packer.pack(v)) for k, v in fields]
    return bytes(packer.pack_map_header(len(fields)) + b"".join(parts))


def variants(worker: str) -> list[bytes]:
    """Return every kind of payload of one worker; the caller takes one of them for each worker."""
    key = [("worker_id", worker), ("dp_rank", 3)]
    text = msgpack.packb(worker)
    return [
        packed([*reversed(key)]),
        packed([("version", 2), *key, ("body", [1])]),
        packed([("scheduled_requests", None), *key]),
        packed([("wall_time", math.nan), *key]),
        packed([("x", msgpack.packb(b"\x00" * 300)), *key]),
        packed([("x", msgpack.packb(msgpack.ExtType(5, b"abc"))), *key]),
        packed([("x", b"\x91" * 500 + b"\xc0"), *key]),
        packed([("x", b"\xa2\xff\xfe"), *key]),
        packed(key) + b"\xc1junk",
        b"\x83" + packed(key)[1:] + b"\xc1",
        b"\xde\x00\x02" + packed(key)[1:],
        packed([key[0], ("dp_rank", -5)]),
        packed([key[0], ("dp_rank", 2**63)]),
        packed([key[0], ("dp_rank", 3.0)]),
        packed([key[0], ("dp_rank", True)]),
        packed([key[0], ("dp_rank", None)]),
        packed([key[0], ("dp_rank", "3")]),
        packed([("worker_id", msgpack.packb(worker.encode())), key[1]]),
        packed([("worker_id", int(worker)), key[1]]),
        packed([(5, 1), *key]),
        packed([(b"x", 1), *key]),
        b"\x83\xa2\xff\xfe\x01" + packed(key)[1:],
        b"\x93\x01" + text + b"\x03",
        packed([key[0]]),
        packed(key)[:-1],
        packed(key),
    ]


def test_the_reference_finds_the_same_keys(tmp_path: Path) -> None:
    """SUB-08: Payload by payload, Dynamo's tracker shows the worker and rank that the scan finds, and nothing
    where the scan refuses.
    """
    pytest.importorskip("dynamo._core", reason="Dynamo's runtime is not installed")
    payloads = [variants(str(100 + at))[at] for at in range(len(variants("0")))]
    ours = []
    for payload in payloads:
        try:
            ours.append([scan_key(payload).dp_rank])
        except MalformedPayload:
            ours.append([])
    environment = {
        **os.environ,
        "DYN_FILE_KV": str(tmp_path),
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_LOG": "error",
        **dict.fromkeys(("DYN_EVENT_PLANE_HOST", "DYN_TCP_RPC_HOST", "DYN_SYSTEM_HOST"), "127.0.0.1"),
    }
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path), *(payload.hex() for payload in payloads)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ours
    assert [3] in ours
    assert [] in ours
