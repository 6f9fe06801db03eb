"""What all tests need of the process that they run in."""

from __future__ import annotations

import signal


def hear(number: signal.Signals) -> None:
    """Let ``number`` do what it usually does: a shell's background job and ``nohup`` start programs that
    ignore it, and so would every program that a test starts and interrupts.
    """
    if signal.getsignal(number) is signal.SIG_IGN:
        usual = signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL
        signal.signal(number, usual)


for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
    hear(_number)
