"""Running a program as a child: signals go in exactly once, its status comes out, nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

PARENT = """
import asyncio, os, signal, sys
from forwardpass.cli.child import SignalPasser, run_child

async def main():
    with SignalPasser() as signals:
        return await run_child(sys.argv[1:], dict(os.environ), signals)

sys.exit(asyncio.run(main()))
"""

# Notes its pid and every signal it gets; SIGTERM ends it with status 7 after a moment.
CHILD = """
import os, signal, sys, time
log = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(number, frame):  # may interrupt itself: no buffer
    os.write(log, signal.Signals(number).name.encode() + b"\\n")
    if number == signal.SIGTERM:
        time.sleep(0.1)
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
               signal.SIGCONT):
    signal.signal(number, note)
os.write(log, f"pid {os.getpid()}\\n".encode())
while True:
    time.sleep(0.05)
"""


class Family:
    """A parent under test and the child it started."""

    def __init__(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        self.log = log
        self.process = process
        self.child_pid = int(self.wait_for(lambda lines: lines[0].split()[1] if lines else None))

    def lines(self) -> list[str]:
        """Return what the child noted."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def wait_for(self, found: Callable[[list[str]], str | None], seconds: float = 20.0) -> str:
        """Return ``found(lines)`` once it is not None."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = found(self.lines())
            if value is not None:
                return value
            time.sleep(0.02)
        raise AssertionError(f"not seen within {seconds} s; the child noted {self.lines()}")

    def wait_for_line(self, line: str) -> None:
        """Wait until the child noted ``line``."""
        self.wait_for(lambda lines: line if line in lines else None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Family]]:
    """Return a function that starts the family; whatever is left of it is killed at the end."""
    families: list[Family] = []

    def begin(**options: object) -> Family:
        log = tmp_path / "child.log"
        command = [sys.executable, "-c", PARENT, sys.executable, "-c", CHILD, str(log)]
        process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
        families.append(Family(log, process))
        return families[-1]

    yield begin
    for family in families:
        family.process.kill()
        family.process.wait(10)
        if alive(family.child_pid):
            os.kill(family.child_pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Say whether a process exists and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def state(pid: int) -> str:
    """Return the kernel's letter for a process: T is stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    """Wait until ``condition()`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def run(*command: str) -> int:
    """Run a command through the parent and return the parent's status."""
    return subprocess.run([sys.executable, "-c", PARENT, *command], timeout=60, check=False).returncode


@pytest.mark.parametrize("status", [0, 1, 3, 42])
def test_the_status_of_the_child_is_ours(status: int) -> None:
    """A child that exits is mirrored."""
    assert run(sys.executable, "-c", f"import sys; sys.exit({status})") == status


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_child_that_a_signal_ended_gives_the_status_of_a_shell(number: signal.Signals) -> None:
    """128 + n, as ``sh`` reports it."""
    no_core = "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))"
    code = f"{no_core}; import os; os.kill(os.getpid(), {int(number)})"

    assert run(sys.executable, "-c", code) == 128 + number


def test_a_program_that_does_not_exist_gives_the_status_of_a_shell() -> None:
    """127, as ``sh`` reports a command that was not found."""
    assert run("/nonexistent/program") == 127


