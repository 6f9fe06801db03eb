"""Knows what a reader should know about the stream made of TensorRT-LLM's statistics."""

from __future__ import annotations

from forwardpass.engines.base import Delivery, FpmSource, TimingScope

__all__ = ["SOURCE"]

SOURCE = FpmSource(
    engine="trtllm",
    delivery=Delivery.POLLED,
    wall_time=TimingScope.REPORTED,
    wall_time_after_idle=TimingScope.REPORTED,
    decode_counts_current_token=True,
)
