"""Knows what the counters in the payloads of one stream say: what is missing, and what points to a restart.

A payload's ``counter_id`` is the engine's own numbering and shows what was lost before a relay; the plane's
``sequence`` counts a relay's messages and shows what was lost after it (``wire/sequence.py``). Neither can
stand for the other. A publisher that is new to a stream is evidence of a restart. A counter that goes back is
not: the engine behind a relay may have begun again, or two engines share a name.
"""

from __future__ import annotations

from msgspec import Struct

from forwardpass.wire.epochs import Epochs, StepKind

__all__ = ["MAX_PUBLISHERS_OF_A_STREAM", "CounterLosses", "StreamLosses"]

MAX_PUBLISHERS_OF_A_STREAM = 4
"""Publishers of one stream that are told apart; the one that was silent the longest is forgotten."""


class CounterLosses(Struct, frozen=True):
    """The ``counter_id`` of one (worker, rank), from the first message that was seen."""

    missing: int
    """Counters that were jumped over. 0 is not "no loss": a drop before numbering leaves none."""
    gaps: int
    """How many such jumps."""
    repeated: int
    """Messages with the counter of the one before."""
    decreases: int
    """Times that a publisher's counter went back: its engine began again, or a message came late."""
    turns: int
    """Messages that continue another publisher or numbering than the last one did: two are at work."""


class StreamLosses:
    """Follows the counters of one (worker, rank), one message at a time, whichever publisher carries it."""

    __slots__ = ("_current", "_decreases", "_gaps", "_missing", "_publishers", "_repeated", "_turns", "epoch")

    def __init__(self) -> None:
        self.epoch = 0
        """How often a publisher appeared that this stream did not have: each is evidence of a restart."""
        self._publishers: dict[int, Epochs] = {}  # the one heard last is at the end
        self._current: int | None = None
        self._missing = self._gaps = self._repeated = self._decreases = self._turns = 0

    def note(self, publisher_id: int, counter_id: int | None, unix_ms: int) -> None:
        """Take the next message; one without a readable counter only says who sent it."""
        epochs = self._heard(publisher_id)
        if counter_id is None:
            return
        before = epochs.turns
        step = epochs.step(counter_id, unix_ms)
        self._turns += epochs.turns - before
        self._repeated += step.kind is StepKind.AGAIN
        self._decreases += step.kind is StepKind.RESTART
        self._gaps += step.skipped > 0
        self._missing += step.skipped

    def result(self) -> CounterLosses:
        """Return what was found so far."""
        return CounterLosses(self._missing, self._gaps, self._repeated, self._decreases, self._turns)

    def _heard(self, publisher_id: int) -> Epochs:
        if publisher_id == self._current:
            return self._publishers[publisher_id]
        known = self._publishers.pop(publisher_id, None)
        if known is not None:
            self._turns += 1
        elif self._current is not None:
            self.epoch += 1
        if len(self._publishers) >= MAX_PUBLISHERS_OF_A_STREAM:
            del self._publishers[next(iter(self._publishers))]
        self._current = publisher_id
        epochs = self._publishers[publisher_id] = known or Epochs()
        return epochs
