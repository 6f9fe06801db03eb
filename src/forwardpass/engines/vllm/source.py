"""Knows what a reader should know about vLLM's stream; imports no vLLM."""

from __future__ import annotations

from forwardpass.engines.base import Delivery, FpmSource, TimingScope

__all__ = ["SOURCE"]

SOURCE = FpmSource(
    engine="vllm",
    delivery=Delivery.IN_PROCESS,
    wall_time=TimingScope.OUTPUT_PERIOD,
    wall_time_after_idle=TimingScope.SCHEDULE_TO_OUTPUT,
    decode_counts_current_token=False,
)
