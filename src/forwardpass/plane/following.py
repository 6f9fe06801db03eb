"""Knows how to follow a subscription for as long as somebody wants it, through failures of its plane."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeVar

from forwardpass.errors import ForwardPassError
from forwardpass.quiet import QuietLog

__all__ = ["CLOSE_SECONDS", "Followed", "close_quietly", "follow"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

CLOSE_SECONDS = 2.0
"""Longest time that leaving a plane may take."""
_FIRST_WAIT_SECONDS = 0.1
_LONGEST_WAIT_SECONDS = 5.0
_TURN = 256
"""Items that are taken before others on the loop get a turn."""


class Followed(Protocol[T_co]):
    """What can be followed: a plane's subscriber, or a watch of its workers."""

    def __aiter__(self) -> AsyncIterator[T_co]:
        """Return the iterator over what comes."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


async def follow(
    first: Followed[T],
    reopen: Callable[[], Awaitable[Followed[T]]],
    take: Callable[[T], None],
    said: QuietLog,
    what: str,
) -> None:
    """Give everything that comes to ``take``, until the subscription ends or this is cancelled.

    One that fails is opened again after a growing wait (D-19), and ``said`` is told about ``what``. The last
    one is closed in the end.
    """
    opened = first
    wait = _FIRST_WAIT_SECONDS
    try:
        while True:
            try:
                count = 0
                async for item in opened:
                    take(item)
                    wait = _FIRST_WAIT_SECONDS
                    count += 1
                    if count % _TURN == 0:
                        await asyncio.sleep(0)
                said.warning((what, "end"), f"{what} has ended; nothing more comes from it")
                return
            except Exception as error:  # noqa: BLE001  boundary: a plane of any author; tracking goes on
                said.error(what, f"{what} failed and is opened again", exc_info=error)
            await close_quietly(opened, said, what)
            opened, wait = await _open_again(reopen, wait, said, what)
    finally:
        await close_quietly(opened, said, what)


async def close_quietly(opened: Followed[T], said: QuietLog, what: str) -> None:
    """Close, for at most two seconds; say what goes wrong instead of raising it."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await opened.close()
    except Exception as error:  # noqa: BLE001  boundary: a plane of any author; whoever leaves must be let go
        said.error((what, "close"), f"{what} could not be closed", exc_info=error)


async def _open_again(
    reopen: Callable[[], Awaitable[Followed[T]]], wait: float, said: QuietLog, what: str
) -> tuple[Followed[T], float]:
    while True:
        await asyncio.sleep(wait)
        wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        try:
            return await reopen(), wait
        except (ForwardPassError, OSError) as error:
            said.warning((what, "open"), f"{what} cannot be opened again yet: {error}")
