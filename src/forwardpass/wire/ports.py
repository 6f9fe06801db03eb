"""Knows which TCP ports a worker's ranks use, and when the kernel may take one of them first."""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = [
    "DEFAULT_BASE_PORT",
    "MAX_BASE_PORT",
    "MIN_BASE_PORT",
    "PortBlock",
    "ephemeral_warning",
    "parse_port_range",
    "rank_port",
]

DEFAULT_BASE_PORT = 20380
MIN_BASE_PORT = 1024
MAX_BASE_PORT = 49151

_PORT = re.compile(r"[0-9]{1,5}\Z")


class PortBlock(NamedTuple):
    """The ports ``first`` … ``last`` (inclusive) that one worker may occupy."""

    first: int
    last: int

    @classmethod
    def of(cls, base: int, dp_size: int) -> PortBlock:
        """Return the block of a worker with ``dp_size`` ranks.

        With more than one rank it ends at ``base + dp_size``, the self-benchmark synchroniser's port,
        whether or not a benchmark runs (decision D-14).
        """
        return cls(base, base if dp_size <= 1 else base + dp_size)

    def overlaps(self, other: PortBlock) -> bool:
        """Say whether a port is in both blocks."""
        return self.first <= other.last and other.first <= self.last

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


def rank_port(base: int, dp_rank: int) -> int:
    """Return the port that global rank ``dp_rank`` binds."""
    return base + dp_rank


def parse_port_range(text: str) -> PortBlock | None:
    """Return the two integers of ``/proc/sys/net/ipv4/ip_local_port_range``, or ``None``."""
    parts = text.split()
    if len(parts) != 2 or not all(_PORT.match(part) for part in parts):
        return None
    return PortBlock(int(parts[0]), int(parts[1]))


def ephemeral_warning(base: int, dp_size: int, ephemeral: PortBlock | None) -> str | None:
    """Return the warning for a block inside the kernel's ephemeral range, or ``None``.

    The text is the reference's, word for word, because operators search for it.
    """
    block = PortBlock.of(base, dp_size)
    if ephemeral is None or not block.overlaps(ephemeral):
        return None
    return (
        f"FPM ports {block} overlap this host's ephemeral port range {ephemeral}; "
        "an outbound connection can take one of them first and the publisher bind then fails "
        f"intermittently. Set DYN_FORWARDPASS_METRIC_PORT to a base below {ephemeral.first}."
    )
