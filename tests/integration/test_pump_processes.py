"""The pump and its process: interpreter exit, signals and forks."""

from __future__ import annotations

import time

from pump_script import assert_silent_success, run_script


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


def test_a_signal_handler_may_stop_a_pump_anywhere_in_its_stop() -> None:
    """Even a signal that arrives while stop() changes the pump's state finds no lock held against it."""
    result = run_script(
        """
        class Clock:
            armed = False
            def unix_ms(self): return 0
            def monotonic(self):
                if self.armed and threading.current_thread() is threading.main_thread():
                    self.armed = False
                    signal.raise_signal(signal.SIGTERM)  # stop() reads the clock in its critical section
                return time.monotonic()
        clock = Clock()
        pump, task = make(clock=clock)
        pump.start()
        pump.offer(1)
        reports = []
        signal.signal(signal.SIGTERM, lambda *_: reports.append(pump.stop(5)))
        clock.armed = True
        reports.append(pump.stop(5))
        print([tuple(report) for report in reports], task.seen)
        """
    )

    assert_silent_success(result)
    assert result.stdout.strip() == "[(True, 0), (True, 0)] [1]"


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
