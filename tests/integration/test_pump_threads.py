"""The pump with its real thread: races, forks, signals and the end of the process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time

import pytest

from forwardpass.counters import Counters, DropReason, StageCounts
from forwardpass.pump import Overflow, Pump, StopReport

SCRIPT_HEAD = """
import os, signal, sys, threading, time
from forwardpass.counters import Counters
from forwardpass.pump import Pump

class Task:
    def __init__(self, counters): self.counters, self.seen, self.log = counters, [], []
    def open(self): self.log.append(f"open {os.getpid()}")
    def tick(self, now, queued): return 1.0
    def take(self, items):
        self.seen += items
        self.counters.delivered += len(items)
    def close(self, deadline): self.log.append(f"close {os.getpid()}")
    def forked(self): self.log.append(f"forked {os.getpid()}")

def make(**kwargs):
    counters = Counters()
    task = Task(counters)
    return Pump(task, name="script", capacity=1000, counters=counters, **kwargs), task

def in_child(body):
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            body()
            code = 0
        except BaseException as error:
            print("child:", repr(error), flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0, status
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise SystemExit("the child hangs")
"""


def run_script(body: str, timeout: float = 60.0) -> subprocess.CompletedProcess[str]:
    """Run ``body`` in a fresh interpreter that shows every warning."""
    script = SCRIPT_HEAD + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", script],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def assert_silent_success(result: subprocess.CompletedProcess[str]) -> None:
    """Fail unless the script ended with 0 and printed nothing to stderr."""
    assert (result.returncode, result.stderr) == (0, ""), result.stdout + result.stderr


class Sink:
    """Takes items as fast as it can, fails or loses now and then, and keeps what it delivered."""

    def __init__(self, counters: Counters, *, unreliable: bool = False) -> None:
        self.counters = counters
        self.unreliable = unreliable
        self.delivered: list[int] = []
        self.batches = 0

    def open(self) -> None:
        pass

    def tick(self, now: float, queued: int) -> float:
        return 1.0

    def take(self, items: list[int]) -> None:
        self.batches += 1
        for item in items:
            if self.unreliable and item % 1000 == 7:
                raise RuntimeError("a bug")
            if self.unreliable and item % 100 == 3:
                self.counters.lose(DropReason.SEND_ERROR)
                continue
            self.delivered.append(item)
            self.counters.delivered += 1

    def close(self, deadline: float) -> None:
        pass

    def forked(self) -> None:
        pass


@pytest.mark.parametrize("overflow", list(Overflow))
@pytest.mark.parametrize("unreliable", [False, True])
def test_the_counts_add_up_at_every_instant_under_load(overflow: Overflow, unreliable: bool) -> None:
    """With a producer, a consumer and an observer running flat out, no snapshot has a negative number or
    loses an item, and the final counts are what the producer and the consumer saw themselves.
    """
    counters = Counters()
    sink = Sink(counters, unreliable=unreliable)
    pump: Pump[int] = Pump(sink, name="hammer", capacity=500, counters=counters, overflow=overflow)
    pump.start()
    over = threading.Event()
    snapshots: list[StageCounts] = []
    bad: list[StageCounts] = []

    def observe() -> None:
        while not over.is_set():
            counts = counters.snapshot()
            snapshots.append(counts)
            # one item may be between the producer's count and the queue, one batch at the consumer
            if not 0 <= counts.pending <= 500 + 256 + 1 or counts.accepted > counts.offered:
                bad.append(counts)
            time.sleep(0)

    observer = threading.Thread(target=observe)
    observer.start()
    accepted = 0
    for item in range(150_000):
        accepted += pump.offer(item)
        if item % 400 == 0:
            time.sleep(0)
    report = pump.stop(20)
    over.set()
    observer.join(20)
    counts = counters.snapshot()

    assert report.finished
    assert bad == []
    assert len(snapshots) > 10
    assert (counts.offered, counts.accepted, counts.pending) == (150_000, accepted, 0)
    assert counts.delivered == len(sink.delivered) > 0
    assert counts.delivered + counts.dropped_total == 150_000
    assert sink.delivered == sorted(set(sink.delivered))
    assert ("internal_error" in counts.dropped) is unreliable


def test_items_are_taken_within_a_tick_without_being_woken() -> None:
    """An offer reaches the task although nobody is notified."""
    counters = Counters()
    sink = Sink(counters)
    pump: Pump[int] = Pump(sink, name="poll", capacity=10, counters=counters)
    pump.start()
    try:
        pump.offer(1)
        deadline = time.monotonic() + 10
        while not sink.delivered and time.monotonic() < deadline:
            time.sleep(0.001)

        assert sink.delivered == [1]
    finally:
        pump.stop(5)


def test_eight_threads_may_stop_at_once() -> None:
    """Every stop returns the same report, nothing deadlocks, and no leftover is counted twice."""
    for _ in range(20):
        counters = Counters()
        sink = Sink(counters)
        pump: Pump[int] = Pump(sink, name="stops", capacity=10_000, counters=counters)
        pump.start()
        for item in range(5000):
            pump.offer(item)
        reports: list[StopReport] = []
        barrier = threading.Barrier(8)

        def stop(pump: Pump[int] = pump, barrier: threading.Barrier = barrier) -> None:
            barrier.wait(10)
            reports.append(pump.stop(10))  # noqa: B023

        threads = [threading.Thread(target=stop) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert reports == [StopReport(finished=True, undelivered=0)] * 8
        assert counters.snapshot() == StageCounts(5000, 5000, 5000, 0, {})


def test_offers_that_race_with_stop_are_delivered_lost_or_refused() -> None:
    """A producer that goes on while another thread stops ends with every item accounted for."""
    for _ in range(20):
        counters = Counters()
        pump: Pump[int] = Pump(Sink(counters), name="race", capacity=100, counters=counters)
        pump.start()
        enough = threading.Event()

        def produce(pump: Pump[int] = pump, enough: threading.Event = enough) -> None:
            while not enough.is_set():
                pump.offer(1)

        producer = threading.Thread(target=produce)
        producer.start()
        time.sleep(0.002)
        pump.stop(10)
        deadline = time.monotonic() + 10
        while "closed" not in counters.snapshot().dropped and time.monotonic() < deadline:
            time.sleep(0.001)
        enough.set()
        producer.join(10)
        pump.stop(10)
        counts = counters.snapshot()

        assert counts.pending == 0
        assert counts.dropped.get("closed", 0) > 0
        assert counts.delivered + counts.dropped_total == counts.offered


def test_a_stuck_task_cannot_hold_up_a_stop() -> None:
    """When take() hangs, stop returns within its time, says so, and a later stop sees the end."""
    counters = Counters()
    sink = Sink(counters)
    release = threading.Event()
    entered = threading.Event()

    def hang(items: list[int]) -> None:
        entered.set()
        release.wait(30)
        counters.delivered += len(items)

    sink.take = hang  # type: ignore[method-assign]
    pump: Pump[int] = Pump(sink, name="stuck", capacity=10, counters=counters)
    pump.start()
    pump.offer(1)
    assert entered.wait(10)
    pump.offer(2)
    begin = time.monotonic()
    stuck = pump.stop(0.2)
    took = time.monotonic() - begin
    release.set()
    later = pump.stop(10)

    assert stuck == StopReport(finished=False, undelivered=2)
    assert took < 2.0
    assert later == StopReport(finished=True, undelivered=1)
    assert counters.snapshot().dropped == {"deadline": 1}


def test_a_process_that_never_stops_its_pump_ends_at_once_and_silently() -> None:
    """The thread is a daemon: no hang, no traceback, no warning at interpreter exit."""
    for body in ("pump.offer(1)", "pump.offer(1); sys.exit(0)", "pump.pause()"):
        begin = time.monotonic()
        result = run_script(f"pump, task = make()\npump.start()\n{body}\n")

        assert_silent_success(result)
        assert time.monotonic() - begin < 30


def test_stop_works_at_interpreter_exit() -> None:
    """stop() from an atexit hook still delivers what is queued."""
    result = run_script(
        """
        import atexit
        pump, task = make()
        pump.start()
        atexit.register(lambda: print(pump.stop(5), task.seen))
        for item in range(3): pump.offer(item)
        """
    )

    assert_silent_success(result)
    assert "finished=True, undelivered=0) [0, 1, 2]" in result.stdout


def test_a_signal_handler_may_stop_a_pump_that_is_being_stopped() -> None:
    """SIGTERM during stop() runs a handler that stops too: no deadlock."""
    result = run_script(
        """
        pump, task = make()
        pump.start()
        gate = threading.Event()
        task.take = lambda items: gate.wait(20)  # keeps the main thread inside stop()
        reports = []
        def handler(signum, frame):
            gate.set()
            reports.append(pump.stop(10))
        signal.signal(signal.SIGTERM, handler)
        pump.offer(1)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        reports.append(pump.stop(10))
        print([report.finished for report in reports])
        """
    )

    assert_silent_success(result)
    assert result.stdout.strip() == "[True, True]"


def test_an_interrupted_start_leaves_no_thread() -> None:
    """Ctrl-C while open() hangs comes out of start(); what open acquires late is closed again."""
    result = run_script(
        """
        pump, task = make()
        gate = threading.Event()
        task.open = lambda: gate.wait(20)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            pump.start(15)
            print("not interrupted")
        except KeyboardInterrupt:
            gate.set()
            print(pump.offer(1), pump.stop(10).finished, [line.split()[0] for line in task.log])
        """
    )

    assert_silent_success(result)
    assert result.stdout.strip() == "False True ['close']"


def test_a_forked_child_starts_afresh_and_the_parent_goes_on() -> None:
    """The child's queue and counts begin empty, its first offer opens the task anew in the child, and the
    parent delivers everything it was offered.
    """
    result = run_script(
        """
        pump, task = make()
        pump.start()
        for item in range(100): assert pump.offer(item)
        def child():
            assert pump.counters.snapshot().offered == 0 and pump.queued == 0
            task.seen.clear()
            for item in (7, 8): assert pump.offer(item)
            report = pump.stop(5)
            assert report == (True, 0), report
            assert task.seen == [7, 8], task.seen
            me = str(os.getpid())
            mine = [line.split()[0] for line in task.log if line.endswith(me)]
            assert mine == ["forked", "open", "close"], mine
            assert pump.counters.snapshot().delivered == 2
        in_child(child)
        for item in range(100, 200): assert pump.offer(item)
        assert pump.stop(5) == (True, 0)
        assert task.seen == list(range(200))
        assert [line.split()[0] for line in task.log] == ["open", "close"]
        """
    )

    assert_silent_success(result)


def test_a_forked_child_may_be_told_to_stay_closed() -> None:
    """With restart_after_fork=False the child's offers are refused as closed and nothing is opened."""
    result = run_script(
        """
        pump, task = make(restart_after_fork=False)
        pump.start()
        def child():
            assert not pump.offer(1)
            assert pump.counters.snapshot().dropped == {"closed": 1}
            assert pump.stop(1) == (True, 0)
        in_child(child)
        assert pump.offer(1)
        assert pump.stop(5) == (True, 0)
        """
    )

    assert_silent_success(result)


def test_a_pause_survives_a_fork() -> None:
    """The child of a paused pump is paused; after resume its first offer opens the task."""
    result = run_script(
        """
        pump, task = make()
        pump.start()
        pump.pause()
        def child():
            assert not pump.offer(1) and pump.paused
            pump.resume()
            assert pump.offer(2)
            assert pump.stop(5) == (True, 0)
            assert task.seen == [2]
        in_child(child)
        pump.resume()
        assert pump.offer(3)
        assert pump.stop(5) == (True, 0) and task.seen == [3]
        """
    )

    assert_silent_success(result)


def test_a_stopped_pump_stays_stopped_in_a_child() -> None:
    """A fork after stop, and a fork of a pump that was never started, revive nothing."""
    result = run_script(
        """
        stopped, _ = make()
        stopped.start(); stopped.stop(5)
        fresh, task = make()
        def child():
            assert not stopped.offer(1) and not fresh.offer(1)
            fresh.start()
            assert fresh.offer(2) and fresh.stop(5) == (True, 0) and task.seen == [2]
        in_child(child)
        """
    )

    assert_silent_success(result)


def test_a_child_that_cannot_reopen_says_so_and_refuses() -> None:
    """An open() that fails in the child is logged, not raised: offers never raise."""
    result = run_script(
        """
        pump, task = make()
        pump.start()
        def child():
            def fail(): raise OSError("no luck here")
            task.open = fail
            pump.offer(1)
            deadline = time.monotonic() + 10
            while pump.offer(2) and time.monotonic() < deadline: time.sleep(0.01)
            assert not pump.offer(3)
            pump.stop(5)
            counts = pump.counters.snapshot()
            assert counts.pending == counts.delivered == 0 and counts.faults == 1, counts
        in_child(child)
        assert pump.stop(5) == (True, 0)
        """
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert "no luck here" in result.stderr
