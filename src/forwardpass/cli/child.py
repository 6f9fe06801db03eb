"""Knows how to run a program as if it had been started directly: signals go in, its status comes out.

**Why the child has a process group of its own.** A terminal sends Ctrl-C to every process of the
foreground group. In one group the child would get it from the terminal, and a second time from us when
we pass on what we received; a server that takes a second SIGINT for "stop now" would drop its requests.
Nothing tells the two origins apart, so the child is put into a group that the terminal does not reach,
and every signal reaches it exactly once, from us. The price is job control, paid here: Ctrl-Z stops the
child's whole group before us, and waking us wakes it. The child may write to the terminal but not read
from it, which servers do not do.

Signals go to the child alone, not to its group: that is what an orchestrator does too, and servers stop
their workers in their own order.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from forwardpass.cli import bond

__all__ = ["SignalPasser", "bonded", "exit_status", "run_child"]

_ENDING = (signal.SIGINT, signal.SIGTERM)
"""Passed on even when they were ignored at our start, as in ``command &``: servers handle them anyway."""
_PASSED_ON = (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Passed on unless they were ignored at our start (``nohup``): then the child ignores them as well."""

_WOULD_END = (*_ENDING, signal.SIGHUP, signal.SIGQUIT)


class SignalPasser:
    """Passes this process's signals on to a child, for as long as the context is open.

    Signals from before the child exists are kept: one that asks to stop means that it is not started.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._early: list[signal.Signals] = []
        self._handled: list[signal.Signals] = []
        self.keep: Callable[[signal.Signals], bool] = lambda number: False
        """Says of a signal that has come whether it is dealt with otherwise, and not passed on."""

    def __enter__(self) -> SignalPasser:
        loop = asyncio.get_running_loop()
        for number in (*_ENDING, *_PASSED_ON):
            if number in _ENDING or signal.getsignal(number) is not signal.SIG_IGN:
                self._handle(loop, number)
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGTSTP, self._stop_both)
            loop.add_signal_handler(signal.SIGCONT, self._wake_child)
            self._handled += [signal.SIGTSTP, signal.SIGCONT]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in self._handled:
            loop.remove_signal_handler(number)

    def _handle(self, loop: asyncio.AbstractEventLoop, number: signal.Signals) -> None:
        loop.add_signal_handler(number, self._take, number)
        self._handled.append(number)

    def _take(self, number: signal.Signals) -> None:
        if not self.keep(number):
            self.pass_on(number)

    @property
    def stop_asked(self) -> signal.Signals | None:
        """The first signal that arrived before there was a child and would have ended it."""
        return next((number for number in self._early if number in _WOULD_END), None)

    def attach(self, process: asyncio.subprocess.Process) -> None:
        """Pass on to ``process`` from now on, first what arrived already."""
        self._process = process
        for number in self._early:
            self.pass_on(number)
        self._early.clear()

    def pass_on(self, number: signal.Signals) -> None:
        """Send a signal to the child, now or as soon as there is one."""
        process = self._process
        if process is None:
            self._early.append(number)
        elif process.returncode is None:
            # Not process.send_signal: it may reap the child, and the event loop would then report 255.
            _quietly(lambda signum: os.kill(process.pid, signum), number)

    def _stop_both(self) -> None:
        self._signal_group(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGSTOP)

    def _wake_child(self) -> None:
        self._signal_group(signal.SIGCONT)

    def _signal_group(self, number: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            _quietly(lambda signum: os.killpg(process.pid, signum), number)


async def run_child(command: Sequence[str], environment: Mapping[str, str], signals: SignalPasser) -> int:
    """Run ``command`` to its end, streams inherited, and return its status as a shell gives it.

    The child gets SIGTERM if this process dies without ending it. Raises ``OSError`` if it cannot be
    started at all.
    """
    if signals.stop_asked is not None:
        return 128 + signals.stop_asked
    process = await asyncio.create_subprocess_exec(*bonded(command), env=dict(environment), process_group=0)
    signals.attach(process)
    return exit_status(await process.wait())


def bonded(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command that becomes ``command`` and gets SIGTERM when this process dies."""
    return (sys.executable, "-I", "-S", str(Path(bond.__file__)), str(os.getpid()), *command)


def exit_status(returncode: int) -> int:
    """Return what a shell would report: 128 + n for a child that signal n ended."""
    return returncode if returncode >= 0 else 128 - returncode


def _quietly(send: Callable[[int], None], number: signal.Signals) -> None:
    """Send a signal to a process that may have ended a moment ago."""
    try:
        send(number)
    except ProcessLookupError:
        return
