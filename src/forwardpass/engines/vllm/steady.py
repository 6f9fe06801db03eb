"""Knows the spread of context lengths of requests that decode pass after pass, without squaring again."""

from __future__ import annotations

from forwardpass.wire.tally import Tally

__all__ = ["SteadyDecodes"]


class SteadyDecodes:
    """The tally of the last pure decode pass, moved on by one token a request where that is exact.

    If every length grows by one, the sum S of n lengths grows by n and the sum of squares by 2S + n.
    Three facts together prove that every length did: the same requests ran in the pass before, one
    token each; no length can have grown by more than what was scheduled (a request that is admitted
    anew is listed apart); and the sum grew by exactly n. Anything else is counted afresh.
    """

    __slots__ = ("_ids", "_tally")

    def __init__(self) -> None:
        self._ids: list[str] | None = None
        self._tally = Tally()

    def reset(self) -> None:
        """Forget the last pass: one followed that this object did not see."""
        self._ids = None

    def follow(self, ids: list[str], lengths: list[int], scheduled_tokens: int) -> Tally:
        """Return the tally of ``lengths`` (tokens in KV before the pass), one for each of ``ids``.

        ``scheduled_tokens`` is the whole pass's. The lists must not change afterwards; the tally is
        valid until the next call.
        """
        # HOT PATH: 256 requests, 2 us; 9 us when counted afresh (2026-11, hot caches, Xeon).
        tally, n = self._tally, len(ids)
        total = sum(lengths)
        if ids == self._ids and total == tally.total + n:
            tally.squares += 2 * tally.total + n
            tally.total = total
        else:
            tally = self._tally = Tally.of(lengths)
        # Only if each got exactly one token may the next pass build on this one.
        self._ids = ids if scheduled_tokens == n else None
        return tally
