"""Knows how payloads are published over core NATS: one message each, the envelope and nothing else."""

from __future__ import annotations

from forwardpass.errors import PayloadTooLarge, PlaneClosed, PlaneUnavailable
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.envelope import encode_envelope
from forwardpass.plane.names import draw_publisher_id, subject
from forwardpass.plane.nats.link import MAX_PENDING_BYTES, Link, words_of
from forwardpass.plane.nats.login import load_library
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

__all__ = ["ENVELOPE_BYTES", "NatsPublisher"]

_LONG = bytes(70_000)
ENVELOPE_BYTES = len(encode_envelope(MAX_PRODUCER_ID, 2**64 - 1, 2**63, _LONG)) - len(_LONG)
"""Bytes of the largest envelope around a payload."""


class NatsPublisher:
    """A publisher of one endpoint with a connection of its own."""

    def __init__(self, settings: NatsSettings, endpoint: Endpoint, context: PlaneContext) -> None:
        self.publisher_id = draw_publisher_id()
        self._subject = subject(endpoint)
        self._clock = context.clock
        self._sequence = 0
        self._link = Link(settings, context.clock)
        self._closed = False

    async def open(self) -> None:
        """Connect; raises as :func:`forwardpass.plane.nats.open_publisher`."""
        await self._link.open()
        self._errors = load_library("nats.errors").Error

    async def publish(self, payload: bytes) -> None:
        """Hand ``payload`` to the client, which sends it at once, or after a short absence of the server.

        Raises :class:`PlaneClosed`, :class:`PayloadTooLarge` for more than the server's ``max_payload``
        less ``ENVELOPE_BYTES``, and :class:`PlaneUnavailable` while more than 2 MiB wait; the message's
        sequence is then used up, so that readers see what is missing.
        """
        if self._closed:
            raise PlaneClosed("this publisher of the NATS plane is closed")
        sequence = self._sequence
        try:
            client = self._link.client
            limit = client.max_payload - ENVELOPE_BYTES
            if len(payload) > limit:
                raise PayloadTooLarge(len(payload), limit)
            self._sequence += 1
            if client.pending_data_size > MAX_PENDING_BYTES:
                raise PlaneUnavailable("the NATS server does not take what is sent to it")
            body = encode_envelope(self.publisher_id, sequence, self._clock.unix_ms(), payload)
            await client.publish(self._subject, body)
        except (OSError, self._errors) as error:
            raise PlaneUnavailable(f"not sent to the NATS server: {words_of(error)}") from error

    async def close(self) -> None:
        """Send what waits and leave. Idempotent."""
        if not self._closed:
            self._closed = True
            await self._link.close()
