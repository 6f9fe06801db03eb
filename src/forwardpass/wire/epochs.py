"""Knows which publisher's life a counter belongs to, when one identity has several.

A publisher counts up from its start. A counter that goes back belongs to another life: a restart, or a second
publisher under the same name. Both may go on, and then each row continues the life that it is nearest to.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

__all__ = ["LIVE_MS", "Epochs", "Step", "StepKind"]

LIVE_MS = 5_000
"""A life without a row for so long is over, if another one goes on: publishers say something every second."""
MAX_LIVES = 16


class StepKind(Enum):
    """What a row is to the one before it in its life."""

    FIRST = "first"
    """The first row of all."""
    NEXT = "next"
    JUMP = "jump"
    """Counters were skipped."""
    AGAIN = "again"
    """The counter that was seen last."""
    RESTART = "restart"
    """The first row of another life."""
    OTHER = "other"
    """It continues a life that was not the last one seen: two publishers take turns."""


class Step(NamedTuple):
    """One row, and what it continues."""

    kind: StepKind
    last: int
    """The counter before it, of its life; of a restart, that of the life before."""
    last_ms: int
    """When that was observed."""
    skipped: int
    """Counters between the two."""


class _Life:
    __slots__ = ("at", "last")

    def __init__(self, last: int, at: int) -> None:
        self.last, self.at = last, at


class Epochs:
    """The lives of one stream."""

    __slots__ = ("_lives", "restarts", "turns")

    def __init__(self) -> None:
        self._lives: list[_Life] = []  # the one seen last is at the end
        self.restarts = 0
        self.turns = 0
        """Times that a life went on after another one had been seen: two publishers share the name."""

    def follows(self, counter: int, unix_ms: int) -> bool:
        """Take the row if it is the next one of the life seen last, as nearly every row is; else leave it
        to :meth:`step`.
        """
        if not self._lives or counter != self._lives[-1].last + 1:
            return False
        life = self._lives[-1]
        life.last, life.at = counter, max(life.at, unix_ms)
        return True

    def step(self, counter: int, unix_ms: int) -> Step:
        """Take the next row."""
        if not self._lives:
            self._lives.append(_Life(counter, unix_ms))
            return Step(StepKind.FIRST, counter, unix_ms, 0)
        current = self._lives[-1]
        if counter == current.last + 1 or (len(self._lives) == 1 and counter > current.last):
            return self._goes_on(current, counter, unix_ms)
        if counter == current.last:
            return Step(StepKind.AGAIN, current.last, current.at, 0)
        return self._among_many(current, counter, unix_ms)

    def _goes_on(self, life: _Life, counter: int, unix_ms: int) -> Step:
        skipped = counter - life.last - 1
        step = Step(StepKind.JUMP if skipped else StepKind.NEXT, life.last, life.at, skipped)
        life.last, life.at = counter, max(life.at, unix_ms)
        return step

    def _among_many(self, current: _Life, counter: int, unix_ms: int) -> Step:
        lives = [life for life in self._lives if life is current or unix_ms - life.at < LIVE_MS]
        before = [life for life in lives if life.last < counter]
        if not before:
            self.restarts += 1
            self._lives = [*lives, _Life(counter, unix_ms)][-MAX_LIVES:]
            return Step(StepKind.RESTART, current.last, current.at, 0)
        nearest = max(before, key=lambda life: life.last)
        self._lives = [*(life for life in lives if life is not nearest), nearest]
        step = self._goes_on(nearest, counter, unix_ms)
        if nearest is current:
            return step
        self.turns += 1
        return step._replace(kind=StepKind.JUMP if step.skipped else StepKind.OTHER)
