"""Knows how rows of statistics become published passes, and that a build without the needed keys gives none.

One feed is one worker. Its first row decides: with everything there it is published and so are the others;
with a key missing one warning names it and nothing is published any more. A later row that is wrong costs
only itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

import msgspec
from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.engines.trtllm.stats_map import map_row, missing_keys
from forwardpass.errors import EngineError
from forwardpass.quiet import QuietLog

__all__ = ["FeedCounts", "Publish", "StatsFeed"]

logger = logging.getLogger(__name__)

_MAX_WORDS = 200


class Publish(Protocol):
    """Where passes go; :meth:`forwardpass.relay.direct.FpmDirectPublisher.publish` is one."""

    def __call__(
        self,
        *,
        dp_rank: int,
        scheduled_num_prefill_requests: int,
        scheduled_sum_prefill_tokens: int,
        scheduled_sum_prefill_kv_tokens: int,
        scheduled_num_decode_requests: int,
        scheduled_sum_decode_kv_tokens: int,
        queued_num_prefill_requests: int,
        queued_sum_prefill_tokens: int,
        queued_num_decode_requests: int,
        queued_sum_decode_kv_tokens: int,
        wall_time_secs: float,
    ) -> bool:
        """Take one pass; False where it was not accepted."""
        ...


class FeedCounts(Struct, frozen=True):
    """Rows since the feed began: ``rows = published + refused + bad + unsupported``."""

    rows: int
    published: int
    refused: int
    """Passes that the publisher had no room for."""
    bad: int
    """Rows that were not as documented."""
    unsupported: int
    """Rows of a build that lacks what a pass is made of."""


class StatsFeed:
    """Takes rows of one worker, in any of the forms in which TensorRT-LLM hands them out, and publishes."""

    def __init__(self, publish: Publish, *, clock: Clock | None = None) -> None:
        self.supported: bool | None = None
        """Whether the first row had every key; ``None`` before there was one. Once false it stays so."""
        self._publish = publish
        self._log = QuietLog(logger, clock)
        self._rows = self._published = self._refused = self._bad = self._unsupported = 0

    def take(self, rows: Iterable[object]) -> None:
        """Publish ``rows`` (maps, or their JSON as text or bytes) in order; never raises for one of them."""
        for row in rows:
            self._rows += 1
            try:
                self._take_one(_parsed(row))
            except (EngineError, RuntimeError, ValueError) as error:
                self._bad += 1
                words = str(error)[:_MAX_WORDS]
                self._log.warning("row", f"a row of TensorRT-LLM's statistics is left out: {words!r}")

    def counts(self) -> FeedCounts:
        """Return what became of the rows."""
        return FeedCounts(self._rows, self._published, self._refused, self._bad, self._unsupported)

    def _take_one(self, row: object) -> None:
        if self.supported is None:
            self._probe(row)
        if not self.supported:
            self._unsupported += 1
            return
        one = map_row(row)
        scheduled, queued = one.metrics.scheduled_requests, one.metrics.queued_requests
        accepted = self._publish(
            dp_rank=one.dp_rank,
            scheduled_num_prefill_requests=scheduled.num_prefill_requests,
            scheduled_sum_prefill_tokens=scheduled.sum_prefill_tokens,
            scheduled_sum_prefill_kv_tokens=scheduled.sum_prefill_kv_tokens,
            scheduled_num_decode_requests=scheduled.num_decode_requests,
            scheduled_sum_decode_kv_tokens=scheduled.sum_decode_kv_tokens,
            queued_num_prefill_requests=queued.num_prefill_requests,
            queued_sum_prefill_tokens=queued.sum_prefill_tokens,
            queued_num_decode_requests=queued.num_decode_requests,
            queued_sum_decode_kv_tokens=queued.sum_decode_kv_tokens,
            wall_time_secs=one.metrics.wall_time,
        )
        self._published += accepted
        self._refused += not accepted

    def _probe(self, row: object) -> None:
        missing = missing_keys(row)
        self.supported = not missing
        if missing:
            logger.warning(
                "this TensorRT-LLM's iteration statistics lack %s; no forward passes are published for this "
                "worker, for zeros in their place would look like an idle one",
                ", ".join(missing),
            )


def _parsed(row: object) -> object:
    if not isinstance(row, str | bytes):
        return row
    try:
        return msgspec.json.decode(row)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise EngineError(f"a row of iteration statistics is no JSON: {error}") from error
