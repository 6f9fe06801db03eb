"""Knows how a vLLM server is held until its engine has measured itself, and how it serves the result.

vLLM adds the class to its application when ``--middleware`` names it, in every release that is supported.
The server announces its start through the same chain as its requests (ASGI, "lifespan"): what does not pass
that on holds the port shut. By then the engine and its client are there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from forwardpass.bench.engine_config import from_engine
from forwardpass.bench.handover import Handover, Order, Outcome, Verdict
from forwardpass.clock import SystemClock
from forwardpass.config.settings import Sources, process_environment
from forwardpass.engines.vllm.bench_conclude import Conclusion
from forwardpass.engines.vllm.bench_workers import drop_graph_statistics
from forwardpass.errors import ForwardPassError

__all__ = ["PATHS", "SelfBenchmark"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
PATHS = frozenset({"/fpm/perf_metrics", "/get_perf_metrics"})

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_JSON = [(b"content-type", b"application/json")]


class SelfBenchmark:
    """ASGI middleware: holds the start until the benchmark has ended, and answers :data:`PATHS`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._served: bytes | None = None
        self._problem = "this server was started without a self-benchmark"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle what an ASGI server hands over."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "http" and _path(scope) in PATHS:
            await self._answer(scope, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = await receive()
        try:
            refusal = await self._measure(scope)
        except Exception as error:  # boundary: raised, it would tell the ASGI server to announce no starts
            logger.exception("the self-benchmark was not seen to its end")
            refusal = f"{type(error).__name__}: {error}"
        if refusal is not None:
            await send({"type": "lifespan.startup.failed", "message": f"self-benchmark: {refusal}"})
            return
        waiting = [start]

        async def again() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, again, send)

    async def _measure(self, scope: Scope) -> str | None:
        """Wait for the benchmark, if there is one; return why this server must not answer anybody."""
        handover = Handover.of(process_environment())
        if handover is None:
            return None
        outcome = await _see_to_the_end(scope["app"].state.engine_client, handover)
        self._served, self._problem = handover.served(), outcome.message or self._problem
        return None if outcome.serving else outcome.message or outcome.verdict.value

    async def _answer(self, scope: Scope, send: Send) -> None:
        status, body = 200, self._served
        if scope["method"] not in ("GET", "HEAD"):
            status, body = 405, _error(f"{scope['method']} is not answered here; GET is")
        elif body is None:
            status, body = 404, _error(self._problem)
        headers = [*_JSON, (b"content-length", str(len(body)).encode())]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def _see_to_the_end(client: Any, handover: Handover) -> Outcome:
    """Return how the benchmark ended. One process of the server finds out, the others wait for its word."""
    order = handover.order()
    if order is None or not handover.lead():
        outcome = await _word(handover)
        if order is not None:
            drop_graph_statistics(client, from_engine(order.benchmark))
        return outcome
    outcome, served = Outcome(Verdict.FAILED, serving=False), None
    try:
        outcome, served = await _lead(client, handover, order)
    except (
        BaseException
    ) as error:  # a server that ends, or a mistake of ours: the others must not wait for it
        outcome = _lost(error)
        raise
    finally:
        handover.conclude(outcome, served)
    return outcome


async def _lead(client: Any, handover: Handover, order: Order) -> tuple[Outcome, bytes | None]:
    logger.info("the engine measures itself before it serves")
    try:
        return await Conclusion(client, handover, order, SystemClock(), Sources()).reach()
    except ForwardPassError as error:
        return _lost(error), None


def _lost(error: BaseException) -> Outcome:
    cancelled = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
    verdict = Verdict.INTERRUPTED if cancelled else Verdict.FAILED
    return Outcome(verdict, serving=False, message=f"{type(error).__name__}: {error}".rstrip(": "))


async def _word(handover: Handover) -> Outcome:
    while (outcome := handover.outcome()) is None:
        await asyncio.sleep(POLL_SECONDS)
    return outcome


def _path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _error(message: str) -> bytes:
    return msgspec.json.encode({"status": "error", "message": message})
