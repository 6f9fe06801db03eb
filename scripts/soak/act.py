"""Knows what one act is: one life of the engine, the load it got, and what watched it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from soak.gauges import GaugeReading
from soak.phases import PhaseResult

__all__ = ["Act"]


@dataclass
class Act:
    """One life of the engine. ``name`` is its worker id as well."""

    name: str
    speculative: bool
    raw_file: Path
    witness_file: Path
    seconds: float = 0.0
    """How long the load lasted."""
    up_seconds: float = 0.0
    phases: list[PhaseResult] = field(default_factory=list)
    gauges: list[GaugeReading] = field(default_factory=list)
    reader_faults: list[str] = field(default_factory=list)
    status: int | None = None
    """The server's exit status after SIGTERM."""
