"""Knows how to publish passes on an event plane, ours or NVIDIA Dynamo's way, in a process of its own.

    python benchmarks/plane_publisher.py WAY URL PUBLISHERS

Each publisher has a worker of its own, which is registered (it has a model card). Prints ``ready``. Then for
each line of stdin: ``greet`` publishes a message of everybody again and again until the next line, and
``COUNT PER_SECOND`` publishes in turn; the answer is the seconds that it took. Only Dynamo's way needs
Dynamo. Written against ai-dynamo 1.6.1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import cycle, islice

import zmq

from forwardpass.config.settings import Sources
from forwardpass.plane.base import PlaneContext
from forwardpass.plane.discovery.cards import register_worker
from forwardpass.plane.urls import open_publisher
from forwardpass.wire.keys import Endpoint
from paced_sender import numbered
from usual_payload import WORKER_ID

__all__ = ["ENDPOINT", "workers"]

ENDPOINT = Endpoint("dynamo", "backend", "generate")
TICK_SECONDS = 0.002
GREET_SECONDS = 0.2
MOST_SOCKETS = 4096
FIELDS = (
    "scheduled_num_prefill_requests", "scheduled_sum_prefill_tokens", "scheduled_sum_prefill_kv_tokens",
    "scheduled_num_decode_requests", "scheduled_sum_decode_kv_tokens", "queued_num_prefill_requests",
    "queued_sum_prefill_tokens", "queued_num_decode_requests", "queued_sum_decode_kv_tokens",
)  # fmt: skip

Publish = Callable[[], Awaitable[None]]


def workers(count: int) -> list[str]:
    """Return as many worker ids, all of the same length."""
    return [str(int(WORKER_ID) + number) for number in range(count)]


def payloads(worker: str) -> Iterator[bytes]:
    """Yield the messages of one worker."""
    for payload in numbered():
        yield payload.replace(WORKER_ID.encode(), worker.encode())


async def ours(url: str, ids: Sequence[str]) -> list[Publish]:
    """Return what publishes a message of each worker through our plane."""
    zmq.Context.instance().set(zmq.MAX_SOCKETS, MOST_SOCKETS)

    async def one(worker: str) -> Publish:
        publisher = await open_publisher(url, ENDPOINT, context=PlaneContext(sources=Sources(os.environ)))
        messages = payloads(worker)
        return lambda: publisher.publish(next(messages))

    return [await one(worker) for worker in ids]


async def dynamo(url: str, ids: Sequence[str]) -> list[Publish]:
    """Return the same for Dynamo's direct publisher, which reads its plane from the environment."""
    import dynamo._core as core

    runtime = core.DistributedRuntime(asyncio.get_running_loop(), "file", "tcp")
    endpoint = runtime.endpoint(str(ENDPOINT))

    def one(worker: str) -> Publish:
        publisher = core.FpmDirectPublisher(endpoint, worker, 1)
        numbers = dict.fromkeys(FIELDS, 1234)

        async def publish() -> None:
            publisher.publish(dp_rank=0, wall_time_secs=0.0123, **numbers)

        return publish

    return await asyncio.to_thread(lambda: [one(worker) for worker in ids])


async def send(publishers: Sequence[Publish], wanted: int, per_second: float) -> float:
    """Publish ``wanted`` messages, of all in turn; return the seconds from the first to the last."""
    turn = cycle(publishers)
    begin, sent = time.monotonic(), 0
    while sent < wanted:
        due = min(wanted, int((time.monotonic() - begin) * per_second) + 1)
        for publish in islice(turn, due - sent):
            await publish()
        sent = due
        await asyncio.sleep(TICK_SECONDS)
    return time.monotonic() - begin


async def greet(publishers: Sequence[Publish], end: asyncio.Future[str]) -> None:
    """Publish one of everybody until there is another line."""
    while not end.done():
        for publish in publishers:
            await publish()
        await asyncio.wait([end], timeout=GREET_SECONDS)


async def main(way: str, url: str, count: str) -> None:
    """Answer line by line."""
    ids = workers(int(count))
    publishers = await (dynamo if way == "Dynamo" else ours)(url, ids)
    async with contextlib.AsyncExitStack() as stack:
        context = PlaneContext(sources=Sources(os.environ))
        for worker in ids:
            card = await register_worker(ENDPOINT, worker, context, display_name="m")
            stack.push_async_callback(card.close)
        print("ready", flush=True)
        line: asyncio.Future[str] = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
        while words := (await line).split():
            line = asyncio.ensure_future(asyncio.to_thread(sys.stdin.readline))
            if words == ["greet"]:
                await greet(publishers, line)
            else:
                print(await send(publishers, int(words[0]), float(words[1])), flush=True)
    os._exit(0)  # whatever Dynamo's threads still do


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
