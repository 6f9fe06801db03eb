"""Knows who waits, in order, and how many tokens that is.

The sums are kept as requests enter and leave, so a snapshot costs the same for ten requests or ten thousand.
"""

from __future__ import annotations

from collections import deque

from forwardpass.engines.mock.request import Request, Status
from forwardpass.wire.schema import QueuedRequestMetrics
from forwardpass.wire.tally import Tally

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """First come, first served; preempted requests go back to the front.

    A request that never ran counts as prefill with its prompt. A preempted one counts as decode with all
    its known tokens: its computed tokens are zero and would hide the work (decision D-1).
    """

    __slots__ = ("_decode", "_prefill", "_requests")

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self._prefill = Tally()
        self._decode = Tally()

    def __len__(self) -> int:
        return len(self._requests)

    def append(self, request: Request) -> None:
        """Queue a new request at the end."""
        self._requests.append(request)
        self._tally(request).add(request.known)

    def put_back(self, request: Request) -> None:
        """Queue a preempted request at the front."""
        self._requests.appendleft(request)
        self._tally(request).add(request.known)

    def first(self) -> Request:
        """Return the request that is next; the queue must not be empty."""
        return self._requests[0]

    def pop(self) -> Request:
        """Take the request that is next. Call it before its status changes."""
        request = self._requests.popleft()
        self._tally(request).remove(request.known)
        return request

    def remove(self, request: Request) -> None:
        """Take a preempted request that finished with a token that was in flight."""
        self._requests.remove(request)
        self._tally(request).remove(request.known)

    def grow(self, request: Request) -> None:
        """Let a token that was in flight arrive at a preempted request."""
        tally = self._tally(request)
        tally.remove(request.known)
        request.known += 1
        tally.add(request.known)

    def snapshot(self) -> QueuedRequestMetrics:
        """Return the queue as it is reported."""
        prefill, decode = self._prefill, self._decode
        return QueuedRequestMetrics(
            prefill.n, prefill.total, prefill.variance, decode.n, decode.total, decode.variance
        )

    def _tally(self, request: Request) -> Tally:
        return self._decode if request.status is Status.PREEMPTED else self._prefill
