"""Knows what a reader should know about SGLang's stream."""

from __future__ import annotations

from forwardpass.engines.base import Delivery, FpmSource, TimingScope

__all__ = ["SOURCE"]

SOURCE = FpmSource(
    engine="sglang",
    delivery=Delivery.ENGINE_SOCKET,
    wall_time=TimingScope.GPU_SPAN,
    wall_time_after_idle=TimingScope.GPU_SPAN,
    decode_counts_current_token=True,
)
"""As of SGLang 0.5.23. Before its rework of September 2026 (pull request 38711) ``wall_time`` was summed over
overlapping iterations; treat it as approximate there. Under speculation the current token does not count.
"""
