"""A hostile publisher against everything that reads: nothing crashes, and the good messages all arrive."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from click.testing import CliRunner
from impostors import GOOD, GOODS, check_files, check_text, fields, good, mixed

from forwardpass.cli.doctor import doctor
from forwardpass.cli.main import Exit
from forwardpass.cli.trace import trace
from forwardpass.config.settings import Sources
from forwardpass.config.variables import TABLE
from forwardpass.plane.base import TOPIC, PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import subject
from forwardpass.plane.subscriber import AsyncFpmSubscriber
from forwardpass.plane.zmq.frames import join
from forwardpass.testing.nats_server import find_nats_server, nats_server
from forwardpass.testing.ports import free_port
from forwardpass.trace.ledger import MAX_NAME
from forwardpass.wire.keys import Endpoint, StreamKey

PATIENCE_SECONDS = 60.0
MOST_MEMORY_MIB = 400
"""Of a reader. The messages are 20 MB, and a plane's queue takes all of them."""
HERE = Endpoint("ns", "comp", "gen")
CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)


class Reader:
    """A command that runs until it is told to stop; what it says goes into files."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "forwardpass", *arguments],
                stdout=out,
                stderr=err,
                env={name: value for name, value in os.environ.items() if name not in CLEAN},
            )

    @property
    def out(self) -> str:
        """Its output."""
        return self._out.read_bytes().decode()

    @property
    def err(self) -> str:
        """Its words."""
        return self._err.read_bytes().decode()

    def until(self, true: Callable[[], bool], look_seconds: float = 0.05) -> None:
        """Wait until something holds, for as long as it runs."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert self.process.poll() is None, self.err[-3000:]
            assert time.monotonic() < end, (self.out[-1000:], self.err[-1000:])
            time.sleep(look_seconds)

    def stop(self) -> int:
        """Interrupt it, check what it said and what memory it took, and return its exit code."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(PATIENCE_SECONDS)
        check_text(self.out)
        check_text(self.err)
        assert "Traceback" not in self.err
        assert int(status.partition("VmHWM:")[2].split()[0]) / 1024 < MOST_MEMORY_MIB
        return code


@contextlib.contextmanager
def reading(folder: Path, name: str, *arguments: str) -> Iterator[Reader]:
    """Run a command until the end of the block."""
    reader = Reader(folder, name, *arguments)
    try:
        yield reader
    finally:
        reader.process.kill()
        reader.process.wait(PATIENCE_SECONDS)


def run(*arguments: object, command: Any = trace, checked: bool = True) -> str:
    """Run a command in this process and return its output, which is harmless."""
    done = CliRunner().invoke(
        command, [str(argument) for argument in arguments], env=CLEAN, catch_exceptions=False
    )
    if checked:
        check_text(done.output)
    return done.stdout


def on_a_terminal(*arguments: object) -> str:
    """Run a command with a terminal for its output, and return what it wrote there, which is harmless."""
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "forwardpass", *map(str, arguments)]
    found = b""
    try:
        with subprocess.Popen(command, stdout=its, stderr=its) as process:
            os.close(its)
            with contextlib.suppress(OSError):  # the end of a terminal
                while block := os.read(ours, 65_536):
                    found += block
            process.wait(PATIENCE_SECONDS)
    finally:
        os.close(ours)
    text = found.decode().replace("\r\n", "\n")
    check_text(text)
    return text


def goods_in_json(text: str) -> list[int]:
    """Return the counters of the good messages among lines of ``tail --json``."""
    found = [json.loads(line)["fpm"] for line in text.splitlines()]
    return [fpm["counter_id"] for fpm in found if fpm["worker_id"] == GOOD]


def goods_in_table(text: str) -> list[int]:
    """Return the counters of the good messages in the table of ``tail``."""
    found = re.findall(rf"^\S+ +{GOOD} +0 +(\d+) +decode ", text, re.MULTILINE)
    return [int(number) for number in found]


def goods_in_trace(prefix: Path) -> list[int]:
    """Return the counters of the good messages that are recorded."""
    rows = [json.loads(line)["event"]["fpm"] for line in run("cat", prefix, checked=False).splitlines()]
    return [row["counter_id"] for row in rows if row["worker_id"] == GOOD]


def check_trace(prefix: Path) -> None:
    """Check what the commands that read traces say of one that an impostor had a part in."""
    rows = [json.loads(line)["event"]["fpm"] for line in run("cat", prefix, checked=False).splitlines()]
    derived = [json.loads(line) for line in run("derive", prefix).splitlines()]
    table = run("cat", "--compact", prefix)
    stats = json.loads(run("stats", "--json", prefix))
    for command in ("stats", "ls", "verify", "gaps"):
        run(command, prefix)
    shown = on_a_terminal("trace", "cat", prefix)

    assert goods_in_trace(prefix) == list(range(GOODS))
    assert sum(row["worker_id"] == GOOD for row in derived) == GOODS
    assert len(re.findall(rf" {GOOD} +0 +\d+ +decode ", table)) == GOODS
    assert stats["summary"]["rows"] == len(rows) == len(derived) == len(shown.splitlines())
    ledgers = [ledger.read_text() for ledger in prefix.parent.glob("*.ledger")]
    lines = [json.loads(line) for text in ledgers for line in text.splitlines()]
    names = [stream["worker_id"] for line in lines for stream in line.get("streams", [])]  # an event has none
    assert max(map(len, names), default=0) <= MAX_NAME  # a collected trace has no ledger


def test_on_the_raw_stream(tmp_path: Path) -> None:
    """An impostor at an engine's port breaks neither record nor tail nor doctor; every good row is there."""
    inside = tmp_path / "inside"
    inside.mkdir()
    port = free_port(4)
    url = f"tcp://127.0.0.1:{port}"
    stop = threading.Event()
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(url)
    payloads = mixed()

    def send(sequence: int, payload: bytes) -> None:
        socket.send_multipart([b"", sequence.to_bytes(8, "big"), payload])

    def send_on() -> None:  # to whoever comes later
        while not stop.wait(0.05):
            for sequence, payload in enumerate(payloads[:200]):
                send(sequence, payload)

    with (
        reading(tmp_path, "record", "record", url, "--output", str(inside / "t"), "--json") as record,
        reading(tmp_path, "table", "tail", url) as table,
        reading(tmp_path, "lines", "tail", url, "--json") as lines,
    ):
        for _ in range(3):
            assert socket.poll(20_000)
            socket.recv()
        socket.send_multipart([b"\x1b[31m"] * 7)
        for sequence, payload in enumerate(payloads):
            send(sequence, payload)
        table.until(lambda: GOODS - 1 in goods_in_table(table.out))
        lines.until(lambda: f'"counter_id":{GOODS - 1},' in lines.out[-3000:])
        record.until(lambda: GOODS - 1 in goods_in_trace(inside / "t"), 0.3)
        codes = [lines.stop(), table.stop(), record.stop()]
    sender = threading.Thread(target=send_on)
    sender.start()
    try:
        checks = run("--port", port, "--wait", 0.5, command=doctor)
        document = json.loads(run("--port", port, "--wait", 0.5, "--json", command=doctor))
    finally:
        stop.set()
        sender.join()
        socket.close(0)
        context.term()

    assert codes == [Exit.INTERRUPTED, Exit.INTERRUPTED, Exit.DONE]
    assert goods_in_json(lines.out) == goods_in_table(table.out) == list(range(GOODS))
    assert json.loads(record.out)["trace"]["written"] > GOODS
    assert max(map(len, (*table.out.splitlines(), *table.err.splitlines(), *checks.splitlines()))) < 1000
    assert document["checks"]
    check_trace(inside / "t")
    check_files(tmp_path)


