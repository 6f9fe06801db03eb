"""Knows what a procedure may ask for. A procedure is a generator: it yields one of these and gets the answer.

All but :class:`Turn` are answered at once. A turn gives control back to the engine, which runs what it was
given; the answer comes when the engine schedules again.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from forwardpass.bench.driver import Batch
from forwardpass.bench.points import Point

__all__ = [
    "Alive",
    "Arm",
    "Boundary",
    "Cleanup",
    "Empty",
    "Exchange",
    "Inject",
    "Op",
    "Release",
    "ResetCache",
    "Seed",
    "Settled",
    "Steady",
    "Turn",
]


class Inject(Struct, frozen=True):
    """Take a batch. Answer: ``Admitted`` or ``Refused``."""

    batch: Batch


class Seed(Struct, frozen=True):
    """Make prefixes be found without computing them. Answer: ``Refused`` or ``None``."""

    batch: Batch


class Steady(Struct, frozen=True):
    """Prepare one more decode step. Answer: an output, or ``None`` where a block is missing."""

    ids: tuple[str, ...]


class Empty(Struct, frozen=True):
    """Prepare a step that runs nothing. Answer: an output."""


class Alive(Struct, frozen=True):
    """Count requests that the engine still has. Answer: their number."""

    ids: tuple[str, ...]


class Release(Struct, frozen=True):
    """Abort requests. Answer: ``None``."""

    ids: tuple[str, ...]


class Settled(Struct, frozen=True):
    """Ask whether released blocks are free. Answer: a boolean."""


class ResetCache(Struct, frozen=True):
    """Forget every cached prefix. Answer: a boolean."""


class Arm(Struct, frozen=True):
    """Measure what is scheduled next as ``point``: all ranks start it together. Answer: ``None``."""

    point: Point
    expected: int
    """Samples that the point has when it is whole."""


class Exchange(Struct, frozen=True):
    """End a point with the other ranks. Answer: a ``GroupResult``, the passes of all and whether all stop."""

    point: Point
    retained: tuple[dict[str, Any], ...]


class Boundary(Struct, frozen=True):
    """Decide with the other ranks whether to stop before ``point``. Answer: a boolean."""

    point: Point


class Cleanup(Struct, frozen=True):
    """Wait for the other ranks at the end. Answer: ``None``."""


class Turn(Struct, frozen=True):
    """Let the engine run ``output``, or without one whatever it would schedule by itself. Answer: the time of
    the next step on the session's clock, in seconds.
    """

    output: Any = None


Op = (
    Inject
    | Seed
    | Steady
    | Empty
    | Alive
    | Release
    | Settled
    | ResetCache
    | Arm
    | Exchange
    | Boundary
    | Cleanup
    | Turn
)
