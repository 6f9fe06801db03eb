"""Knows how to run NVIDIA Dynamo's relay and its trace sink alone, without a server, until SIGTERM.

    DYN_FPM_TRACE=1 … python benchmarks/dynamo_relay.py tcp://127.0.0.1:20380 [DISCOVERY]

Written against ai-dynamo 1.6.1. What is recorded and where is said by the DYN_FPM_* variables; the relay
also publishes to its event plane, which has readers only with another DISCOVERY than ``mem`` (``file``).
Importing this module needs Dynamo.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import dynamo._core as core

ENDPOINT = "dynamo.backend.generate"


async def relay(url: str, discovery: str = "mem") -> None:
    """Relay what comes from ``url``."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runtime: Any = core.DistributedRuntime(loop, discovery, "tcp", event_plane="zmq")
    relay: Any = await asyncio.to_thread(core.FpmEventRelay, runtime.endpoint(ENDPOINT), url)
    await stop.wait()
    await asyncio.to_thread(relay.shutdown)
    runtime.shutdown()
    await asyncio.sleep(0.5)  # its sink closes


if __name__ == "__main__":
    asyncio.run(relay(*sys.argv[1:]))
