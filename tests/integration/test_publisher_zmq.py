"""The publisher over real sockets: what a subscriber sees, and what the engine does not feel."""

from __future__ import annotations

import re
import socket as sockets
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from raw_stream import (
    LIMIT_SECONDS,
    QUEUE,
    join,
    one_pass,
    publishing,
    reading,
)

from forwardpass.config.settings import HeartbeatMode
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

HOW_TO = Path(__file__).parents[2] / "docs/how-to/read-the-raw-stream.md"


# --- frames and sequence --------------------------------------------------------------------------


def test_a_subscriber_receives_three_frames_per_pass() -> None:
    """WIRE-31, WIRE-32: Empty topic, 8-byte big-endian sequence equal to counter_id, and the payload as
    published.
    """
    with publishing() as publisher, reading(publisher.port) as reader:
        expected = join(publisher, reader)
        publisher.publish(one_pass(5))
        assert reader.socket.poll(int(LIMIT_SECONDS * 1000))
        parts = reader.socket.recv_multipart()
        metrics = decode_strict(parts[2])

        assert parts[:2] == [b"", expected.to_bytes(8, "big")]
        assert metrics.counter_id == expected
        assert (metrics.worker_id, metrics.dp_rank, metrics.wall_time) == ("77", 0, 0.01)
        assert metrics.scheduled_requests.num_decode_requests == 5


def test_passes_arrive_in_order_without_gaps() -> None:
    """WIRE-32: A thousand passes come out in the order they went in, numbered without a gap."""
    with publishing() as publisher, reading(publisher.port) as reader:
        begin = join(publisher, reader)
        for number in range(1000):
            assert publisher.publish(one_pass(number))
        received = [reader.read_pass() for _ in range(1000)]

        assert [seq for seq, _ in received] == list(range(begin, begin + 1000))
        assert [metrics.scheduled_requests.num_decode_requests for _, metrics in received] == list(
            range(1000)
        )
        assert publisher.counts().dropped == {}


def test_a_late_subscriber_begins_in_the_middle() -> None:
    """WIRE-30: What was sent before it came is gone: its first number says how much, and then nothing is
    missing.
    """
    with publishing() as publisher, reading(publisher.port) as early:
        join(publisher, early)
        for _ in range(100):
            publisher.publish(one_pass())
        with reading(publisher.port) as late:
            begin = join(publisher, late)
            publisher.publish(one_pass())
            seq, _ = late.read_pass()

            assert seq == begin > 100


def test_a_full_queue_loses_without_a_gap() -> None:
    """WIRE-33, WIRE-41, D-10: passes refused for a full queue were never numbered; they are counted as
    queue_full.
    """
    with publishing(queue_capacity=5) as publisher, reading(publisher.port) as reader:
        begin = next_sequence = join(publisher, reader)
        offered_before = publisher.counts().offered
        accepted = sum(publisher.publish(one_pass()) for _ in range(5000))
        for _ in range(accepted):
            seq, _ = reader.read_pass()
            assert seq == next_sequence
            next_sequence += 1
        counts = publisher.counts()

        assert 0 < accepted < 5000
        assert next_sequence == begin + accepted
        assert counts.dropped == {"queue_full": 5000 - accepted}
        assert counts.offered == offered_before + 5000


def test_a_stalled_subscriber_loses_alone_and_sees_a_gap() -> None:
    """WIRE-33: With a small send HWM a subscriber that does not read loses messages, which leaves a gap; the
    engine is never held up and another subscriber gets everything.
    """
    # libzmq hears up to a millisecond late of what a reader has taken, after half the mark each time: a mark
    # of 10 was reached by a reader that kept up, two bursts of 5 within that millisecond.
    settings = {"send_hwm": 200, "worker_id": "x" * 20_000}
    with (
        publishing(**settings) as publisher,
        reading(publisher.port) as quick,
        reading(publisher.port, small=True) as stalled,
    ):
        join(publisher, quick)
        begin = join(publisher, stalled)
        while (frames := quick.read(0.5)) is not None and frames.seq < begin - 1:
            pass
        got = []
        for _ in range(400):  # 40 MB in all: far more than every buffer on the way
            for number in range(5):
                publisher.publish(one_pass(number))
            got += [quick.read_pass()[0] for _ in range(5)]
        received = []
        while (frames := stalled.read(1.0)) is not None:
            received.append(frames.seq)

        assert got == list(range(begin, begin + 2000))
        assert publisher.counts().dropped == {}
        assert 0 < len(received) < 2000
        assert received == sorted(set(received))
        assert received[-1] - received[0] + 1 > len(received) or received[-1] < begin + 1999


