"""Knows which messages at a port are those of our own worker, and leaves out those of another.

A port that was free when the server was started can be taken by another engine before ours binds it. Ours
then serves without its stream (decision D-13), and without this the relay would record the stranger's
forward passes as ours.
"""

from __future__ import annotations

import logging

from forwardpass.clock import Clock
from forwardpass.config.variables import METRIC_PORT
from forwardpass.errors import MalformedPayload, UnsupportedVersion
from forwardpass.quiet import QuietLog
from forwardpass.relay.zmq_source import RECEIVE_HWM, Batch, ZmqSource
from forwardpass.wire.codec import decode_strict, encode
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["OwnSource"]

logger = logging.getLogger(__name__)


class OwnSource(ZmqSource):
    """A source that passes on only what ``worker_id`` published.

    What cannot be read is passed on as well: it is malformed, not somebody else's, and the trace counts it.
    An engine that is told another id while it runs (decision D-15) is a stranger from then on, and is said
    to be one: who gave it the id is its owner, and who listens here is not.
    """

    reconnect_ms = (20, 40)
    """Our engine is on this host, where a refused connection costs next to nothing, and one that runs in
    the process that built it may compute its first pass a moment after it has bound the port."""

    def __init__(
        self, url: str, *, worker_id: str, receive_hwm: int = RECEIVE_HWM, clock: Clock | None = None
    ) -> None:
        super().__init__(url, receive_hwm=receive_hwm)
        self._worker_id = worker_id
        self._mark = _mark(worker_id)
        self._warnings = QuietLog(logger, clock)
        self.foreign = 0
        """Messages of other workers that were left out."""

    def receive_many(self, limit: int) -> Batch:
        """Return what has arrived of our worker, out of at most ``limit`` messages; raises ``OSError``."""
        batch = super().receive_many(limit)
        mark = self._mark
        if all(mark in payload for payload in batch.payloads):  # 0.1 us each: nothing is decoded
            return batch
        own = Batch()
        own.bad = batch.bad
        for payload, sequence in zip(batch.payloads, batch.sequence_frames, strict=True):
            other = None if mark in payload else self._other_worker(payload)
            if other is None:
                own.payloads.append(payload)
                own.sequence_frames.append(sequence)
            else:
                self._leave_out(other)
        return own

    def _other_worker(self, payload: bytes) -> str | None:
        """Return the worker that published ``payload``, or ``None`` if it is ours or cannot be read."""
        try:
            worker_id = decode_strict(payload).worker_id
        except (MalformedPayload, UnsupportedVersion):
            return None
        return None if worker_id == self._worker_id else worker_id

    def _leave_out(self, worker_id: str) -> None:
        self.foreign += 1
        self._warnings.warning(
            "foreign",
            f"{self.url} carries the stream of worker {worker_id[:40] or '(no id)'!r}, not ours: it "
            f"is not recorded; if that engine keeps the port, set {METRIC_PORT.name} to another base port",
        )


def _mark(worker_id: str) -> bytes:
    """Return the bytes of the field ``worker_id`` with this value, as our encoder and others write it."""
    message = encode(ForwardPassMetrics(worker_id=worker_id))
    begin = message.index(b"\xa9worker_id")
    return message[begin : message.index(b"\xa7dp_rank")]
