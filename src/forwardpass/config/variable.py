"""Knows what a row of the table of environment variables is."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

from msgspec import Struct

__all__ = ["BOOLEAN", "Feature", "Variable"]

BOOLEAN = "one of 1/0, true/false, on/off, yes/no"


class Feature(StrEnum):
    """The feature that an invalid value turns off, as one unit."""

    STREAM = "stream"
    TRACE = "trace"
    RELAY = "relay"
    PLANE = "plane"
    BENCH = "bench"


class Variable(Struct, frozen=True):
    """One row of the table."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    accepted: str
    """What is accepted, in words that finish the sentence "expected …"."""
    meaning: str
    feature: Feature
    since: str = "0.1"
    fallback: bool = False
    """Whether an invalid value is only warned about and the default used."""
    secret: bool = False
    """Whether its value must never be shown."""
