"""Knows how TensorRT-LLM's statistics are asked for again and again, in its process or over HTTP.

Statistics are polled and not pushed, so passes come in bursts: their times are the engine's, and when they
are observed is not when they ran.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from forwardpass.clock import Clock
from forwardpass.engines.trtllm.endpoint import StatsEndpoint
from forwardpass.engines.trtllm.feed import StatsFeed
from forwardpass.quiet import QuietLog

__all__ = ["POLL_SECONDS", "Fetch", "fetch_in_process", "fetch_over_http", "poll"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.5
"""Twice in the heartbeats' interval, so that an engine at work never falls silent between two polls."""
ENGINE_TIMEOUT_SECONDS = 0.2

Fetch = Callable[[], Awaitable[Iterable[object]]]
"""Returns the rows since it was last called."""


def fetch_over_http(endpoint: StatsEndpoint) -> Fetch:
    """Return the way to the statistics of a server; each call blocks a thread of its own."""
    return partial(asyncio.to_thread, endpoint.fetch)


def fetch_in_process(engine: Any, timeout_seconds: float = ENGINE_TIMEOUT_SECONDS) -> Fetch:
    """Return the way to the statistics of ``engine``, an object of TensorRT-LLM's LLM API.

    It has ``get_stats_async(timeout)``, which gives an asynchronous iterator of rows, or else
    ``get_stats(timeout)``, which blocks and gives a list. Raises ``TypeError`` for one with neither.
    """
    ask = getattr(engine, "get_stats_async", None)
    if callable(ask):
        return partial(_collect, ask, timeout_seconds)
    ask = getattr(engine, "get_stats", None)
    if callable(ask):
        return partial(asyncio.to_thread, ask, timeout_seconds)
    raise TypeError(f"{type(engine).__name__} has neither get_stats_async nor get_stats")


async def _collect(ask: Callable[[float], AsyncIterator[object]], timeout_seconds: float) -> list[object]:
    rows = []
    try:
        async for row in ask(timeout_seconds):
            rows.append(row)
    except (TimeoutError, asyncio.QueueEmpty):  # no more of them within the timeout
        pass
    return rows


async def poll(
    fetch: Fetch,
    feed: StatsFeed,
    stop: asyncio.Event,
    *,
    interval_seconds: float = POLL_SECONDS,
    answered: Callable[[bool], None] | None = None,
    clock: Clock | None = None,
) -> None:
    """Give ``feed`` what ``fetch`` returns until ``stop`` is set, and once more then.

    What fails is warned about and asked for again; ``answered`` is told each time whether an answer came.
    Returns early once the feed has found that this build's statistics are of no use.
    """
    log = QuietLog(logger, clock)
    while feed.supported is not False:
        last, good = stop.is_set(), False
        try:
            feed.take(await fetch())
            good = True
        except Exception as error:  # noqa: BLE001  boundary: a poll that fails must not end the next one
            words = (str(error) or type(error).__name__)[:200]
            log.warning("poll", f"TensorRT-LLM's statistics cannot be read: {words}")
        if answered is not None:
            answered(good)
        if last:
            return
        try:
            await asyncio.wait_for(stop.wait(), interval_seconds)
        except TimeoutError:
            continue
