"""The reference's own messages through our writer give the rows that the reference wrote."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from forwardpass.config.settings import CaptureMode, TraceSettings
from forwardpass.trace.record import TraceSource
from forwardpass.trace.registry import TraceRegistry
from forwardpass.trace.rows import encode_rows
from forwardpass.trace.sampler import FullRecorder
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.keys import Endpoint

GOLDEN = Path(__file__).parent
CAPTURES = sorted(
    path.relative_to(GOLDEN).as_posix()
    for name in ("raw_zmq_frames", "event_plane_frames", "nats_messages")
    for path in GOLDEN.glob(f"*/{name}.jsonl.gz")
)
WITH_TRACE = [capture for capture in CAPTURES if list((GOLDEN / capture).parent.glob("fpm.*.jsonl.gz"))]

Key = tuple[str, int, int]
"""Worker id, rank, counter."""


class Row(NamedTuple):
    """One row of the reference: its line, and the same parsed."""

    line: bytes
    document: dict[str, Any]

    @property
    def fpm_text(self) -> bytes:
        """The text of the message, without the envelope."""
        return self.line[self.line.index(b'"fpm":') : -2]


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a capture."""
    for line in gzip.decompress(path.read_bytes()).splitlines():
        yield json.loads(line)


def payloads(capture: str) -> list[bytes]:
    """Return the payloads in a capture, as the reference sent them."""
    found = []
    for message in json_lines(GOLDEN / capture):
        if "frames" in message:
            last = bytes.fromhex(message["frames"][-1])
            if "event_plane" not in capture:
                found.append(last)
                continue
            length = int.from_bytes(last[1:5], "big")
            assert len(last) == 5 + length
            envelope = msgspec.msgpack.decode(last[5:])
        else:
            envelope = msgspec.msgpack.decode(bytes.fromhex(message["data"]))
        found.append(envelope["payload"])
    return found


def reference_rows(folder: Path) -> dict[Key, Row]:
    """Return the rows that the reference wrote, by the message they hold."""
    rows = {}
    for path in folder.glob("fpm.*.jsonl.gz"):
        for line in gzip.decompress(path.read_bytes()).splitlines():
            document = json.loads(line)
            rows[key_of(document["event"]["fpm"])] = Row(line, document)
    return rows


def key_of(fpm: dict[str, Any]) -> Key:
    """Return what tells a message from the others of a capture."""
    return fpm["worker_id"], fpm["dp_rank"], fpm["counter_id"]


def test_the_captures_are_there() -> None:
    """Raw frames, event-plane frames and NATS messages of several engines are in the repository."""
    assert len(WITH_TRACE) >= 9
    assert "sglang-cpu-raw/raw_zmq_frames.jsonl.gz" in CAPTURES


@pytest.mark.parametrize("capture", WITH_TRACE)
def test_our_rows_are_the_reference_s(capture: str) -> None:
    """TRACE-10, TRACE-20: apart from the two times our row of a message equals the reference's, and the
    text of the message is the same byte for byte."""
    theirs = reference_rows((GOLDEN / capture).parent)
    source = TraceSource(**next(iter(theirs.values())).document["event"]["source"])
    intake = FullRecorder().observe([(source, 0, payload) for payload in payloads(capture)])
    assert not intake.refused
    lines = encode_rows(intake.offered, intake.bodies, "full", 0).splitlines()

    assert len(lines) == len(payloads(capture)) > 50
    for line in lines:
        ours = Row(line, json.loads(line))
        reference = theirs[key_of(ours.document["event"]["fpm"])]
        assert ours.fpm_text == reference.fpm_text
        assert without_times(ours.document) == without_times(reference.document)
        assert list(ours.document["event"]) == list(reference.document["event"])


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    """Return a row's event without the time it was observed."""
    return {name: value for name, value in document["event"].items() if name != "observed_at_unix_ms"}


def test_sglang_s_messages_are_accepted() -> None:
    """Every message of SGLang's own publisher can be recorded, and its rows hold what it sent."""
    frames = payloads("sglang-cpu-raw/raw_zmq_frames.jsonl.gz")
    intake = FullRecorder().observe([(TraceSource("n", "c", "1"), 0, payload) for payload in frames])
    lines = encode_rows(intake.offered, intake.bodies, "full", 0).splitlines()

    assert len(lines) == len(frames) > 300
    assert [json.loads(line)["event"]["fpm"] for line in lines] == [
        msgspec.to_builtins(decode_strict(payload)) for payload in frames
    ]


def test_the_whole_way_to_the_file(tmp_path: Path) -> None:
    """The reference's raw frames, offered to a trace of ours, are in its file as the reference wrote them."""
    folder = GOLDEN / "vllm-cpu-full"
    theirs = reference_rows(folder)
    source = next(iter(theirs.values())).document["event"]["source"]
    registry = TraceRegistry(TraceSettings(output_prefix=str(tmp_path / "fpm"), mode=CaptureMode.FULL))
    handle = registry.acquire(source["producer_id"], Endpoint(source["namespace"], source["component"]))
    assert handle is not None
    frames = payloads("vllm-cpu-full/raw_zmq_frames.jsonl.gz")
    for payload in frames:
        assert handle.offer(payload)
    registry.close()
    (path,) = handle.files()
    rows = [Row(line, json.loads(line)) for line in gzip.decompress(Path(path).read_bytes()).splitlines()]

    assert Path(path).name == f"fpm.{source['producer_id']}.000000.jsonl.gz"
    assert [row.fpm_text for row in rows] == [
        theirs[key_of(r.document["event"]["fpm"])].fpm_text for r in rows
    ]
    assert [row.document["event"]["fpm"]["counter_id"] for row in rows] == [
        decode_strict(payload).counter_id for payload in frames
    ]
