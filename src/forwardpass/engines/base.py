"""Knows the roles an engine adapter can fill, as data that readers of a stream may need.

The same message means slightly different things by engine. What differs is stated here, by role, and an
adapter leaves out the roles that its engine cannot fill.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ["Delivery", "FpmSource", "TimingScope"]


class Delivery(StrEnum):
    """How payloads leave the engine."""

    IN_PROCESS = "in_process"
    """A publisher inside the engine's process binds one TCP port per rank."""
    ENGINE_SOCKET = "engine_socket"
    """The engine has a publisher of its own, one endpoint per rank."""
    POLLED = "polled"
    """Statistics are asked for from outside and mapped."""


class TimingScope(StrEnum):
    """What ``wall_time`` measures, in seconds."""

    OUTPUT_PERIOD = "output_period"
    """From the previous output to this one, on the host."""
    SCHEDULE_TO_OUTPUT = "schedule_to_output"
    """From scheduling the pass to its output, on the host."""
    GPU_SPAN = "gpu_span"
    """From the first to the last GPU event of the pass."""
    REPORTED = "reported"
    """A latency the engine reports about itself."""
    SIMULATED = "simulated"
    """Time of a simulation."""


class FpmSource(Struct, frozen=True):
    """The role of an engine whose forward passes can be streamed."""

    engine: str
    delivery: Delivery
    wall_time: TimingScope
    """What ``wall_time`` is while passes follow each other."""
    wall_time_after_idle: TimingScope
    """What it is for the first pass after the engine had nothing to do."""
    decode_counts_current_token: bool
    """Whether a decode's context length includes the token that the pass computes."""
