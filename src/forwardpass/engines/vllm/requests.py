"""Knows what must be remembered of a vLLM request from one of its passes to the next."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["RequestMemory"]


class RequestMemory:
    """Lengths by request id, from a request's first pass until the engine reports that it finished.

    It is filled from scheduler outputs alone, never from live requests: an output says what its pass
    did, whatever became of the request since (a request that was aborted in flight still ran).
    """

    __slots__ = ("lengths", "recomputing")

    def __init__(self) -> None:
        self.lengths: dict[str, int] = {}
        """The prompt's length, by request."""
        self.recomputing: dict[str, int] = {}
        """Requests whose tokens are being computed again in more than one pass, after preemption or a
        failed load of KV: the length at which they are back where they were (decision D-2).
        """

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drop everything about requests that finished; unknown ids are fine."""
        lengths, recomputing = self.lengths, self.recomputing
        for request_id in request_ids:
            lengths.pop(request_id, None)
            recomputing.pop(request_id, None)

    def list_anew(self, request_id: str, prompt: int, reached: int, length: int) -> None:
        """Note that a request with a ``prompt`` so long is listed as new; the rest as :meth:`recompute`."""
        self.lengths[request_id] = prompt
        self.recompute(request_id, reached, length)

    def recompute(self, request_id: str, reached: int, length: int) -> None:
        """Note that a recomputation up to ``length`` tokens has ``reached`` so many after this pass."""
        if reached < length:
            self.recomputing[request_id] = length
        else:
            self.recomputing.pop(request_id, None)
