"""A program: publish payloads on Dynamo's ZMQ event plane and print which its own tracker shows.

Arguments: a folder for its discovery, and payloads in hex. The worker of payload number n has the id 100 + n,
so that each is the only one of its worker. Prints a JSON list: for each payload the ranks that are shown.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any

import zmq
from dynamo._core import DistributedRuntime, FpmEventSubscriber

from forwardpass.plane.base import TOPIC
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import discovery_path
from forwardpass.testing.ports import free_port
from forwardpass.wire.keys import Endpoint

PUBLISHER = 4242
ENDPOINT = Endpoint("trackers", "backend", "generate")
SETTLED_SECONDS = 0.5
"""After the first payload is shown all others, published before it in each round, had their turn."""


def file_name(path: str) -> str:
    """Return a record's file name: every byte but ASCII letters and digits encoded."""
    return "".join(chr(b) if chr(b).isalnum() and b < 128 else f"%{b:02X}" for b in path.encode())


def register(folder: Path, bucket: str, name: str, record: dict[str, Any]) -> Path:
    """Write a record where the runtime looks for it."""
    path = folder / "v1" / bucket / file_name(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))
    return path


def records(folder: Path, payloads: list[bytes], port: int) -> list[Path]:
    """Register the publisher, and a model card for the worker of each payload."""
    parts = dict(zip(("namespace", "component", "name"), ENDPOINT, strict=True))
    channel = {
        "type": "EventChannel",
        "scope": {"kind": "endpoint", "endpoint": parts},
        "topic": TOPIC,
        "instance_id": PUBLISHER,
        "transport": {"kind": "Zmq", "config": {"endpoint": f"tcp://127.0.0.1:{port}"}},
    }
    written = [register(folder, "event_channels", discovery_path(ENDPOINT, PUBLISHER), channel)]
    for worker in range(100, 100 + len(payloads)):
        card = {
            "type": "Model",
            "namespace": ENDPOINT.namespace,
            "component": ENDPOINT.component,
            "endpoint": ENDPOINT.name,
            "instance_id": worker,
            "card_json": {"display_name": "m", "runtime_config": {}},
        }
        written.append(register(folder, "mdc", f"{'/'.join(ENDPOINT)}/{worker:x}", card))
    return written


def publish(
    socket: zmq.Socket[bytes], payloads: list[bytes], files: list[Path], stop: threading.Event
) -> None:
    """Publish all payloads again and again, and keep the records alive."""
    sequence = 0
    while not stop.wait(0.1):
        for path in files:
            os.utime(path)
        for payload in payloads:
            envelope = encode_envelope(PUBLISHER, sequence, 0, payload)
            numbers = struct.pack(">Q", PUBLISHER), struct.pack(">Q", sequence)
            socket.send_multipart(
                [TOPIC.encode(), *numbers, b"\x01" + struct.pack(">I", len(envelope)) + envelope]
            )
            sequence += 1


async def main(folder: Path, payloads: list[bytes]) -> None:
    """Track until the last payload is shown, and print what is."""
    context = zmq.Context()
    socket = context.socket(zmq.PUB)
    port = free_port()
    socket.bind(f"tcp://127.0.0.1:{port}")
    files = records(folder, payloads, port)
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    subscriber = await asyncio.to_thread(FpmEventSubscriber, runtime.endpoint(str(ENDPOINT)))
    await asyncio.to_thread(subscriber.start_tracking)
    stop = threading.Event()
    thread = threading.Thread(target=publish, args=(socket, payloads, files, stop))
    thread.start()
    last = str(100 + len(payloads) - 1)
    shown: dict[tuple[str, int], bytes] = {}
    try:
        async with asyncio.timeout(30):
            while not any(worker == last for worker, _ in shown):
                await asyncio.sleep(0.05)
                shown = await asyncio.to_thread(subscriber.get_recent_stats)
        await asyncio.sleep(SETTLED_SECONDS)
        shown = await asyncio.to_thread(subscriber.get_recent_stats)
    finally:
        stop.set()
        thread.join()
        socket.close(0)
        context.term()
    ranks = [[rank for worker, rank in shown if worker == str(100 + at)] for at in range(len(payloads))]
    print(json.dumps(ranks), flush=True)
    await asyncio.to_thread(subscriber.shutdown)
    os._exit(0)  # the runtime's own end takes seconds and is not what is looked at


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), [bytes.fromhex(text) for text in sys.argv[2:]]))