# --- heartbeats, pause, rename --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "queued"),
    [(HeartbeatMode.WHEN_IDLE, QUEUE), (HeartbeatMode.ALWAYS_ZERO, QueuedRequestMetrics())],
)
def test_a_quiet_stream_sends_heartbeats(mode: HeartbeatMode, queued: QueuedRequestMetrics) -> None:
    """WIRE-42, D-3: about one per interval, numbered with the passes, with the real queue or zeros."""
    with (
        publishing(heartbeat=mode, heartbeat_interval_seconds=0.1) as publisher,
        reading(publisher.port) as reader,
    ):
        publisher.publish(ForwardPassMetrics(wall_time=0.5, queued_requests=QUEUE))
        beats = [reader.read_pass() for _ in range(6)]
        begin = time.monotonic()
        more = [reader.read_pass() for _ in range(10)]
        took = time.monotonic() - begin
        numbers = [seq for seq, _ in [*beats, *more]]

        assert numbers == list(range(numbers[0], numbers[0] + 16))
        for seq, metrics in [*beats[1:], *more]:
            expected = ForwardPassMetrics(
                worker_id="77", dp_rank=0, counter_id=seq, wall_time=0.0, queued_requests=queued
            )
            assert metrics == expected
        assert took > 0.8  # ten intervals of 0.1 s, less what was on its way already


def test_note_queue_changes_the_next_heartbeat() -> None:
    """WIRE-42, D-3: after steps that emit nothing, heartbeats show what the engine noted last."""
    with publishing(heartbeat_interval_seconds=0.05) as publisher, reading(publisher.port) as reader:
        publisher.note_queue(QUEUE)
        deadline = time.monotonic() + LIMIT_SECONDS
        while reader.read_pass()[1].queued_requests != QUEUE:
            assert time.monotonic() < deadline
        publisher.note_queue(QueuedRequestMetrics())
        while reader.read_pass()[1].queued_requests != QueuedRequestMetrics():
            assert time.monotonic() < deadline


def test_a_paused_stream_is_silent_keeps_its_port_and_continues_without_a_gap() -> None:
    """WIRE-45: While paused: publish is refused, no heartbeat, no number used, the port bound. A benchmark's
    queue seen meanwhile is not in the heartbeats afterwards.
    """
    with publishing(heartbeat_interval_seconds=0.05) as publisher, reading(publisher.port) as reader:
        last = reader.read_pass()[0]
        publisher.pause()
        while (frames := reader.read(0.3)) is not None:  # heartbeats on their way
            last = frames.seq
        refused = [publisher.publish(ForwardPassMetrics(queued_requests=QUEUE)) for _ in range(10)]
        silence = reader.read(0.5)
        sockets.create_connection(("127.0.0.1", publisher.port or 0), timeout=5).close()
        publisher.resume()
        seq, metrics = reader.read_pass()

        assert refused == [False] * 10
        assert silence is None
        assert seq == last + 1
        assert metrics.queued_requests == QueuedRequestMetrics()
        assert publisher.counts().dropped == {"paused": 10}


def test_the_worker_id_may_change_while_the_stream_runs() -> None:
    """WIRE-46, D-15: from set_worker_id() on, messages carry the new id and the sequence goes on."""
    with publishing(worker_id="") as publisher, reading(publisher.port) as reader:
        begin = join(publisher, reader)
        publisher.publish(one_pass())
        before = reader.read_pass()
        publisher.set_worker_id("123456789")
        publisher.publish(one_pass())
        after = reader.read_pass()

        assert [(seq, metrics.worker_id) for seq, metrics in (before, after)] == [
            (begin, ""),
            (begin + 1, "123456789"),
        ]


# --- the documented reader ------------------------------------------------------------------------


def test_the_documented_reader_reads_our_stream() -> None:
    """WIRE-30: pyzmq and decode are all a reader needs; the program in the how-to prints each pass."""
    program = re.findall(r"```python\n(.*?)```", HOW_TO.read_text(), re.DOTALL)[0]
    with publishing() as publisher:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(publisher.port)], stdout=subprocess.PIPE, text=True
        )
        try:
            lines: list[str] = []
            thread = threading.Thread(target=lambda: lines.extend(process.stdout or []))
            thread.start()
            deadline = time.monotonic() + LIMIT_SECONDS
            while len(lines) < 3 and time.monotonic() < deadline:
                publisher.publish(
                    ForwardPassMetrics(
                        wall_time=0.0125,
                        scheduled_requests=ScheduledRequestMetrics(num_decode_requests=4),
                        queued_requests=QUEUE,
                    )
                )
                time.sleep(0.01)
        finally:
            process.kill()
            process.wait(10)
            thread.join(10)
            assert process.stdout is not None
            process.stdout.close()

    assert len(lines) >= 3
    first = int(lines[0].split(":")[0])
    for number, line in enumerate(lines[:3]):
        assert line == (
            f"{first + number}: worker 77 rank 0, 12.5 ms, 0 prefill and 4 decode requests, 3 waiting\n"
        )
