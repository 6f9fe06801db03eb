"""What happens to a real server while it runs, seen from the trace and by a plain reader beside the relay."""

from __future__ import annotations

import contextlib
import http.client
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from served_vllm import STOP_SECONDS, ServedVllm, served
from stream_subscriber import Subscriber

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(500)]

WAIT_SECONDS = 60.0
QUIET_SECONDS = 3.5
PATIENCE_SECONDS = 15.0
SLOTS = 4
LONG = 1500
WARM_UP_TOKENS = 5
PAUSED_TOKENS = 1400  # long enough for a pause over HTTP on a busy machine


class Run(NamedTuple):
    """What one server did, event by event."""

    rows: list[ForwardPassMetrics]
    stream: Subscriber
    while_paused: list[ForwardPassMetrics]
    hung_up_after: int
    received_when_stopped: int
    passes_when_stopped: int
    status: int
    words: str


def body(number: int, tokens: int) -> dict[str, Any]:
    """Return a request of its own length."""
    prompt = f"{number} bada kilo mufa " * (4 + number)
    return {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "temperature": 0}


def wait_for(condition: Any) -> None:
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def hang_up(server: ServedVllm, stream: Subscriber) -> int:
    """Take a few chunks of a long answer, go away, and wait until the engine has noticed."""
    with server.stream(**body(0, LONG)) as chunks:
        taken = [next(chunks) for _ in range(8)]
    quiet = len(stream.heartbeats)
    wait_for(lambda: len(stream.heartbeats) >= quiet + 2)
    return len(taken)


def pause(server: ServedVllm, stream: Subscriber, pool: ThreadPoolExecutor) -> list[ForwardPassMetrics]:
    """Pause while four requests run and two wait, send three more, and return the heartbeats after that."""
    seen = len(stream.passes)
    answers = [
        pool.submit(server.post, "/v1/completions", **body(each, PAUSED_TOKENS)) for each in range(SLOTS + 2)
    ]
    wait_for(lambda: any(p.queued_requests.num_prefill_requests == 2 for p in stream.passes[seen:]))
    server.call("/pause?mode=keep")
    answers += [pool.submit(server.post, "/v1/completions", **body(10 + each, 5)) for each in range(3)]
    time.sleep(QUIET_SECONDS)
    heartbeats = stream.heartbeats[-2:]
    server.call("/resume")
    for answer in answers:
        assert answer.result(WAIT_SECONDS)["usage"]["completion_tokens"]
    return heartbeats


def stop_midway(server: ServedVllm, stream: Subscriber) -> tuple[int, int, int]:
    """Send SIGTERM while answers are under way; return tokens and passes seen by then, and the status.

    vLLM's server goes on while a client is connected, and some of them never hear from it again; so the
    clients go away, but only after the signal.
    """
    received, stopping = [0] * SLOTS, threading.Event()

    def read(number: int) -> None:
        away = contextlib.suppress(OSError, http.client.HTTPException)
        with away, server.stream(patience=PATIENCE_SECONDS, **body(number, LONG)) as chunks:
            for _ in chunks:
                received[number] += 1
                if stopping.is_set():
                    return

    readers = [threading.Thread(target=read, args=(number,), daemon=True) for number in range(SLOTS)]
    for reader in readers:
        reader.start()
    wait_for(lambda: min(received) > 20)
    passes, tokens = len(stream.passes), sum(received)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    stopping.set()
    status = server.ended(STOP_SECONDS)
    for reader in readers:
        reader.join(WAIT_SECONDS)
    return max(tokens, sum(received)), passes, status


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Run]:
    """Serve; hang up on an answer, pause and resume, stop in the middle of four answers."""
    folder, port = tmp_path_factory.mktemp("cases"), free_port()
    arguments = [
        *("--max-num-seqs", str(SLOTS), "--fpm-trace", "--fpm-mode", "full"),
        *("--fpm-output", str(folder / "fpm"), "--fpm-port", str(port)),
    ]
    stream = Subscriber(port)
    environment = vllm_environment | {"VLLM_SERVER_DEV_MODE": "1"}
    with served(tiny_model, arguments, folder, environment) as server, ThreadPoolExecutor(16) as pool:
        server.post("/v1/completions", **body(0, WARM_UP_TOKENS))
        hung_up_after = hang_up(server, stream)
        paused = pause(server, stream, pool)
        received, passes, status = stop_midway(server, stream)
        stream.stop()
        rows = [row.metrics for row in read_trace(sorted(folder.glob("fpm.*.jsonl.gz")))]
        yield Run(rows, stream, paused, hung_up_after, received, passes, status, server.words)


def test_the_trace_and_a_plain_reader_have_the_same_messages(run: Run) -> None:
    """ENG-14: Beside the relay a reader with nothing but a socket saw what the trace has, number by number,
    to the last message before the stop.
    """
    seen = [metrics for _, metrics in run.stream.messages]
    both = max(seen[0].counter_id, run.rows[0].counter_id)

    assert run.stream.refused == []
    assert [m for m in run.rows if m.counter_id >= both] == [m for m in seen if m.counter_id >= both]
    assert [m.counter_id for m in run.rows] == list(
        range(run.rows[0].counter_id, run.rows[-1].counter_id + 1)
    )


def test_a_client_that_hangs_up_ends_its_request_and_not_its_passes(run: Run) -> None:
    """CASE-12: Tokens that the client got were counted, later ones only until vLLM noticed, which on a quick
    machine is at the end; then the stream says that the engine is idle.
    """
    first_idle = next(i for i, m in enumerate(run.rows) if i > 10 and m.wall_time == 0)
    decoded = sum(m.scheduled_requests.num_decode_requests for m in run.rows[:first_idle])

    assert run.hung_up_after <= decoded <= LONG + WARM_UP_TOKENS


def test_a_paused_engine_says_what_waits(run: Run) -> None:
    """CASE-13, TRAP-15: While generation is paused nothing runs and nothing is a pass; heartbeats carry the
    real queue, requests that came during the pause included (D-3).
    """
    assert len(run.while_paused) == 2
    for metrics in run.while_paused:
        assert metrics.scheduled_requests == ScheduledRequestMetrics()
        assert metrics.queued_requests.num_prefill_requests == 2 + 3


def test_sigterm_midway_loses_nothing_that_a_client_has(run: Run) -> None:
    """ENG-14: vLLM's server ends without shutting its scheduler down; yet every token that reached a client
    is a decode or the end of a prefill in the trace.
    """
    counted = 0
    for metrics in reversed(run.rows):
        if metrics.wall_time == 0:
            break
        counted += metrics.scheduled_requests.num_decode_requests
    passes = sum(metrics.wall_time > 0 for metrics in run.rows)

    assert run.status == 0
    assert counted + SLOTS >= run.received_when_stopped
    assert passes >= run.passes_when_stopped
    assert "kind of pass" in run.words
