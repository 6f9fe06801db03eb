"""When a recorder beside an engine ends."""

from __future__ import annotations

from forwardpass.cli.companion import GRACE_SECONDS, Ending
from forwardpass.testing.clock import ManualClock


def test_it_ends_when_it_is_asked() -> None:
    """ENG-46: The engine's process asks for it at its own exit."""
    ending = Ending(7, ManualClock(), lambda: 7)
    assert not ending.due

    ending.ask()

    assert ending.due


def test_it_ends_when_its_parent_is_gone() -> None:
    """ENG-46: A process whose parent died belongs to another one."""
    parents = [7, 1]
    ending = Ending(7, ManualClock(), lambda: parents[0])
    assert not ending.due

    del parents[0]

    assert ending.due


def test_a_termination_waits_for_the_engine() -> None:
    """ENG-46: A service manager terminates all processes at once; the engine's last passes are waited for."""
    clock = ManualClock()
    ending = Ending(7, clock, lambda: 7)
    ending.terminate()
    clock.advance(GRACE_SECONDS - 1)
    ending.terminate()
    assert not ending.due

    clock.advance(1)

    assert ending.due
