"""Knows how one connection to NATS servers is made, kept and given up.

nats-py connects again by itself after most faults. It closes for good after some (an error that the server
named); then a new client takes its place, for ever and after growing waits. What happens is said quietly:
nats-py's own log lines and callbacks never reach a terminal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from forwardpass.clock import Clock
from forwardpass.errors import PlaneClosed, PlaneUnavailable
from forwardpass.plane.nats.login import load_library, login_options
from forwardpass.plane.nats.settings import NatsSettings
from forwardpass.quiet import QuietLog

__all__ = ["MAX_PENDING_BYTES", "Link", "words_of"]

logger = logging.getLogger(__name__)

CONNECT_SECONDS = 2
"""Longest wait for one server's answer, in whole seconds as nats-py wants them."""
OPEN_SECONDS = 10.0
CLOSE_SECONDS = 1.0
RECONNECT_SECONDS = 0.5
MAX_RETRY_SECONDS = 30.0
PING_SECONDS = 20
"""A server that answers two pings in a row with nothing is gone."""
MAX_PENDING_BYTES = 2 << 20
"""Bytes that wait in the client while its server is away or slow."""

OnConnected = Callable[[Any], Awaitable[None]]


async def _nothing(client: Any) -> None:
    """Do nothing with a new client."""


class Link:
    """One connection, from ``open`` to ``close``.

    ``on_connected`` is awaited with each new client before it is used. ``on_slow`` is called for each
    message that nats-py threw away because its own queue for a subscription was full.
    """

    def __init__(
        self,
        settings: NatsSettings,
        clock: Clock,
        *,
        on_connected: OnConnected = _nothing,
        on_slow: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._on_connected = on_connected
        self._on_slow = on_slow
        self._log = QuietLog(logger, clock)
        self._client: Any = None
        self._closed = False
        self._reopening: asyncio.Task[None] | None = None
        self._slow_error: type[Exception] = Exception
        self._failures: list[str] = []
        self._opening: asyncio.Future[None] | None = None
        self.refusal: str | None = None
        """What the server last refused on this connection (a permission), in words."""

    @property
    def client(self) -> Any:
        """The client to use now. Raises :class:`PlaneClosed` and :class:`PlaneUnavailable`."""
        if self._closed:
            raise PlaneClosed(f"the connection to {self._settings.where} is closed")
        if self._client is None or self._client.is_closed:
            raise PlaneUnavailable(f"{self._settings.where} is not connected; connecting again")
        return self._client

    async def open(self) -> None:
        """Connect. Raises :class:`ConfigError`, :class:`MissingExtra` and :class:`PlaneUnavailable`."""
        # A host that configured no logging would otherwise see nats-py's warnings on its stderr.
        logging.getLogger("nats").addHandler(logging.NullHandler())
        self._slow_error = load_library("nats.errors").SlowConsumerError
        self._client = await self._connect()

    async def close(self) -> None:
        """Send what waits and leave, within a second or so. Idempotent."""
        self._closed = True
        if self._reopening is not None:
            self._reopening.cancel()
        client, self._client = self._client, None
        if client is not None:
            await self._leave(client)

    # --- connecting -------------------------------------------------------------------------------

    async def _connect(self) -> Any:
        settings, login = self._settings, login_options(self._settings)
        client = _make_client(tls=settings.tls)
        self._failures, self.refusal = [], None
        gave_up = self._opening = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(
            client.connect(
                servers=list(settings.servers),
                name="forwardpass",
                allow_reconnect=True,
                max_reconnect_attempts=-1,
                connect_timeout=CONNECT_SECONDS,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=PING_SECONDS,
                pending_size=MAX_PENDING_BYTES,
                flush_timeout=CONNECT_SECONDS,
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_reconnected,
                closed_cb=self._on_closed,
                **login,
            )
        )
        try:
            await asyncio.wait({task, gave_up}, timeout=OPEN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise PlaneUnavailable(self._failure("no answer"))
            if task.cancelled():  # by nats-py itself; passed on, it would look like a cancellation of ours
                raise PlaneUnavailable(self._failure("the attempt was given up"))
            try:
                await task
                await self._on_connected(client)
            except (OSError, load_library("nats.errors").Error) as error:
                raise PlaneUnavailable(self._failure(words_of(error))) from error
        except BaseException:
            task.cancel()
            await _end(client)  # nats-py 2.9 fails to close what never connected
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(task, CLOSE_SECONDS)
            raise
        finally:
            self._opening = None
        return client

    def _failure(self, otherwise: str) -> str:
        found = "; ".join(dict.fromkeys(self._failures)) or otherwise
        return f"no NATS server at {self._settings.where} can be used: {found}"

    async def _leave(self, client: Any) -> None:
        if (error := await _end(client)) is not None:
            self._log.warning("leave", f"{self._settings.where} was not left cleanly: {words_of(error)}")

    async def _reopen(self) -> None:
        wait = RECONNECT_SECONDS
        while not self._closed:
            try:
                self._client = await self._connect()
                logger.info("connected to %s again", self._settings.where)
                return
            except Exception as error:  # noqa: BLE001  boundary: whatever is wrong, it may pass
                self._log.warning("reopen", words_of(error))
            await asyncio.sleep(wait)
            wait = min(MAX_RETRY_SECONDS, wait * 2)

    # --- what nats-py reports ---------------------------------------------------------------------

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, self._slow_error):
            self._on_slow()
            self._log.warning("slow", "messages came faster than they were taken; the newest are dropped")
            return
        text = words_of(error)
        if "ermissions" in text:
            self.refusal = text
        if self._opening is not None:
            self._failures.append(text)
            if len(self._failures) >= len(self._settings.servers) and not self._opening.done():
                self._opening.set_result(None)
            return
        self._log.warning("error", f"{self._settings.where}: {text}")

    async def _on_disconnected(self) -> None:
        if not self._closed and self._opening is None:
            self._log.warning("lost", f"the connection to {self._settings.where} is lost; connecting again")

    async def _on_reconnected(self) -> None:
        logger.info("connected to %s again", self._settings.where)

    async def _on_closed(self) -> None:
        if self._closed or self._opening is not None:
            return
        if self._reopening is None or self._reopening.done():
            self._reopening = asyncio.get_running_loop().create_task(self._reopen(), name="nats reopen")


async def _end(client: Any) -> BaseException | None:
    """Close a client of nats-py within CLOSE_SECONDS; return what went wrong, if anything did.

    A task of its own, because nats-py cancels its reconnecting while that waits for the old socket to close.
    The wait for the socket counts as cancelled from then on, and ``close``, which waits for the same, ends
    with a CancelledError that nobody asked for. What cancels the caller still does.
    """
    task = asyncio.ensure_future(client.close())
    try:
        done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
    finally:
        task.cancel()
    if not done:
        return TimeoutError(f"it took longer than {CLOSE_SECONDS} s")
    return None if task.cancelled() else task.exception()


def words_of(error: BaseException) -> str:
    """Return what an error says, in at most 200 visible characters; the server wrote some of them."""
    text = (str(error) or type(error).__name__)[:200]
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _make_client(*, tls: bool) -> Any:
    """Return a client of nats-py; with ``tls`` one that says nothing of us to a server without TLS.

    nats-py takes ``tls://`` for ``nats://`` where the server does not ask for TLS, and would send the
    password in the clear. Its 2.9 to 2.16 make the first message of a connection in ``_connect_command``;
    test_nats_login.py::test_tls_is_not_given_up notices a change.
    """
    library = load_library("nats.aio.client")
    if not tls:
        return library.Client()
    errors = load_library("nats.errors")

    class TlsClient(library.Client):  # type: ignore[name-defined, misc]
        def _connect_command(self) -> Any:
            if not self._server_info.get("tls_required"):
                raise errors.Error("the server does not use TLS, which tls:// asks for")
            return super()._connect_command()

    return TlsClient()
