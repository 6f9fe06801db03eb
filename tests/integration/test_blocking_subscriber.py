"""The subscriber for programs without an event loop, on the plane inside one process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from subscriber_peers import PATIENCE_SECONDS, Workers, payload, plane_url, publisher_at

from forwardpass import AsyncFpmSubscriber, FpmSubscriber
from forwardpass.errors import ConfigError
from forwardpass.plane.loop_thread import LoopThread


def publish(url: str, *payloads: bytes) -> None:
    """Publish from an event loop of this thread, with a publisher of its own."""

    async def work() -> None:
        async with publisher_at(url) as one:
            for data in payloads:
                await one.publish(data)

    asyncio.run(work())


def until(true: Callable[[], bool]) -> None:
    """Wait until it is."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_SECONDS / 0.005)):
        if true():
            return
        pause.wait(0.005)
    pytest.fail("it never came true")


def join(subscriber: FpmSubscriber) -> None:
    """Let a subscriber join the plane."""
    with pytest.raises(TimeoutError):
        subscriber.recv(0.01)


def test_both_forms_have_the_same_names() -> None:
    """SUB-16: What the asynchronous form has, the blocking one has."""

    def names(of: type) -> set[str]:
        return {name for name in vars(of) if not name.startswith("_")}

    assert names(FpmSubscriber) == names(AsyncFpmSubscriber)


def test_receiving() -> None:
    """SUB-16: recv and recv_envelope wait for what another thread publishes, in order."""
    where = plane_url()
    with FpmSubscriber(where) as subscriber, ThreadPoolExecutor(1) as other:
        join(subscriber)
        waiting = other.submit(subscriber.recv)
        publish(where, *(payload(counter=counter) for counter in range(3)))
        got = [waiting.result(PATIENCE_SECONDS), subscriber.recv()]
        envelope = subscriber.recv_envelope(5)
        counts = subscriber.counts()

    assert got == [payload(counter=0), payload(counter=1)]
    assert envelope is not None
    assert (envelope.payload, envelope.sequence) == (payload(counter=2), 2)
    assert (counts.delivered, counts.pending, counts.dropped) == (3, 0, {})


def test_many_messages_between_threads() -> None:
    """SUB-16: What several threads publish while one receives comes complete, in order per publisher."""
    where, each = plane_url(), 400
    with FpmSubscriber(where) as subscriber, ThreadPoolExecutor(3) as others:
        join(subscriber)
        for thread in range(3):
            others.submit(publish, where, *(f"{thread}/{number}".encode() for number in range(each)))
        got = [subscriber.recv(PATIENCE_SECONDS) for _ in range(3 * each)]

    for thread in range(3):
        own = [data for data in got if data is not None and data.startswith(f"{thread}/".encode())]
        assert own == [f"{thread}/{number}".encode() for number in range(each)]


def test_shutdown_wakes_a_receiver_in_another_thread() -> None:
    """SUB-16: shutdown unblocks every recv with None and ends the thread; a second one is nothing."""
    before = threading.active_count()
    subscriber = FpmSubscriber(plane_url())
    join(subscriber)
    with ThreadPoolExecutor(3) as others:
        waiting = [others.submit(subscriber.recv) for _ in range(2)]
        closing = [others.submit(subscriber.shutdown), others.submit(subscriber.shutdown)]
        results = [each.result(PATIENCE_SECONDS) for each in (*waiting, *closing)]

    assert results == [None] * 4
    assert (subscriber.recv(), subscriber.recv_envelope(), subscriber.closed) == (None, None, True)
    assert threading.active_count() == before


def test_tracking() -> None:
    """SUB-16: Tracking can be read from any thread, and after the shutdown for what was known then."""
    where, workers = plane_url(), Workers()
    workers.change("7", "{}")
    with FpmSubscriber(where, workers=workers.open) as subscriber, ThreadPoolExecutor(4) as others:
        subscriber.start_tracking()
        publish(where, payload("7", 0, 4), payload("8"), payload("7", 1, 2))
        until(lambda: subscriber.tracker_counts().messages == 3)
        looks = [others.submit(subscriber.get_recent_stats, 60).result() for _ in range(8)]
        cards = subscriber.get_model_cards()
    after = subscriber.get_recent()

    assert looks == [{("7", 0): payload("7", 0, 4), ("7", 1): payload("7", 1, 2)}] * 8
    assert cards == {"7": "{}"}
    assert {key: entry.counter_id for key, entry in after.items()} == {("7", 0): 4, ("7", 1): 2}


def test_the_two_ways_exclude_each_other() -> None:
    """SUB-16: Wrong use raises what it raises in the asynchronous form, also after the shutdown."""
    tracking, receiving = FpmSubscriber(plane_url()), FpmSubscriber(plane_url())
    with pytest.raises(RuntimeError):
        tracking.get_recent_stats()
    with pytest.raises(ConfigError):
        tracking.start_tracking()
    tracking.start_tracking(require_known=False)
    join(receiving)
    for call in (tracking.recv, tracking.start_tracking, receiving.start_tracking, receiving.get_recent):
        with pytest.raises(RuntimeError):
            call()
    for subscriber in (tracking, receiving):
        subscriber.shutdown()
    with pytest.raises(RuntimeError):
        receiving.get_recent()
    with pytest.raises(RuntimeError):
        receiving.start_tracking(require_known=False)

    assert tracking.get_recent() == {}


