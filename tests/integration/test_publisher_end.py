"""How a publisher ends: shutdown, interpreter exit, and forks that must not end it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from raw_stream import (
    join,
    one_pass,
    publishing,
    reading,
    run_script,
)

from forwardpass.pump import StopReport
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.schema import ForwardPassMetrics

# --- the end, and forks ---------------------------------------------------------------------------


def test_shutdown_sends_what_is_queued_and_is_idempotent() -> None:
    """WIRE-47: Passes accepted before shutdown reach the subscriber; the second call reports the same."""
    with publishing() as publisher, reading(publisher.port) as reader:
        begin = join(publisher, reader)
        for _ in range(2000):
            publisher.publish(one_pass())
        first, second = publisher.shutdown(10), publisher.shutdown(10)
        refused = publisher.publish(one_pass())
        received = [reader.read_pass()[0] for _ in range(2000)]

        assert first == second == StopReport(finished=True, undelivered=0)
        assert received == list(range(begin, begin + 2000))
        assert not refused
        assert publisher.counts().dropped == {"closed": 1}
        assert publisher.counts().pending == 0


def test_shutdown_waits_for_a_reader_that_is_behind() -> None:
    """What is sent but not yet received is delivered if the reader takes it within the timeout."""
    with publishing(worker_id="x" * 20_000) as publisher, reading(publisher.port, small=True) as slow:
        begin = join(publisher, slow)
        for _ in range(500):  # 10 MB: more than the buffers on the way
            publisher.publish(one_pass())
        ending = threading.Thread(target=publisher.shutdown, args=(20,))
        ending.start()
        time.sleep(0.5)
        received = [slow.read_pass()[0] for _ in range(500)]
        ending.join(25)

        assert received == list(range(begin, begin + 500))
        assert not ending.is_alive()


def test_shutdown_is_bounded_with_a_stalled_subscriber() -> None:
    """WIRE-47: A subscriber that never reads cannot hold up the end for longer than the timeout."""
    with publishing(worker_id="x" * 20_000) as publisher, reading(publisher.port, small=True) as stalled:
        join(publisher, stalled)
        for _ in range(2000):
            publisher.publish(one_pass())
        begin = time.monotonic()
        publisher.shutdown(1.0)
        took = time.monotonic() - begin

        assert took < 2.0
        # On a busy machine the thread may end a moment later than its last tenth of a second allows.
        assert publisher.shutdown(2.0).finished


def test_shutdown_from_several_threads_at_once() -> None:
    """WIRE-47: The engine, a signal and an atexit hook may all shut down: one report, no deadlock."""
    with publishing() as publisher:
        for _ in range(100):
            publisher.publish(one_pass())
        reports: list[StopReport] = []
        threads = [threading.Thread(target=lambda: reports.append(publisher.shutdown(10))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert reports == [StopReport(finished=True, undelivered=0)] * 6


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "atexit.register(publisher.shutdown)",
        "publisher.shutdown()",
        "publisher.pause()",
        "del publisher; gc.collect()",
        "raise SystemExit(0)",
    ],
)
def test_a_process_may_end_in_any_way(ending: str) -> None:
    """WIRE-47: With or without shutdown, interpreter exit neither hangs nor prints anything."""
    result = run_script(
        f"""
        import atexit, gc
        from forwardpass.config.settings import PublisherSettings
        from forwardpass.publish.publisher import open_publisher
        from forwardpass.wire.schema import ForwardPassMetrics
        settings = PublisherSettings(base_port=0, worker_id="1", heartbeat_interval_seconds=0.001)
        publisher = open_publisher(settings, dp_rank=0)
        for _ in range(1000): publisher.publish(ForwardPassMetrics(wall_time=0.1))
        {ending}
        """
    )

    assert (result.returncode, result.stderr) == (0, "")


FORKING = """
import gc, os, sys, time
from forwardpass.config.settings import PublisherSettings
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.wire.schema import ForwardPassMetrics

publisher = FpmPublisher(
    PublisherSettings(base_port=int(sys.argv[1]), worker_id="1", heartbeat_interval_seconds=0.02), dp_rank=0
)
deadline = time.monotonic() + 40
def passes(count):
    for _ in range(count):
        assert publisher.publish(ForwardPassMetrics(wall_time=0.1))
        time.sleep(0.001)
print("ready", flush=True)
sys.stdin.readline()
passes(100)
children = []
for ending in ("exit", "shutdown", "collect"):
    pid = os.fork()
    if pid == 0:
        assert not publisher.publish(ForwardPassMetrics(wall_time=9.0))
        publisher.note_queue(ForwardPassMetrics().queued_requests)
        publisher.set_worker_id("child")
        publisher.pause(); publisher.resume()
        assert publisher.counts().dropped == {"closed": 1}, publisher.counts()
        if ending == "shutdown":
            assert publisher.shutdown(5) == (True, 0)
        elif ending == "collect":
            publisher = None
            gc.collect()
        sys.exit(0)
    children.append(pid)
    passes(50)
for pid in children:
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        assert time.monotonic() < deadline, "a child hangs"
        passes(1)
    assert status == 0, status
passes(100)
assert publisher.shutdown(5) == (True, 0)
print(publisher.counts().delivered, flush=True)
"""


def test_forked_children_leave_the_parents_stream_alone() -> None:
    """WIRE-48: Children that publish, shut down, drop the publisher or just exit neither crash nor disturb
    the parent: its subscriber sees every pass, no gap, and nothing of the children.
    """
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-X", "dev", "-W", "ignore:This process:DeprecationWarning"),
            *("-c", FORKING, str(port)),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with reading(port) as reader:
            begin, _ = reader.read_pass()  # a heartbeat: the subscription has arrived
            received: list[tuple[int, ForwardPassMetrics]] = []
            stop = threading.Event()

            def collect() -> None:
                while not stop.is_set():
                    frames = reader.read(0.1)
                    if frames is not None:
                        received.append((frames.seq, decode_strict(frames.payload)))

            thread = threading.Thread(target=collect)
            thread.start()
            out, err = process.communicate("go\n", timeout=60)
            time.sleep(0.3)
            stop.set()
            thread.join(20)
        sent = [metrics for _, metrics in received if metrics.wall_time > 0]

        assert process.returncode == 0, err
        assert len(sent) == int(out)
        assert [seq for seq, _ in received] == list(range(begin + 1, begin + 1 + len(received)))
        assert {(metrics.worker_id, metrics.wall_time) for metrics in sent} == {("1", 0.1)}
        assert err == ""
    finally:
        process.kill()
        process.wait(10)
