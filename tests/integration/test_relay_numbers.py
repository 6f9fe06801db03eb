"""The two numbers that a relayed message has: the engine's counter and the envelope's sequence."""

from __future__ import annotations

import asyncio
from pathlib import Path

from relay_peers import LIMIT_SECONDS, free_url, publishing_at, relaying, subscribe, tracing, until_connected

from forwardpass.wire.codec import decode_strict


def test_a_message_lost_before_the_relay_shows_in_the_counter_alone(tmp_path: Path) -> None:
    """TRAP-26: The envelope's sequence counts what one relay published, the payload's counter what the engine
    made: where five messages are lost in between, the counter jumps and the sequence does not.
    """

    async def run() -> None:
        url = free_url()
        plane_url, subscriber = await subscribe()
        with tracing(tmp_path) as trace, publishing_at(url) as publisher:
            async with relaying([url], trace, plane_url=plane_url) as group:
                await until_connected(group, [publisher])
                publisher.send_passes(3)
                publisher.seq += 5
                publisher.send_passes(3)
                await group.stop(LIMIT_SECONDS)
        await subscriber.close()
        messages = [message async for message in subscriber]
        sequences = [message.sequence for message in messages]
        counters = [decode_strict(message.payload).counter_id for message in messages]

        assert sequences == list(range(len(messages)))
        assert counters[-1] - counters[0] == len(messages) - 1 + 5

    asyncio.run(run())
