"""Knows which messages a collector has on its disk and may be given again.

A message comes again only while its acknowledgement has not reached the server, so that the latest ones are
enough. Whatever slips through is told apart when traces are merged: that is what each row's message is for.
"""

from __future__ import annotations

from collections.abc import Iterable

from forwardpass.trace.record import MessageId

__all__ = ["REMEMBERED", "RecentMessages"]

REMEMBERED = 131_072
"""Messages that are remembered: about 25 MB."""


class RecentMessages:
    """The latest messages that were written, oldest forgotten first."""

    def __init__(self, capacity: int = REMEMBERED) -> None:
        self._capacity = capacity
        self._messages: dict[tuple[int, int], None] = {}

    def __contains__(self, message: MessageId) -> bool:
        return (message.publisher_id, message.sequence) in self._messages

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, messages: Iterable[MessageId]) -> None:
        """Remember ``messages``, in the order in which they are to be forgotten."""
        known = self._messages
        for message in messages:
            known[message.publisher_id, message.sequence] = None
        while len(known) > self._capacity:
            del known[next(iter(known))]
