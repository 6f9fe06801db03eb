"""One end of NVIDIA Dynamo's own event plane, driven by lines of JSON; a process, because its runtime blocks.

``dynamo_zmq.py BACKEND ENDPOINT ROLE [ARGUMENT…]`` prints ``{"ready": true}``, answers each line of its
standard input with one line, and ends with its input. Roles: ``publish WORKER RANKS`` (each line is the
keywords of one publish), ``relay ADDRESS``, ``receive`` (prints each payload by itself), ``track`` (each
line asks for what is known now), ``register MODEL`` (writes a model card; answers with its worker's id).
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading

from dynamo._core import (
    DistributedRuntime,
    Endpoint,
    FpmDirectPublisher,
    FpmEventRelay,
    FpmEventSubscriber,
    ModelInput,
    ModelType,
    WorkerType,
    register_model,
)

FIELDS = (
    "scheduled_num_prefill_requests", "scheduled_sum_prefill_tokens", "scheduled_sum_prefill_kv_tokens",
    "scheduled_num_decode_requests", "scheduled_sum_decode_kv_tokens", "queued_num_prefill_requests",
    "queued_sum_prefill_tokens", "queued_num_decode_requests", "queued_sum_decode_kv_tokens",
)  # fmt: skip


def say(**words: object) -> None:
    """Print one line."""
    print(json.dumps(words), flush=True)


def publish(endpoint: Endpoint, worker_id: str, ranks: str) -> None:
    """Publish what each line says."""
    publisher = FpmDirectPublisher(endpoint, worker_id, int(ranks))
    say(ready=True)
    for line in sys.stdin:
        given = json.loads(line)
        values = {"dp_rank": 0, "wall_time_secs": 0.5, **dict.fromkeys(FIELDS, 0), **given}
        publisher.publish(**values)
        say(published=True)
    publisher.shutdown()


def relay(endpoint: Endpoint, address: str) -> None:
    """Relay a raw stream until the input ends."""
    running = FpmEventRelay(endpoint, address)
    say(ready=True)
    sys.stdin.read()
    running.shutdown()


def receive(endpoint: Endpoint) -> None:
    """Print what arrives until the input ends."""
    subscriber = FpmEventSubscriber(endpoint)
    say(ready=True)

    def follow() -> None:
        while (payload := subscriber.recv()) is not None:
            say(payload=bytes(payload).hex())

    threading.Thread(target=follow, daemon=True).start()
    sys.stdin.read()


def track(endpoint: Endpoint) -> None:
    """Answer each line with the newest payloads and the cards of known workers."""
    subscriber = FpmEventSubscriber(endpoint)
    subscriber.start_tracking()
    say(ready=True)
    for _ in sys.stdin:
        stats = subscriber.get_recent_stats()
        say(
            stats=sorted([worker, rank, bytes(payload).hex()] for (worker, rank), payload in stats.items()),
            cards=subscriber.get_model_cards(),
        )


def wait(endpoint: Endpoint) -> None:
    """Answer each line with the worker's id."""
    say(ready=True)
    for _ in sys.stdin:
        say(worker_id=str(endpoint.connection_id()))


async def register(endpoint: Endpoint, name: str) -> None:
    """Register a model of a kind that needs no files."""
    await register_model(
        ModelInput.Tensor,
        ModelType.TensorBased,
        endpoint,
        name,
        name,
        worker_type=WorkerType.Aggregated,
        tensor_model_config={"name": name, "inputs": [], "outputs": []},
    )


async def main(backend: str, name: str, role: str, *arguments: str) -> None:
    """Play ``role`` off the event loop's thread, where the runtime's objects may block."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), backend, "tcp")
    endpoint = runtime.endpoint(name)
    roles = {"publish": publish, "relay": relay, "receive": receive, "track": track, "register": wait}
    if role == "register":
        await register(endpoint, *arguments)
        arguments = ()
    await asyncio.to_thread(roles[role], endpoint, *arguments)
    runtime.shutdown()
    await asyncio.sleep(0.2)  # its records leave discovery meanwhile
    say(ended=True)
    os._exit(0)  # whatever its threads still do


asyncio.run(main(*sys.argv[1:]))
