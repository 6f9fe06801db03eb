"""Knows how messages are pulled from a durable consumer of JetStream, and acknowledged.

Any number of processes share one consumer: the server gives each message to one of them, and again to any of
them if it is not acknowledged in time.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from forwardpass.errors import ForwardPassError, PlaneUnavailable
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.nats.link import Link, words_of
from forwardpass.plane.nats.login import load_library
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.plane.nats.stream import StreamSettings, ensure_consumer
from forwardpass.quiet import QuietLog

__all__ = ["Delivery", "StreamConsumer", "open_consumer"]

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""How much later than it should the server's word may come that a pull is over."""
CONFIRM_SECONDS = 5.0
_NOTHING_NOW = frozenset({"404", "408"})
"""Status of a pull that is over because nothing (more) came."""
_MAX_HELD = 262_144
"""Messages that nats-py holds for us at most; a pull asks for no more than its caller wants."""


class Delivery(Struct, frozen=True, gc=False):
    """One message as the server delivered it."""

    subject: str
    body: bytes
    times: int
    """How often it was delivered so far, this time included."""
    stored_at_unix_ms: int
    """When the server stored it, by its clock."""
    reply: str
    """Where acknowledgements go."""


class StreamConsumer:
    """One process's share of a durable consumer. All methods on one event loop."""

    def __init__(self, settings: NatsSettings, stream: StreamSettings, context: PlaneContext) -> None:
        self._stream = stream
        self._log = QuietLog(logger, context.clock)
        self._link = Link(settings, context.clock, on_connected=self._prepare)
        self._inbox = ""
        self._arrived: list[Delivery] = []
        self._wanted = 0
        self._over = asyncio.Event()
        self._statuses: list[str] = []

    async def open(self) -> None:
        """Connect, and make stream and consumer where they are missing.

        Raises :class:`ConfigError`, :class:`MissingExtra` and :class:`PlaneUnavailable`.
        """
        self._stream.check()
        await self._link.open()

    async def pull(self, most: int, seconds: float) -> list[Delivery]:
        """Return up to ``most`` messages or so: those that came within ``seconds``, or sooner that many.

        Messages of an earlier pull that came late are among them. Never raises: where the server is away or
        has lost the consumer, that is said quietly, waited for and repaired, and nothing is returned.
        """
        self._over.clear()
        self._wanted, self._statuses = most, []
        request = {"batch": most, "expires": int(seconds * 1e9)}
        where = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream.stream}.{self._stream.durable}"
        try:
            if len(self._arrived) < most:
                await self._link.client.publish(where, json.dumps(request).encode(), reply=self._inbox)
                async with asyncio.timeout(seconds + GRACE_SECONDS):
                    await self._over.wait()
        except TimeoutError:
            pass
        except (ForwardPassError, load_library("nats.errors").Error, OSError) as error:
            self._log.warning("pull", f"nothing can be pulled: {words_of(error)}")
            await asyncio.sleep(GRACE_SECONDS)
        for status in self._statuses:
            if status not in _NOTHING_NOW:
                await self._repair(status)
                break
        arrived, self._arrived = self._arrived, []
        return arrived

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> bool:
        """Tell the server that it may forget these; return whether it surely heard of all of them.

        The last one is asked back for: a connection keeps the order, so that its answer speaks for all.
        """
        if not deliveries:
            return True
        try:
            client = self._link.client
            for delivery in deliveries[:-1]:
                await client.publish(delivery.reply, b"+ACK")
            await client.request(deliveries[-1].reply, b"+ACK", timeout=CONFIRM_SECONDS)
        except (PlaneUnavailable, load_library("nats.errors").Error, OSError) as error:
            self._log.warning("ack", f"acknowledgements are not confirmed: {words_of(error)}")
            return False
        return True

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Tell the server never to deliver these again, for nobody can use them."""
        await self._answer(deliveries, b"+TERM")

    async def give_back(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Ask the server to deliver these again, after ``seconds``."""
        await self._answer(deliveries, f'-NAK {{"delay": {int(seconds * 1e9)}}}'.encode())

    async def left(self) -> int | None:
        """Return how many messages are not yet acknowledged or not yet delivered; ``None`` if unknown."""
        try:
            jetstream = self._link.client.jetstream(timeout=CONFIRM_SECONDS)
            info = await jetstream.consumer_info(self._stream.stream, self._stream.durable)
        except (PlaneUnavailable, load_library("nats.errors").Error, OSError) as error:
            self._log.warning("info", f"the consumer's state is not known: {words_of(error)}")
            return None
        return int(info.num_pending or 0) + int(info.num_ack_pending or 0)

    async def close(self) -> None:
        """Leave; what was delivered and not acknowledged is delivered again. Idempotent."""
        await self._link.close()

    async def _prepare(self, client: Any) -> None:
        try:
            await ensure_consumer(client, self._stream)
        except PlaneUnavailable as error:
            if self._link.refusal is None:
                raise
            raise PlaneUnavailable(f"{error}: {self._link.refusal}") from error
        self._inbox = client.new_inbox()
        await client.subscribe(self._inbox, cb=self._receive, pending_msgs_limit=_MAX_HELD)

    async def _repair(self, status: str) -> None:
        """Wait a moment, and make again what the server lost: one without a lasting store starts empty."""
        self._log.warning("status", f"the server answers a pull with status {status}")
        await asyncio.sleep(GRACE_SECONDS)
        try:
            await ensure_consumer(self._link.client, self._stream)
        except ForwardPassError as error:
            self._log.warning("repair", f"the consumer cannot be made again: {words_of(error)}")

    async def _answer(self, deliveries: Sequence[Delivery], word: bytes) -> None:
        try:
            for delivery in deliveries:
                await self._link.client.publish(delivery.reply, word)
        except (PlaneUnavailable, load_library("nats.errors").Error, OSError) as error:
            self._log.warning("answer", f"the server was not told: {words_of(error)}")

    async def _receive(self, message: Any) -> None:
        if not message.reply:
            self._statuses.append(str((message.headers or {}).get("Status", "")))
            self._over.set()
            return
        facts = _facts(message.reply)
        if facts is None:
            self._log.warning("reply", "a message came that no consumer delivers")
            return
        self._arrived.append(Delivery(message.subject, message.data, *facts, message.reply))
        if len(self._arrived) >= self._wanted:
            self._over.set()


def _facts(reply: str) -> tuple[int, int] | None:
    """Return how often a message was delivered and when it was stored, from where acknowledgements go.

    ``$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>.<consumer seq>.<ns>.<pending>``, or with domain
    and account after ``ACK`` and perhaps a token at the end (JetStream wire API; nats-server 2.15).
    """
    words = reply.split(".")
    if len(words) < 9 or words[:2] != ["$JS", "ACK"]:
        return None
    first = 4 if len(words) == 9 else 6
    try:
        return int(words[first]), int(words[first + 3]) // 1_000_000
    except (ValueError, IndexError):
        return None


async def open_consumer(url: str, stream: StreamSettings, context: PlaneContext) -> StreamConsumer:
    """Return a share of the consumer that ``stream`` names, at the servers of a plane URL.

    Raises :class:`~forwardpass.errors.ConfigError` for what cannot be used, and
    :class:`~forwardpass.errors.PlaneUnavailable` where no server lets us in or JetStream is missing.
    """
    consumer = StreamConsumer(NatsSettings.load(url, context.sources), stream, context)
    await consumer.open()
    return consumer
