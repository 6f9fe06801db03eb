"""Traces of processes that end, are ended, or fork."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from trace_files import LIMIT_SECONDS, counter_ids, segments, wait_until

PRELUDE = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from trace_files import payload, trace_settings
from forwardpass.trace.registry import TraceRegistry
from forwardpass.wire.keys import Endpoint

folder = Path(sys.argv[1])
registry = TraceRegistry(trace_settings(folder, queue_capacity=100_000))
handle = registry.acquire("77", Endpoint())

def say(word):
    print(word, flush=True)
"""


def start(folder: Path, script: str) -> subprocess.Popen[str]:
    """Start a process that records below ``folder``."""
    code = PRELUDE + textwrap.dedent(script)
    return subprocess.Popen(
        [
            sys.executable,
            *("-W", "error"),
            *("-W", "ignore:This process:DeprecationWarning"),  # newer Pythons warn of forks beside threads
            *("-c", code, str(folder), str(Path(__file__).parent)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> list[str]:
    """Wait for the end and return the words it said; its stderr must be empty and its exit code ``code``."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    assert err == ""
    assert process.returncode == code
    return out.split()


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("sys.exit(3)", 3), ("raise SystemExit", 0)])
def test_nothing_accepted_is_lost_at_exit(tmp_path: Path, ending: str, code: int) -> None:
    """TRACE-53, D-28: a process that ends without releasing its handle still writes every accepted row."""
    process = start(
        tmp_path,
        f"""
        for counter in range(5000):
            assert handle.offer(payload(counter))
        {ending}
        """,
    )
    finish(process, code)

    assert counter_ids(tmp_path) == list(range(5000))


def test_a_forgotten_trace_is_written_at_exit(tmp_path: Path) -> None:
    """D-28: even if neither the handle nor the registry is referenced any more."""
    process = start(
        tmp_path,
        """
        import gc
        for counter in range(100):
            handle.offer(payload(counter))
        del handle, registry
        gc.collect()
        """,
    )
    finish(process)

    assert counter_ids(tmp_path) == list(range(100))


HANDLERS = {
    "release": "handle.release(); os._exit(0)",
    "exit": "sys.exit(0)",
    "release and exit": "handle.release(); handle.release(); sys.exit(0)",
    "close": "registry.close(); os._exit(0)",
}


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("busy", ["handle.offer(payload(counter))", "handle.offer_many([payload(counter)])"])
def test_a_signal_in_the_middle_of_an_offer_loses_nothing(tmp_path: Path, handler: str, busy: str) -> None:
    """D-28: a handler of SIGTERM that closes the trace, or just exits, loses no row accepted before it,
    wherever in an offer it interrupts."""
    process = start(
        tmp_path,
        f"""
        accepted = []
        def on_term(number, frame):
            say(len(accepted))
            {HANDLERS[handler]}
        signal.signal(signal.SIGTERM, on_term)
        say("ready")
        counter = 0
        while True:
            if {busy}:
                accepted.append(counter)
            counter += 1
            if counter % 500 == 0:
                time.sleep(0.005)
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    wait_until(lambda: bool(segments(tmp_path)))
    process.send_signal(signal.SIGTERM)
    (accepted,) = finish(process)

    found = counter_ids(tmp_path)
    assert found == list(range(len(found)))
    assert int(accepted) <= len(found) <= int(accepted) + 1


@pytest.mark.parametrize("handler", HANDLERS)
@pytest.mark.parametrize("function", ["offer", "offer_many"])
def test_a_signal_while_the_lock_is_held(tmp_path: Path, handler: str, function: str) -> None:
    """D-28: a handler that runs while its own thread holds the sink's lock does not wait for it."""
    arguments = "payload(counter)" if function == "offer" else "[payload(counter)]"
    process = start(
        tmp_path,
        f"""
        signal.alarm(20)
        accepted = []
        def on_term(number, frame):
            say(len(accepted))
            {HANDLERS[handler]}
        signal.signal(signal.SIGTERM, on_term)
        def strike(frame, event, argument):
            code = frame.f_code
            if event == "call" and code.co_name == "{function}" and code.co_filename.endswith("pump.py"):
                if len(accepted) == 1000:
                    sys.setprofile(None)
                    os.kill(os.getpid(), signal.SIGTERM)
        sys.setprofile(strike)
        for counter in range(2000):
            if handle.{function}({arguments}):
                accepted.append(counter)
        """,
    )
    (accepted,) = finish(process)

    assert accepted == "1000"
    assert counter_ids(tmp_path)[:1000] == list(range(1000))


def test_a_signal_in_the_middle_of_a_close_loses_nothing(tmp_path: Path) -> None:
    """D-28: a second signal while the first one's close drains neither hangs nor loses rows."""
    process = start(
        tmp_path,
        """
        def on_term(number, frame):
            say("closing")
            handle.release()
            sys.exit(0)
        signal.signal(signal.SIGTERM, on_term)
        for _ in range(20):
            handle.offer_many([payload(counter) for counter in range(4000)])
        say("ready")
        handle.release()
        say("released")
        """,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    finish(process)

    assert len(counter_ids(tmp_path)) == 80_000


def test_a_killed_process_loses_at_most_the_last_second(tmp_path: Path) -> None:
    """TRACE-41: after SIGKILL the files are intact, and hold every row older than the last flush interval."""
    process = start(
        tmp_path,
        """
        say("ready")
        counter = 0
        while True:
            begin = time.monotonic()
            handle.offer(payload(counter))
            say(f"{counter} {time.monotonic()}")
            counter += 1
            time.sleep(0.01)
        """,
    )
    assert process.stdout is not None
    offered: dict[int, float] = {}
    assert process.stdout.readline() == "ready\n"
    while len(offered) < 250:
        counter, moment = process.stdout.readline().split()
        offered[int(counter)] = float(moment)
    process.kill()
    rest, _ = process.communicate(timeout=LIMIT_SECONDS)
    for line in rest.splitlines():
        counter, _, moment = line.partition(" ")
        if moment:
            offered[int(counter)] = float(moment)

    found = counter_ids(tmp_path)
    last_moment = max(offered.values())
    old = [counter for counter, moment in offered.items() if last_moment - moment > 1.5]
    assert found == list(range(len(found)))
    assert len(old) > 50
    assert set(old) <= set(found)


def test_a_forked_child_has_files_of_its_own(tmp_path: Path) -> None:
    """After a fork the child never writes to its parent's segment, although it inherited the open file: it
    begins with an empty batch and its own next index, and its counts begin at zero."""
    process = start(
        tmp_path,
        """
        for counter in range(10):
            handle.offer(payload(counter))
        while handle.counts().written < 5:
            time.sleep(0.01)
        for counter in range(10, 20):
            handle.offer(payload(counter))
        child = os.fork()
        if child == 0:
            assert (handle.counts().offered, handle.counts().written, handle.files()) == (0, 0, ())
            for counter in range(100, 110):
                assert handle.offer(payload(counter))
            handle.release()
            assert handle.counts().written == 10
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        for counter in range(20, 30):
            handle.offer(payload(counter))
        handle.release()
        assert handle.counts().written == 30
        """,
    )
    finish(process)

    first, second = segments(tmp_path)
    assert counter_ids_of(first) == list(range(30))
    assert counter_ids_of(second) == list(range(100, 110))


def test_a_forked_child_that_exits_leaves_the_trace_alone(tmp_path: Path) -> None:
    """A child that never offers writes nothing, closes nothing, and its exit does not wait."""
    process = start(
        tmp_path,
        """
        for counter in range(10):
            handle.offer(payload(counter))
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        handle.release()
        """,
    )
    finish(process)

    assert len(segments(tmp_path)) == 1
    assert counter_ids(tmp_path) == list(range(10))


def test_a_fork_while_others_hold_the_locks(tmp_path: Path) -> None:
    """A child forked while other threads offer and acquire can offer, acquire and release at once."""
    process = start(
        tmp_path,
        """
        import logging, threading
        stop = threading.Event()
        sys.setswitchinterval(1e-5)
        logging.disable(logging.CRITICAL)  # the queue overflows, so that offers hold their lock for long
        many = [payload(1)] * 120_000
        def offer():
            while not stop.is_set():
                handle.offer_many(many)
        def acquire():
            while not stop.is_set():
                registry.acquire("77", Endpoint()).release()
        threads = [threading.Thread(target=work) for work in (offer, offer, acquire)]
        for thread in threads:
            thread.start()
        for round_number in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                other = registry.acquire("77", Endpoint())
                assert other.offer(payload(2))
                other.release()
                os._exit(0)
            status = os.waitpid(child, 0)[1]
            assert status == 0, status
        stop.set()
        for thread in threads:
            thread.join()
        """,
    )
    finish(process)

    assert segments(tmp_path)


def counter_ids_of(path: Path) -> list[int]:
    """Return the counters of one segment."""
    import gzip
    import json

    lines = gzip.decompress(path.read_bytes()).splitlines()
    return [json.loads(line)["event"]["fpm"]["counter_id"] for line in lines]
