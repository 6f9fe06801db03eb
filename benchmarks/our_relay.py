"""Knows how to run our relay without a trace, as ``record`` runs it with one, until SIGTERM.

python benchmarks/our_relay.py tcp://127.0.0.1:20380 [PLANE]
"""

from __future__ import annotations

import asyncio
import sys

from forwardpass.cli.recording import stop_on_signals
from forwardpass.relay.supervisor import RelayGroup
from forwardpass.relay.targets import RelayTarget


async def relay(url: str, plane_url: str | None = None) -> None:
    """Relay what comes from ``url`` to a plane, or to nobody."""
    stop = asyncio.Event()
    with stop_on_signals(stop):
        group = RelayGroup([RelayTarget(url, 0)], trace=None, plane_url=plane_url)
        await group.start()
        await stop.wait()
        await group.stop(1.0)


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[1:]))
