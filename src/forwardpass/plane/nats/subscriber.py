"""Knows how payloads are received over core NATS, from all publishers of one endpoint."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

from forwardpass.counters import DropReason, StageCounts
from forwardpass.errors import PlaneUnavailable, WireError
from forwardpass.plane.base import TOPIC, PlaneContext, PlaneMessage
from forwardpass.plane.envelope import decode_envelope
from forwardpass.plane.inbox import Inbox
from forwardpass.plane.names import subject
from forwardpass.plane.nats.link import Link
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.quiet import QuietLog
from forwardpass.wire.keys import Endpoint

__all__ = ["NatsSubscriber"]

logger = logging.getLogger(__name__)

CLIENT_MESSAGES = 65_536
"""Messages that wait in nats-py for its own task; it runs between two reads of the socket."""


class NatsSubscriber:
    """A subscription to one endpoint with a connection of its own."""

    def __init__(self, settings: NatsSettings, endpoint: Endpoint, context: PlaneContext) -> None:
        self._endpoint = endpoint
        self._clock = context.clock
        self._inbox = Inbox(context.receive_capacity)
        self._log = QuietLog(logger, context.clock)
        self._link = Link(settings, context.clock, on_connected=self._subscribe, on_slow=self._lost)

    async def open(self) -> None:
        """Connect and subscribe; raises as :func:`forwardpass.plane.nats.open_subscriber`."""
        await self._link.open()

    def __aiter__(self) -> AsyncIterator[PlaneMessage]:
        return self._inbox

    def counts(self) -> StageCounts:
        """Return what arrived, was consumed, waits and was dropped.

        ``queue_full`` also counts what nats-py dropped because its own queue was full.
        """
        return self._inbox.counts()

    async def close(self) -> None:
        """Leave; iteration ends once the queue is empty. Idempotent."""
        await self._link.close()
        self._inbox.close()

    async def _subscribe(self, client: Any) -> None:
        """Subscribe, and wait until the server has taken note of it."""
        await client.subscribe(subject(self._endpoint), cb=self._receive, pending_msgs_limit=CLIENT_MESSAGES)
        # The PING of nats-py's flush overtakes what its task has yet to write, so that only the answer to
        # a second one comes after the subscription (seen with nats-py 2.16.0).
        await client.flush()
        await client.flush()
        if self._link.refusal is not None:
            raise PlaneUnavailable(f"the NATS server refuses the subscription: {self._link.refusal}")

    async def _receive(self, message: Any) -> None:
        try:
            envelope = decode_envelope(message.data)
        except WireError as error:
            self._inbox.refuse(DropReason.MALFORMED)
            self._log.warning("malformed", f"a message on the NATS plane is no envelope: {error}")
            return
        if envelope.topic != TOPIC:
            self._inbox.refuse(DropReason.MALFORMED)
            self._log.warning("topic", "a message on the NATS plane has another topic")
            return
        self._inbox.put(
            PlaneMessage(
                envelope.payload,
                self._endpoint,
                envelope.publisher_id,
                envelope.sequence,
                envelope.published_at_ms,
                self._clock.unix_ms(),
            )
        )

    def _lost(self) -> None:
        self._inbox.refuse(DropReason.QUEUE_FULL)