def envelopes(payloads: Sequence[bytes]) -> list[tuple[int, int, bytes]]:
    """Return what is published: an id that changes with each bad message, a sequence, and the envelope."""
    found = []
    for number, payload in enumerate(payloads):
        publisher = 1 if payload == good(0) or b"\xa4good" in payload[:40] else 2**64 - 1 - number
        sequence = number if publisher == 1 else 2**64 - 1
        found.append((publisher, sequence, encode_envelope(publisher, sequence, 2**64 - 1, payload)))
    return found


async def tracked(url: str, send: Callable[[], Any], context: PlaneContext) -> None:
    """Check what a tracker holds once everything was sent."""
    async with AsyncFpmSubscriber(url, HERE, context=context) as subscriber:
        await subscriber.start_tracking(require_known=False)
        sending = asyncio.ensure_future(send())
        async with asyncio.timeout(PATIENCE_SECONDS):
            while subscriber.get_recent_stats().get((GOOD, 0)) != good(GOODS - 1):
                await asyncio.sleep(0.02)
        await sending
        counts = subscriber.tracker_counts()
        entry = subscriber.get_recent()[StreamKey(GOOD, 0)]
        held = sum(map(len, subscriber.get_recent_stats().values()))

    assert entry.messages == GOODS
    assert entry.counters.missing == 0
    assert counts.streams <= 8192
    assert counts.publishers <= 8192
    assert held <= 67_108_864


async def greet(url: str, heard: Callable[[], bool]) -> None:
    """Publish a message again and again until it was heard."""
    import nats

    client = await nats.connect(url)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not heard():
            await client.publish(
                subject(HERE), encode_envelope(3, 0, 1, msgpack.packb(fields(worker_id="hello")))
            )
            await asyncio.sleep(0.05)
    await client.close()


