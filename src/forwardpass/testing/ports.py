"""Knows how to find TCP ports that a test can bind."""

from __future__ import annotations

from random import SystemRandom

from forwardpass.publish.port_owner import ports_are_free

__all__ = ["free_port"]

FIRST_PORT = 20_000
LAST_PORT = 31_999
"""Below the ports that Linux hands to outgoing connections by default."""
_ATTEMPTS = 200
# Not seeded: test runners seed the ordinary generator alike before every test, and runs side by side
# would then all choose the same ports.
_random = SystemRandom()


def free_port(count: int = 1, *, first: int = FIRST_PORT, last: int = LAST_PORT) -> int:
    """Return the first of ``count`` consecutive ports between ``first`` and ``last``, bindable on loopback.

    Raises ``RuntimeError`` if none is found.
    """
    for _ in range(_ATTEMPTS):
        port = _random.randint(first, last - count + 1)
        if ports_are_free(port, count):
            return port
    raise RuntimeError(f"no {count} free ports in a row were found")