def test_streams_are_inherited() -> None:
    """The child reads our input and writes our output."""
    code = "import sys; sys.stdout.write(sys.stdin.read().upper()); sys.stderr.write('words')"
    done = subprocess.run(
        [sys.executable, "-c", PARENT, sys.executable, "-c", code],
        input=b"data",
        capture_output=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == (b"DATA", b"words")


def test_each_signal_reaches_the_child_once(start: Callable[..., Family]) -> None:
    """What a supervisor sends to us is passed on, once each, and the child decides what it means."""
    family = start(start_new_session=True)
    sent = ["SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGTERM"]
    for name in sent:
        family.process.send_signal(signal.Signals[name])
        family.wait_for_line(name)

    assert family.process.wait(20) == 7
    assert family.lines()[1:] == sent


EARLY = PARENT.replace(
    "return await", "os.kill(os.getpid(), int(sys.argv.pop(1))); await asyncio.sleep(0.1); return await"
)
"""A parent that gets a signal while it still prepares."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT])
def test_who_is_stopped_while_preparing_starts_no_child(tmp_path: Path, number: signal.Signals) -> None:
    """A stop before there is a child is obeyed: nothing is started, and the status is the signal's."""
    code = f"open({str(tmp_path / 'started')!r}, 'w')"
    status = subprocess.run(
        [sys.executable, "-c", EARLY, str(int(number)), sys.executable, "-c", code], timeout=60, check=False
    ).returncode

    assert status == 128 + number
    assert not (tmp_path / "started").exists()


def test_a_signal_from_before_the_child_reaches_it() -> None:
    """One that asks for no stop is kept until there is somebody to pass it on to, and does there what it
    would have done to a server started directly: end it, as long as nothing handles it.
    """
    command = [sys.executable, "-c", "import time; time.sleep(20)"]
    status = subprocess.run(
        [sys.executable, "-c", EARLY, str(int(signal.SIGUSR1)), *command], timeout=60, check=False
    ).returncode

    assert status == 128 + signal.SIGUSR1


def test_ctrl_c_in_a_terminal_reaches_the_child_once() -> None:
    """The terminal signals the foreground group, where the child is not: only we pass it on."""
    code = (
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        "print('up', flush=True)\n"
        "end = time.monotonic() + 20\n"
        "while not count and time.monotonic() < end: time.sleep(0.05)\n"
        "time.sleep(0.5)\n"  # a second one would come now
        "print('interrupts', len(count), flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", PARENT, sys.executable, "-c", code])
    output = b""
    try:
        while b"up" not in output:
            output += os.read(terminal, 1024)
        os.write(terminal, b"\x03")
        with contextlib.suppress(OSError):  # EIO: both have ended, and nobody has the terminal any more
            while True:
                output += os.read(terminal, 1024)
        _, status = os.waitpid(pid, 0)
    finally:
        os.close(terminal)  # hangs up whoever is left

    assert b"interrupts 1" in output
    assert os.waitstatus_to_exitcode(status) == 0


def test_nohup_holds_for_the_child(start: Callable[..., Family]) -> None:
    """A hang-up that was ignored at our start is ignored by us, and not passed on."""
    family = start(start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    family.process.send_signal(signal.SIGHUP)
    family.process.send_signal(signal.SIGUSR1)
    family.wait_for_line("SIGUSR1")

    assert "SIGHUP" not in family.lines()


def test_stop_and_continue_take_the_child_along(start: Callable[..., Family]) -> None:
    """Ctrl-Z stops the child and then us; waking us wakes it, as job control would for one group."""
    family = start(process_group=0)
    family.process.send_signal(signal.SIGTSTP)
    wait_until(lambda: state(family.process.pid) == "T" and state(family.child_pid) == "T")
    family.process.send_signal(signal.SIGCONT)
    family.wait_for_line("SIGCONT")

    assert state(family.child_pid) != "T"


def test_a_parent_that_is_killed_takes_the_child_down(start: Callable[..., Family]) -> None:
    """SIGKILL cannot be passed on; the kernel then sends the child SIGTERM, so it does not stay behind."""
    family = start(start_new_session=True)
    family.process.kill()
    family.process.wait(20)
    family.wait_for_line("SIGTERM")
    wait_until(lambda: not alive(family.child_pid))

    assert set(family.lines()[1:]) == {"SIGTERM"}  # the kernel repeats it for each thread of ours that dies


def test_a_stop_that_comes_before_the_child_starts_nothing(tmp_path: Path) -> None:
    """SIGTERM during our own start ends us; the child is not started only to be stopped."""
    early = PARENT.replace(
        "        return await run_child",
        "        os.kill(os.getpid(), 15)\n        await asyncio.sleep(0.05)\n        return await run_child",
    )
    marker = tmp_path / "started"
    code = f"open({str(marker)!r}, 'w')"
    done = subprocess.run([sys.executable, "-c", early, sys.executable, "-c", code], timeout=60, check=False)

    assert done.returncode == 128 + signal.SIGTERM
    assert not marker.exists()