def test_one_that_nobody_used_starts_no_thread() -> None:
    """SUB-16: Making a subscriber starts nothing."""
    before = threading.active_count()
    FpmSubscriber("nosuch:plane")

    assert threading.active_count() == before


def test_work_of_a_closed_thread() -> None:
    """SUB-16: A thread that is closed cancels what runs on it and takes no more."""
    thread = LoopThread("test")
    with ThreadPoolExecutor(1) as other:
        began = threading.Event()

        async def work() -> None:
            began.set()
            await asyncio.Event().wait()

        waiting = other.submit(thread.run, work)
        assert began.wait(PATIENCE_SECONDS)
        thread.close()
        error = waiting.exception(PATIENCE_SECONDS)

    assert type(error).__name__ == "CancelledError"
    with pytest.raises(RuntimeError):
        thread.run(work)


def script(code: str) -> subprocess.Popen[str]:
    """Start a program that uses a subscriber, with warnings as errors."""
    text = f"import forwardpass, os, sys\n{code}"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_program_that_forgets_shutdown_ends() -> None:
    """SUB-16: A program that never calls shutdown ends by itself and says nothing."""
    process = script(
        "s = forwardpass.FpmSubscriber('memory:x'); s.start_tracking(require_known=False)\n"
        "r = forwardpass.FpmSubscriber('memory:x')\n"
        "try:\n    r.recv(0.01)\nexcept TimeoutError:\n    pass\n"
    )
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (0, "", "")


def test_an_interrupt_ends_recv() -> None:
    """SUB-16: Ctrl-C ends a recv that waits, and the program with it."""
    process = script(
        "s = forwardpass.FpmSubscriber('memory:x')\n"
        "print('waiting', flush=True)\n"
        "try:\n    s.recv()\nexcept KeyboardInterrupt:\n    s.shutdown(); print('ended', s.recv())\n"
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "waiting\n"
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.2)  # so that it is inside recv; either way the interrupt must end it
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)

    assert (out, err) == ("ended None\n", "")


def test_a_fork_has_no_subscriber() -> None:
    """SUB-16: In a child made by fork a subscriber that was used before refuses to be, instead of hanging."""
    process = script(
        "s = forwardpass.FpmSubscriber('memory:x')\n"
        "s.start_tracking(require_known=False)\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "if os.fork() == 0:\n"
        "    try:\n        s.get_recent()\n"
        "    except RuntimeError as error:\n        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait(); s.shutdown()\n"
    )
    out, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, "")
    assert "fork" in out


def test_several_threads_receive() -> None:
    """SUB-16: Threads that receive at once share the messages: each comes once, and the counts are exact."""
    where, count = plane_url(), 900
    with FpmSubscriber(where) as subscriber, ThreadPoolExecutor(4) as others:
        join(subscriber)

        def receive() -> list[bytes | None]:
            return [subscriber.recv(PATIENCE_SECONDS) for _ in range(count // 3)]

        waiting = [others.submit(receive) for _ in range(3)]
        others.submit(publish, where, *(str(number).encode() for number in range(count))).result()
        got = [data for each in waiting for data in each.result(PATIENCE_SECONDS)]
        counts = subscriber.counts()

    assert sorted(got, key=lambda data: int(data or b"-1")) == [str(n).encode() for n in range(count)]
    assert (counts.offered, counts.delivered, counts.pending, counts.dropped) == (count, count, 0, {})


def test_after_the_first_message() -> None:
    """SUB-16: Waiting in vain, being woken by shutdown and the end of recv are the same once messages came
    (from then on no call goes through the event loop).
    """
    where = plane_url()
    subscriber = FpmSubscriber(where)
    join(subscriber)
    publish(where, b"1")
    first = subscriber.recv(PATIENCE_SECONDS)
    for seconds in (0.0, 0.02):
        with pytest.raises(TimeoutError):
            subscriber.recv(seconds)
    with ThreadPoolExecutor(2) as others:
        waiting = others.submit(subscriber.recv)
        publish(where, b"2")
        second = waiting.result(PATIENCE_SECONDS)
        last = [others.submit(subscriber.recv), others.submit(subscriber.recv)]
        subscriber.shutdown()
        ends = [each.result(PATIENCE_SECONDS) for each in last]

    assert (first, second, ends, subscriber.recv(0.0)) == (b"1", b"2", [None, None], None)


def test_a_fork_does_not_receive() -> None:
    """SUB-16: In a child made by fork recv refuses too, also after messages have come."""
    process = script(
        "import asyncio\n"
        "from forwardpass.plane import memory\n"
        "from forwardpass.plane.base import PlaneContext\n"
        "s = forwardpass.FpmSubscriber('memory:x')\n"
        "try:\n    s.recv(0.01)\nexcept TimeoutError:\n    pass\n"
        "async def send():\n"
        "    p = await memory.open_publisher('memory:x', s.endpoint, PlaneContext())\n"
        "    await p.publish(b'1'); await p.close()\n"
        "asyncio.run(send()); s.recv()\n"
        "import warnings; warnings.simplefilter('ignore')\n"
        "if os.fork() == 0:\n"
        "    try:\n        s.recv()\n"
        "    except RuntimeError as error:\n        print(error, flush=True)\n"
        "    os._exit(0)\n"
        "os.wait(); s.shutdown()\n"
    )
    out, err = process.communicate(timeout=60)

    assert (process.returncode, err) == (0, "")
    assert "fork" in out
