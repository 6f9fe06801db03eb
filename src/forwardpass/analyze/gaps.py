"""Knows what the counters of a trace say about missing rows, and what they do not say.

A publisher numbers its messages 0, 1, 2, … (or from 1), so a jump means that messages are not in the
trace: dropped on the way, lost in a crash, or left out by sampling. The opposite does not hold. Messages
that an engine dropped before numbering them leave no gap, and neither do those before the first and
after the last row: no gap is not "no loss".
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from forwardpass.trace.record import TraceRecord
from forwardpass.wire.epochs import Epochs, Step, StepKind

__all__ = ["GapTracker", "StreamGaps", "TraceStream"]


class TraceStream(NamedTuple):
    """One publisher's stream as one writer saw it."""

    producer_id: str
    worker_id: str
    dp_rank: int


class StreamGaps(Struct, frozen=True):
    """The counters of one stream, in the order its rows were written."""

    producer_id: str
    worker_id: str
    dp_rank: int
    rows: int
    first_counter: int
    last_counter: int
    missing: int
    """Counters that were jumped over between two rows of ``full`` mode."""
    gaps: int
    """How many such jumps."""
    sampled_out: int
    """Counters jumped over where sampling leaves rows out on purpose: nothing can be said about loss."""
    restarts: int
    """How often the counter went back: the publisher started anew (or two share one name)."""
    turns: int
    """How often a row continued an earlier life than the one before it: two publishers share the name."""
    duplicates: int
    """Rows that repeat the counter before them."""
    sampled: bool
    """Whether any row is of ``sampled`` mode."""


class GapTracker:
    """Follows one stream, one row at a time."""

    __slots__ = (
        "_duplicates",
        "_epochs",
        "_first",
        "_gaps",
        "_last",
        "_last_sampled",
        "_missing",
        "_rows",
        "_sampled",
        "_sampled_out",
    )

    def __init__(self) -> None:
        self._rows = self._first = self._last = 0
        self._missing = self._gaps = self._sampled_out = self._duplicates = 0
        self._sampled = self._last_sampled = False
        self._epochs = Epochs()

    def add(self, record: TraceRecord) -> None:
        """Take the stream's next row, in file order."""
        counter = record.metrics.counter_id
        sampled = record.capture_mode != "full"
        if not self._epochs.follows(counter, record.observed_at_unix_ms):
            step = self._epochs.step(counter, record.observed_at_unix_ms)
            self._unusual(step, sampled or self._last_sampled)
        self._rows += 1
        self._last = counter
        self._last_sampled = sampled
        self._sampled = self._sampled or sampled

    def _unusual(self, step: Step, sampled: bool) -> None:
        if step.kind is StepKind.FIRST:
            self._first = step.last
        elif step.kind is StepKind.AGAIN:
            self._duplicates += 1
        elif step.kind is StepKind.JUMP and sampled:
            self._sampled_out += step.skipped
        elif step.kind is StepKind.JUMP:
            self._missing += step.skipped
            self._gaps += 1

    def result(self, stream: TraceStream) -> StreamGaps:
        """Return what was found so far."""
        return StreamGaps(
            *stream,
            rows=self._rows,
            first_counter=self._first,
            last_counter=self._last,
            missing=self._missing,
            gaps=self._gaps,
            sampled_out=self._sampled_out,
            restarts=self._epochs.restarts,
            turns=self._epochs.turns,
            duplicates=self._duplicates,
            sampled=self._sampled,
        )
