"""Knows how to read raw streams as any subscriber does, in a thread of its own, and to check each message."""

from __future__ import annotations

import threading

import zmq

from forwardpass.errors import WireError
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.frames import split
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload


class Subscriber:
    """Collects one port's stream in a thread of its own, from before the port is bound."""

    def __init__(self, port: int) -> None:
        self.messages: list[tuple[int, ForwardPassMetrics]] = []
        self.refused: list[str] = []
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        context = zmq.Context()
        reader = context.socket(zmq.SUB)
        reader.subscribe(b"")
        reader.connect(f"tcp://127.0.0.1:{self._port}")
        while not self._stop.is_set():
            while reader.poll(50):
                frames = split(reader.recv_multipart())
                self.messages.append((frames.seq, decode_strict(frames.payload)))
                try:
                    validate_payload(frames.payload)
                except WireError as error:
                    self.refused.append(str(error))
        reader.close(linger=0)
        context.term()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(10)

    @property
    def passes(self) -> list[ForwardPassMetrics]:
        return [metrics for _, metrics in self.messages if metrics.wall_time > 0]

    @property
    def heartbeats(self) -> list[ForwardPassMetrics]:
        return [metrics for _, metrics in self.messages if metrics.wall_time == 0]
