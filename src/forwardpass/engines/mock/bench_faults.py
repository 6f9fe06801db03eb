"""Knows the faults that a simulated rank can show while it measures itself, and how they are written.

``KIND=RANK[:VALUE][@POINT]``, for example ``late-output=1:20@5``: on rank 1 a pass of point 5 takes twenty
seconds longer. Without a point the fault is there from the start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["BENCH_FAULTS", "BenchFault", "BenchFaultKind", "BenchFaultSpec", "check_bench_faults",
           "parse_bench_fault"]  # fmt: skip

OPTION = "--fault"

_FORM = re.compile(
    r"([a-z-]+)=([0-9]{1,5})(?::([0-9]{1,9}(?:\.[0-9]{1,9})?))?(?:@([1-9][0-9]{0,8}))?", re.ASCII
)


class BenchFaultKind(StrEnum):
    """What goes wrong."""

    SLOW_RANK = "slow-rank"
    MISSING_RANK = "missing-rank"
    WRONG_SHAPE = "wrong-shape"
    REFUSED_ALLOCATION = "refused-allocation"
    CHUNKED_PREFILL = "chunked-prefill"
    LATE_OUTPUT = "late-output"
    CRASH = "crash"


class BenchFaultSpec(Struct, frozen=True):
    """What a kind does, and which values it takes."""

    meaning: str
    default: float = 0.0
    low: float = 0.0
    high: float = 0.0
    """0: it takes no value."""
    whole: bool = False

    @property
    def accepted(self) -> str:
        """The accepted values in words."""
        if not self.high:
            return "no VALUE"
        return f"as VALUE {'a whole' if self.whole else 'a'} number from {self.low:g} to {self.high:g}"


BENCH_FAULTS: dict[BenchFaultKind, BenchFaultSpec] = {
    BenchFaultKind.SLOW_RANK: BenchFaultSpec(
        "take VALUE times as long for each pass from then on", 3.0, 0.01, 1000.0
    ),
    BenchFaultKind.MISSING_RANK: BenchFaultSpec("take part in nothing from then on, and do not end"),
    BenchFaultKind.WRONG_SHAPE: BenchFaultSpec("run VALUE tokens less than was asked for", 1.0, 1, 1e6, True),
    BenchFaultKind.REFUSED_ALLOCATION: BenchFaultSpec("have no block for the point's requests"),
    BenchFaultKind.CHUNKED_PREFILL: BenchFaultSpec("compute a prefill in two passes from then on"),
    BenchFaultKind.LATE_OUTPUT: BenchFaultSpec(
        "take VALUE seconds longer for the point's first pass", 20.0, 0.001, 3600.0
    ),
    BenchFaultKind.CRASH: BenchFaultSpec("die without a word"),
}


class BenchFault(Struct, frozen=True):
    """One fault of one rank."""

    kind: BenchFaultKind
    dp_rank: int
    value: float = 0.0
    """A factor, tokens or seconds, as :data:`BENCH_FAULTS` says."""
    point: int | None = None
    """The benchmark id of the point at which it begins; ``None``: before everything."""


def parse_bench_fault(text: str) -> BenchFault:
    """Return the fault written as ``KIND=RANK[:VALUE][@POINT]``. Raises :class:`ConfigError`."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ConfigError(OPTION, text, "KIND=RANK[:VALUE][@POINT], such as late-output=1:20@5")
    name, rank, written, point = match.groups()
    if name not in set(BenchFaultKind):
        raise ConfigError(OPTION, text, f"a kind of fault: {', '.join(BenchFaultKind)}")
    kind = BenchFaultKind(name)
    spec = BENCH_FAULTS[kind]
    value = spec.default if written is None else float(written)
    refused = written is not None and not spec.high
    if refused or not spec.low <= value <= spec.high or (spec.whole and value != int(value)):
        raise ConfigError(OPTION, text, f"for {kind} (to {spec.meaning}) {spec.accepted}")
    return BenchFault(kind, int(rank), value, None if point is None else int(point))


def check_bench_faults(faults: Iterable[BenchFault], ranks: int) -> None:
    """Raise :class:`ConfigError` for a fault of a rank that there is not, or that nobody would end."""
    for fault in faults:
        if fault.dp_rank >= ranks:
            raise ConfigError(OPTION, f"{fault.kind}={fault.dp_rank}", f"a rank from 0 to {ranks - 1}")
        if fault.kind is BenchFaultKind.MISSING_RANK and ranks == 1:
            raise ConfigError(OPTION, f"{fault.kind}={fault.dp_rank}", "another rank that misses it (--dp 2)")
