"""Knows the work of a collector: pull, write, acknowledge, and never the last before the second.

A message is acknowledged when its row is on the disk. Dying between the two brings it again, to this
collector or another one; a row says which message it is, so that no reader counts it twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.collect.output import Output
from forwardpass.collect.recent import REMEMBERED, RecentMessages
from forwardpass.collect.sort import CollectedRow, sort_messages
from forwardpass.plane.nats.consumer import Delivery
from forwardpass.quiet import QuietLog
from forwardpass.trace.record import MessageId

__all__ = ["CollectCounts", "Collector", "MessageSource"]

logger = logging.getLogger(__name__)

PULL_SECONDS = 1.0
"""Longest time one pull waits, and so the longest time a stop waits for it."""
HASTY_SECONDS = 0.25
"""The same where an empty pull is a reason to end."""
PULL_MESSAGES = 1000
RETRY_SECONDS = 5.0
"""After which messages are to come again that the disk refused."""


class MessageSource(Protocol):
    """What a collector needs of a :class:`~forwardpass.plane.nats.consumer.StreamConsumer`."""

    async def pull(self, most: int, seconds: float) -> list[Delivery]:
        """Return the next messages, or none after a while."""
        ...

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> bool:
        """Let the server forget messages; return whether it surely has heard of it."""
        ...

    async def terminate(self, deliveries: Sequence[Delivery]) -> None:
        """Let the server deliver messages never again."""
        ...

    async def give_back(self, deliveries: Sequence[Delivery], seconds: float) -> None:
        """Let the server deliver messages again later."""
        ...

    async def left(self) -> int | None:
        """Return how many messages wait or are under way, to whomever."""
        ...


class CollectCounts(Struct):
    """What a collector did. ``received = written + duplicates + malformed + not_written``."""

    received: int = 0
    """Deliveries, each time a message comes."""
    redelivered: int = 0
    """Of these, the ones that were delivered before, here or elsewhere."""
    written: int = 0
    """Rows that are on the disk."""
    duplicates: int = 0
    """Deliveries of messages that this collector has on its disk already."""
    malformed: int = 0
    """Messages that are no forward pass; they are not delivered again."""
    not_written: int = 0
    """Deliveries that the disk refused; they are delivered again."""
    acknowledged: int = 0
    unconfirmed: int = 0
    """Acknowledgements that may not have reached the server; such messages may come again."""


class Collector:
    """Collects until it is stopped, or until nothing is left.

    ``batch`` messages, or those of ``batch_seconds``, are written and acknowledged together.
    """

    def __init__(
        self,
        source: MessageSource,
        output: Output,
        clock: Clock,
        *,
        batch: int = 1000,
        batch_seconds: float = PULL_SECONDS,
    ) -> None:
        self.counts = CollectCounts()
        self.failing = False
        """Whether the disk refused rows when it was last tried."""
        self._source = source
        self._output = output
        self._clock = clock
        self._batch = batch
        self._batch_seconds = batch_seconds
        self._pull_seconds = PULL_SECONDS
        self._recent = RecentMessages()
        self._started = clock.monotonic()
        self._log = QuietLog(logger, clock)

    async def prepare(self) -> int:
        """Learn what was written before; return how many messages that is."""
        self._recent.add(await asyncio.to_thread(self._output.written_before, REMEMBERED))
        return len(self._recent)

    async def run(self, stop: asyncio.Event, *, until_empty: bool = False) -> None:
        """Collect until ``stop`` is set (or nothing is left); what was pulled by then is written."""
        self._pull_seconds = min(self._batch_seconds, HASTY_SECONDS if until_empty else PULL_SECONDS)
        pulling = self._begin_pull()
        held: list[Delivery] = []
        due = self._clock.monotonic() + self._batch_seconds
        while True:
            pulled = await pulling
            held += pulled
            last = stop.is_set() or (until_empty and not held and await self._source.left() == 0)
            if not last:
                pulling = self._begin_pull()  # the server sends while the disk writes
            now = self._clock.monotonic()
            if last or len(held) >= self._batch or now >= due or (until_empty and not pulled):
                await self._handle(held)
                held, due = [], self._clock.monotonic() + self._batch_seconds
            if last:
                return

    def _begin_pull(self) -> asyncio.Task[list[Delivery]]:
        pull = self._source.pull(min(self._batch, PULL_MESSAGES), self._pull_seconds)
        return asyncio.get_running_loop().create_task(pull, name="collect pull")

    async def _handle(self, deliveries: list[Delivery]) -> None:
        if not deliveries:
            return
        counts = self.counts
        counts.received += len(deliveries)
        counts.redelivered += sum(delivery.times > 1 for delivery in deliveries)
        timestamp_ms = int((self._clock.monotonic() - self._started) * 1000)
        rows, unusable, reasons = await asyncio.to_thread(sort_messages, deliveries, timestamp_ms)
        if unusable:
            counts.malformed += len(unusable)
            self._log.warning("malformed", f"a message is no forward pass and is given up: {reasons[0]}")
            await self._source.terminate(unusable)
        await self._write(rows)

    async def _write(self, rows: list[CollectedRow]) -> None:
        new, known = self._split(rows)
        fates = await asyncio.to_thread(self._output.write, new)
        written = [row for row, there in zip(new, fates, strict=True) if there]
        refused = [row for row, there in zip(new, fates, strict=True) if not there]
        self._recent.add(row.message_id for row in written)
        if new:
            self.failing = bool(refused)
        counts = self.counts
        counts.written += len(written)
        counts.not_written += len(refused)
        if refused:
            # A repetition of a row that was refused waits with it.
            lost = {row.message_id for row in refused}
            refused += [row for row in known if row.message_id in lost]
            known = [row for row in known if row.message_id not in lost]
            counts.not_written = counts.not_written + len(refused) - len(lost)
            await self._source.give_back([row.delivery for row in refused], RETRY_SECONDS)
        counts.duplicates += len(known)
        done = [row.delivery for row in (*written, *known)]
        if await self._source.acknowledge(done):
            counts.acknowledged += len(done)
        else:
            counts.unconfirmed += len(done)

    def _split(self, rows: Sequence[CollectedRow]) -> tuple[list[CollectedRow], list[CollectedRow]]:
        """Return the rows to write, and those whose message is on the disk or among these already."""
        new: list[CollectedRow] = []
        known: list[CollectedRow] = []
        here: set[MessageId] = set()
        for row in rows:
            if row.message_id in self._recent or row.message_id in here:
                known.append(row)
            else:
                here.add(row.message_id)
                new.append(row)
        return new, known
