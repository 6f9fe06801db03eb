"""Knows how a subscriber receives on the ZMQ plane: which frames are messages, and whom it listens to."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from forwardpass.counters import DropReason, StageCounts
from forwardpass.errors import MalformedPayload, WireError
from forwardpass.plane.base import TOPIC, PlaneContext, PlaneMessage
from forwardpass.plane.discovery.base import Discovery, RecordWatch
from forwardpass.plane.discovery.records import read_channel
from forwardpass.plane.envelope import Envelope, decode_envelope
from forwardpass.plane.inbox import Inbox
from forwardpass.plane.zmq.addresses import is_address
from forwardpass.plane.zmq.frames import OVERHEAD_BYTES, split
from forwardpass.plane.zmq.publisher import MAX_PAYLOAD_BYTES
from forwardpass.plane.zmq.sub_socket import SubSocket
from forwardpass.quiet import QuietLog
from forwardpass.wire.keys import Endpoint

__all__ = ["REMEMBERED_MESSAGES", "ZmqSubscriber"]

logger = logging.getLogger(__name__)

REMEMBERED_MESSAGES = 100_000
"""Messages that are known again when a second broker brings them."""


class ZmqSubscriber:
    """A subscription to ``endpoint``.

    ``name`` is what the first frame of its messages is: topic or subject. It listens at ``addresses``, and
    at those that :meth:`follow` finds. ``once`` drops what was received before, by publisher and sequence.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        context: PlaneContext,
        name: bytes,
        *,
        addresses: Sequence[str] = (),
        once: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._clock = context.clock
        self._name = name
        self._inbox = Inbox(context.receive_capacity)
        self._warnings = QuietLog(logger, context.clock)
        self._seen: OrderedDict[tuple[int, int], None] | None = OrderedDict() if once else None
        self._addresses: dict[str, str] = {}  # path of a record -> address
        self._discovery: Discovery | None = None
        self._records: RecordWatch | None = None
        self._following: asyncio.Task[None] | None = None
        self._socket = SubSocket(name, MAX_PAYLOAD_BYTES + OVERHEAD_BYTES, self._received, self._warnings)
        for address in addresses:
            self._socket.connect(address)

    def follow(self, discovery: Discovery, records: RecordWatch) -> None:
        """Listen to the publishers in ``records`` while they are there; ``close`` closes both."""
        self._discovery, self._records = discovery, records
        self._following = asyncio.create_task(self._follow(records), name="forwardpass publishers")

    def __aiter__(self) -> AsyncIterator[PlaneMessage]:
        return self._inbox

    def counts(self) -> StageCounts:
        """Return what arrived, was consumed, waits and was dropped."""
        return self._inbox.counts()

    async def close(self) -> None:
        """End the subscription; iteration ends once the queue is empty. Idempotent."""
        self._socket.close()
        self._inbox.close()
        following, self._following = self._following, None
        if following is not None:
            following.cancel()
            await asyncio.wait([following])
        if self._records is not None:
            await self._records.close()
        if self._discovery is not None:
            await self._discovery.close()

    async def _follow(self, records: RecordWatch) -> None:
        async for change in records:
            if change.value is None:
                address = self._addresses.pop(change.path, None)
                if address is not None and address not in self._addresses.values():
                    self._socket.disconnect(address)
            elif change.path not in self._addresses:  # a publisher never moves: a new one has a new id
                self._join(change.path, change.value)

    def _join(self, path: str, value: bytes) -> None:
        try:
            address = read_channel(value, self._endpoint)
            if not is_address(address):
                raise MalformedPayload(
                    "no address of the form tcp://HOST:PORT", "$.transport.config.endpoint"
                )
        except MalformedPayload as error:
            self._warnings.warning("record", f"a publisher's record in discovery is ignored: {error}")
            return
        self._addresses[path] = address
        self._socket.connect(address)

    def _received(self, parts: list[bytes]) -> None:
        if self._is_other(parts):
            return
        try:
            envelope = decode_envelope(split(parts))
        except WireError as error:
            self._inbox.refuse(DropReason.MALFORMED)
            self._warnings.warning("message", f"a message on the event plane is no event: {error}")
            return
        if envelope.topic == TOPIC and not self._is_repeated(envelope):
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

    def _is_other(self, parts: list[bytes]) -> bool:
        """Say whether a whole message is for another name, of which ours is only the beginning."""
        return len(parts[0]) != len(self._name) and parts[0].startswith(self._name)

    def _is_repeated(self, envelope: Envelope) -> bool:
        seen = self._seen
        if seen is None:
            return False
        key = envelope.publisher_id, envelope.sequence
        if key in seen:
            seen.move_to_end(key)
            return True
        seen[key] = None
        if len(seen) > REMEMBERED_MESSAGES:
            seen.popitem(last=False)
        return False
