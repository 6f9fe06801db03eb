"""Knows the faults the simulated engine can show on request, and how they are written.

``KIND=RANK[:VALUE]@SECONDSs``, for example ``slow-rank=1:3.0@5s``: five seconds after the start rank 1
becomes three times as slow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["FAULTS", "Fault", "FaultKind", "FaultSpec", "check_ranks", "parse_fault"]

OPTION = "--fault"

_FORM = re.compile(r"([a-z-]+)=([0-9]{1,5})(?::([0-9]+(?:\.[0-9]+)?))?@([0-9]+(?:\.[0-9]+)?)s?", re.ASCII)


class FaultKind(StrEnum):
    """What goes wrong."""

    PAUSE = "pause"
    RESTART = "restart"
    LOST_FRAMES = "lost-frames"
    SLOW_RANK = "slow-rank"
    LONG_STEP = "long-step"
    DUPLICATE_PUBLISHER = "duplicate-publisher"
    GARBAGE = "garbage"


class FaultSpec(Struct, frozen=True):
    """What the value of a kind means, and which values it takes."""

    meaning: str
    default: float | None
    """The value if none is written; ``None``: it has to be."""
    low: float
    high: float
    whole: bool = False

    @property
    def accepted(self) -> str:
        """The accepted values in words."""
        return f"{'a whole' if self.whole else 'a'} number from {self.low:g} to {self.high:g}"


FAULTS: dict[FaultKind, FaultSpec] = {
    FaultKind.PAUSE: FaultSpec("publish nothing for VALUE seconds", 2.0, 0.001, 3600.0),
    FaultKind.RESTART: FaultSpec(
        "die, and come back after VALUE seconds counting from 0", 1.0, 0.001, 3600.0
    ),
    FaultKind.LOST_FRAMES: FaultSpec(
        "number the next VALUE messages but do not send them", 10.0, 1, 1e6, True
    ),
    FaultKind.SLOW_RANK: FaultSpec("take VALUE times as long for each pass; 1 ends it", 3.0, 0.01, 1000.0),
    FaultKind.LONG_STEP: FaultSpec("take VALUE seconds longer for one pass", 2.0, 0.001, 3600.0),
    FaultKind.DUPLICATE_PUBLISHER: FaultSpec(
        "send everything a second time, as the same rank, from port VALUE", None, 1024, 65535, True
    ),
    FaultKind.GARBAGE: FaultSpec("send VALUE messages that are not valid", 9.0, 1, 1e6, True),
}


class Fault(Struct, frozen=True):
    """One fault of one rank."""

    kind: FaultKind
    dp_rank: int
    value: float
    """Seconds, a factor, a count or a port, as :data:`FAULTS` says."""
    at_seconds: float
    """Since the start of the run."""


def parse_fault(text: str) -> Fault:
    """Return the fault written as ``KIND=RANK[:VALUE]@SECONDSs``. Raises :class:`ConfigError`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(OPTION, text, "KIND=RANK[:VALUE]@SECONDSs, such as slow-rank=1:3.0@5s")
    name, rank, written, at = match.groups()
    if name not in set(FaultKind):
        raise ConfigError(OPTION, text, f"a kind of fault: {', '.join(FaultKind)}")
    kind = FaultKind(name)
    return Fault(kind, int(rank), _value(kind, written, text), float(at))


def check_ranks(faults: Iterable[Fault], ranks: int) -> None:
    """Raise :class:`ConfigError` for a fault of a rank that there is not."""
    for fault in faults:
        if fault.dp_rank >= ranks:
            raise ConfigError(OPTION, f"{fault.kind}={fault.dp_rank}", f"a rank from 0 to {ranks - 1}")


def _value(kind: FaultKind, written: str | None, text: str) -> float:
    spec = FAULTS[kind]
    value = spec.default if written is None else float(written)
    if value is None or not spec.low <= value <= spec.high or (spec.whole and value != int(value)):
        raise ConfigError(OPTION, text, f"for {kind} (to {spec.meaning}) as VALUE {spec.accepted}")
    return value
