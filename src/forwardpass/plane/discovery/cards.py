"""Knows the model cards of a deployment: which workers of an endpoint are registered, and as what.

A worker may have several cards, one of its own and one per adapter it serves; it is known by its own, or
else by the first of the others. Cards are only read, unless the user calls :func:`register_worker`: what is
registered is seen by the frontends of the deployment too.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from forwardpass.errors import ConfigError, MalformedPayload
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.base import (
    MODEL_CARDS,
    Discovery,
    RecordChange,
    RecordWatch,
    Registration,
)
from forwardpass.plane.discovery.choose import open_discovery
from forwardpass.plane.discovery.records import ModelCard, card_path, card_prefix, read_card, write_card
from forwardpass.plane.workers import WorkerEvent
from forwardpass.quiet import QuietLog
from forwardpass.wire.keys import Endpoint

__all__ = ["CardWatch", "register_worker", "watch_workers"]

logger = logging.getLogger(__name__)

_DECIMAL = re.compile(r"(?:0|[1-9][0-9]{0,19})\Z")


class CardWatch:
    """The registered workers of one endpoint (a :class:`~forwardpass.plane.workers.WorkerWatch`)."""

    def __init__(self, discovery: Discovery, records: RecordWatch, endpoint: Endpoint) -> None:
        self._discovery = discovery
        self._records = records
        self._changes = aiter(records)
        self._endpoint = endpoint
        self._warnings = QuietLog(logger)
        self._cards: dict[str, ModelCard] = {}  # path -> card
        self._said: dict[int, str] = {}  # instance -> card

    def __aiter__(self) -> CardWatch:
        return self

    async def __anext__(self) -> WorkerEvent:
        """Return the next worker whose card came, changed or went; see the protocol."""
        while True:
            instance_id = self._take(await anext(self._changes))
            if instance_id is None:
                continue
            card, said = self._card_of(instance_id), self._said.get(instance_id)
            if card == said:
                continue
            if card is None:
                del self._said[instance_id]
            else:
                self._said[instance_id] = card
            return WorkerEvent(str(instance_id), card)

    async def close(self) -> None:
        """End the watch. Idempotent."""
        await self._records.close()
        await self._discovery.close()

    def _take(self, change: RecordChange) -> int | None:
        """Take note of a change; returns the worker that it is about."""
        before = self._cards.pop(change.path, None)
        if change.value is not None:
            try:
                card = read_card(change.path, change.value, self._endpoint)
            except MalformedPayload as error:
                self._warnings.warning("card", f"a model card in discovery is ignored: {error}")
            else:
                self._cards[change.path] = card
                return card.instance_id
        return before.instance_id if before is not None else None

    def _card_of(self, instance_id: int) -> str | None:
        own = [card for card in self._cards.values() if card.instance_id == instance_id]
        return min(own, key=lambda card: card.suffix).card if own else None  # the base card's is empty


async def watch_workers(endpoint: Endpoint, context: PlaneContext, *, discovery: str = "") -> CardWatch:
    """Watch the workers that are registered at ``endpoint``.

    ``discovery`` names the backend as ``open_discovery`` reads it; by default Dynamo's variables do. Raises
    :class:`ConfigError` and :class:`PlaneUnavailable`.
    """
    client = open_discovery(discovery, context)
    try:
        records = await client.watch(MODEL_CARDS, card_prefix(endpoint))
    except BaseException:
        await client.close()
        raise
    return CardWatch(client, records, endpoint)


class _Registered:
    """One card, with the client that keeps it alive."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    async def close(self) -> None:
        """Take the card away. Idempotent."""
        await self._discovery.close()


async def register_worker(
    endpoint: Endpoint,
    worker_id: str,
    context: PlaneContext,
    *,
    display_name: str,
    adapter: str = "",
    discovery: str = "",
) -> Registration:
    """Register a worker with a minimal model card, until the returned registration is closed.

    Only for a deployment without workers of Dynamo's own, where its tracker shall show ours: **frontends
    see the card too** and may try to send requests. ``worker_id`` is the decimal id in the worker's
    payloads. Raises :class:`ConfigError` for another id, and :class:`PlaneUnavailable`.
    """
    if not _DECIMAL.match(worker_id) or int(worker_id) >= 2**64:
        raise ConfigError("worker_id", worker_id, "a decimal unsigned 64-bit integer")
    instance_id = int(worker_id)
    card: dict[str, Any] = {"display_name": display_name, "runtime_config": {}}
    client = open_discovery(discovery, context)
    try:
        await client.register(
            MODEL_CARDS, card_path(endpoint, instance_id, adapter), write_card(endpoint, instance_id, card)
        )
    except BaseException:
        await client.close()
        raise
    return _Registered(client)
