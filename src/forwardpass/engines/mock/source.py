"""Knows what a reader should know about the simulated engine's stream."""

from __future__ import annotations

from forwardpass.engines.base import Delivery, FpmSource, TimingScope

__all__ = ["SOURCE"]

SOURCE = FpmSource(
    engine="mock",
    delivery=Delivery.IN_PROCESS,
    wall_time=TimingScope.SIMULATED,
    wall_time_after_idle=TimingScope.SIMULATED,
    decode_counts_current_token=False,
)
