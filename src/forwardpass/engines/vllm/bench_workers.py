"""Knows what a server asks its model workers after a self-benchmark, and how graph statistics are ended.

Workers are called by the names of methods that our extension class gives them; with an extension of the
user's own they are not called at all, since vLLM would log each such call as an error.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from forwardpass.artifact.probe import ProbeFailed, ProbeReplies, ProbeSkipped, failure_text
from forwardpass.bench.config import BenchConfig
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.errors import EngineError

__all__ = ["drop_graph_statistics", "end_graph_statistics", "probe_workers", "release_garbage"]

logger = logging.getLogger(__name__)

PROBE_SECONDS = 30.0
DISABLE_SECONDS = 10.0
RELEASE_SECONDS = 30.0
_EXPECTED = {"cudagraph_metrics": False}
_RELEASED = {"gc_held": False}


async def probe_workers(client: Any, config: BenchConfig) -> ProbeReplies | ProbeFailed | ProbeSkipped:
    """Ask every worker what runs in it. Never raises: what goes wrong is the answer."""
    foreign = config.user_worker_extension_cls
    if foreign is not None:
        logger.warning("the workers are not asked what runs in them: they have the extension %s", foreign)
        return ProbeSkipped(f"the workers have another extension class ({foreign})")
    try:
        replies = await _call(client, "fpm_engine_probe", PROBE_SECONDS)
    except Exception as error:  # noqa: BLE001  boundary: whatever the engine or its workers raise
        text = failure_text(error)
        logger.warning("the workers could not be asked what runs in them: %s", text)
        return ProbeFailed(text)
    return ProbeReplies(replies)


async def release_garbage(client: Any, config: BenchConfig, environment: BenchEnvironment) -> None:
    """Let every worker give its garbage collector back, if they hold it; the caller bounds the wait.

    Raises what the call raises, and :class:`~forwardpass.errors.EngineError` for a worker that does not say
    that it did: it would go on growing while it serves.
    """
    if not environment.freeze_garbage or config.user_worker_extension_cls is not None:
        return
    replies = await client.collective_rpc("fpm_gc_stop", timeout=RELEASE_SECONDS)
    for reply in replies if isinstance(replies, list) else [replies]:
        if reply != _RELEASED:
            raise EngineError(f"a worker goes on holding its garbage collector: it answered {reply!r:.200}")


async def end_graph_statistics(client: Any, config: BenchConfig) -> None:
    """Let the workers stop recording graphs, if we made them. Warns if they may go on. Never raises."""
    if not config.cudagraph_metrics_auto_enabled:
        return
    foreign = config.user_worker_extension_cls
    if foreign is not None:
        logger.warning("the workers go on recording their graphs: they have the extension %s", foreign)
        return
    try:
        replies = await _call(client, "fpm_disable_cudagraph_metrics", DISABLE_SECONDS)
    except Exception as error:  # noqa: BLE001  boundary: whatever the engine or its workers raise
        logger.warning("the workers may go on recording their graphs: %s", failure_text(error))
        return
    odd = [reply for reply in (replies if isinstance(replies, list) else [replies]) if reply != _EXPECTED]
    if odd:
        logger.warning("the workers may go on recording their graphs: one answered %.200r", odd[0])


def drop_graph_statistics(client: Any, config: BenchConfig) -> None:
    """Let this process's loggers forget graph statistics, which nobody would read any more, and take no new
    ones. In each server process, if we turned them on.
    """
    if not config.cudagraph_metrics_auto_enabled:
        return
    manager = getattr(client, "logger_manager", None)
    for stat_logger in getattr(manager, "stat_loggers", ()):
        for each in (stat_logger, *_members(stat_logger)):
            if getattr(each, "cudagraph_logging", None) is not None:
                each.cudagraph_logging = None
    client.vllm_config.observability_config.cudagraph_metrics = False


def _members(stat_logger: Any) -> tuple[Any, ...]:
    return tuple(getattr(stat_logger, "per_engine_stat_loggers", {}).values())


async def _call(client: Any, method: str, seconds: float) -> Any:
    """Call ``method`` in every worker. Both the call and the wait for it end: the first may not notice."""
    async with asyncio.timeout(seconds):
        return await client.collective_rpc(method, timeout=seconds)