def test_on_the_zmq_plane(tmp_path: Path) -> None:
    """An impostor among the publishers of a plane breaks neither tail nor tracker."""
    port = free_port()
    url = f"zmq+tcp://127.0.0.1:{port}"
    name = TOPIC.encode()
    messages = [join(name, 1, 1, body) for _, _, body in envelopes(mixed())]
    broken = [
        [name],
        [name, b"\0" * 8, b"\0" * 8, b""],
        [name, b"\x1b", b"\x1b", b"\x1b[31m"],
        [name, b"\0" * 8, b"\0" * 8, b"\x01\xff\xff\xff\xff"],
        [name] * 50,
        [name, b"\0" * 8, b"\0" * 8, b"\x01\0\0\0\x05\x81\xa1x"],
        join(name, 1, 1, b"\x91" * 100_000),
    ]
    context = zmq.Context()
    socket = context.socket(zmq.XPUB)
    socket.setsockopt(zmq.XPUB_VERBOSE, 1)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.bind(f"tcp://127.0.0.1:{port}")

    async def send() -> None:
        assert await asyncio.to_thread(socket.poll, 20_000)
        socket.recv()
        for frames in (*broken, *messages):
            socket.send_multipart(list(frames))

    options = ("tail", "--plane", url, "--endpoint", str(HERE))
    with (
        reading(tmp_path, "table", *options) as table,
        reading(tmp_path, "lines", *options, "--json") as lines,
    ):
        for _ in range(2):
            assert socket.poll(20_000)
            socket.recv()
        try:
            asyncio.run(tracked(url, send, PlaneContext(Sources({}))))
        finally:
            socket.close()
            context.term()
        table.until(lambda: GOODS - 1 in goods_in_table(table.out))
        lines.until(lambda: f'"counter_id":{GOODS - 1},' in lines.out[-3000:])
        codes = [lines.stop(), table.stop()]

    assert codes == [Exit.INTERRUPTED, Exit.INTERRUPTED]
    assert goods_in_json(lines.out) == goods_in_table(table.out) == list(range(GOODS))
    assert max(map(len, (*table.out.splitlines(), *table.err.splitlines(), *lines.err.splitlines()))) < 1000


@pytest.mark.skipif(find_nats_server() is None, reason="nats-server is not installed")
@pytest.mark.skipif(importlib.util.find_spec("nats") is None, reason="nats-py is not installed")
def test_on_nats_and_in_jetstream(tmp_path: Path) -> None:
    """An impostor on NATS breaks neither tail nor tracker nor collectors; every good message is collected."""
    inside = tmp_path / "inside"
    inside.mkdir()
    messages = envelopes(mixed())
    subjects = [
        subject(Endpoint("../../evil", "\x1b[31m", "a\nb")),
        f"namespace./../../evil.component.x.endpoint.y.{TOPIC}",
        f"namespace.\x1b[31m.component.%2E%2E%2Fevil.endpoint.%1B[2J.{TOPIC}",
        f"namespace.{'n' * 3000}.component.x.endpoint.y.{TOPIC}",
        f"namespace.%2E%2E.component.%2F.endpoint.%00.{TOPIC}",
    ]

    with nats_server(jetstream=True) as server:

        async def send() -> None:
            import nats

            client = await nats.connect(server.url, pending_size=64 * 1024 * 1024)
            for number, where in enumerate(subjects):
                body = msgpack.packb(fields(worker_id="elsewhere"))
                await client.publish(where, encode_envelope(10 + number, 0, 1, body))
            for body in (b"", b"\x1b[31m", b"\x91" * 100_000):
                await client.publish(subject(HERE), body)
            for number, (_, _, body) in enumerate(messages):
                await client.publish(subject(HERE), body)
                if number % 500 == 0:
                    await client.flush()
            await client.flush()
            await client.close()

        where = ("--nats", server.url)
        trace_to = ("collect", *where, "--output", str(inside / "t"))
        set_to = (
            "collect",
            *where,
            "--format",
            "parquet",
            "--output",
            str(inside / "set"),
            "--durable",
            "two",
        )
        options = ("tail", "--plane", server.url, "--endpoint", str(HERE))
        with (
            reading(tmp_path, "trace", *trace_to, "--json") as rows,
            reading(tmp_path, "table", *options) as table,
            reading(tmp_path, "lines", *options, "--json") as lines,
        ):
            rows.until(lambda: "Ctrl-C stops" in rows.err)
            asyncio.run(greet(server.url, lambda: bool(lines.out) and " hello " in table.out))
            asyncio.run(tracked(server.url, send, PlaneContext(Sources({}))))
            table.until(lambda: GOODS - 1 in goods_in_table(table.out))
            lines.until(lambda: f'"counter_id":{GOODS - 1},' in lines.out[-3000:])
            codes = [lines.stop(), table.stop()]
            rows.until(lambda: goods_in_trace(inside / "t") == list(range(GOODS)), 0.3)
            codes.append(rows.stop())
        with reading(tmp_path, "set", *set_to, "--until-empty", "--json") as dataset:
            dataset.process.wait(PATIENCE_SECONDS)

    for text in (dataset.out, dataset.err):
        check_text(text)
    assert codes == [Exit.INTERRUPTED, Exit.INTERRUPTED, Exit.DONE]
    assert dataset.process.returncode == 0
    assert goods_in_json(lines.out) == goods_in_table(table.out) == list(range(GOODS))
    check_trace(inside / "t")
    check_files(tmp_path)
