"""Knows what each kind of fault does to a running rank, and when."""

from __future__ import annotations

from collections.abc import Callable

from forwardpass.engines.mock.cluster import TimedAction
from forwardpass.engines.mock.duplicate import DuplicatePublisher
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.faults import Fault, FaultKind
from forwardpass.engines.mock.garbage import garbage
from forwardpass.engines.mock.tamper import Tampering
from forwardpass.publish.publisher import Publisher

__all__ = ["fault_actions"]


def fault_actions(
    fault: Fault, engine: MockEngine, tampering: Tampering, open_second: Callable[[int], Publisher]
) -> list[TimedAction]:
    """Return what to do to ``engine`` and when.

    ``open_second(port)`` opens one more publisher for the rank. Effects on the publisher last until the
    rank restarts.
    """
    at, value = fault.at_seconds, fault.value
    match fault.kind:
        case FaultKind.PAUSE:
            return [
                (at, lambda now: engine.publisher.pause()),
                (at + value, lambda now: engine.publisher.resume()),
            ]
        case FaultKind.RESTART:
            return [(at, lambda now: engine.crash(now, value))]
        case FaultKind.LOST_FRAMES:
            return [(at, lambda now: tampering.lose(int(value)))]
        case FaultKind.SLOW_RANK:
            return [(at, lambda now: engine.slow_down(value))]
        case FaultKind.LONG_STEP:
            return [(at, lambda now: engine.stall(value))]
        case FaultKind.DUPLICATE_PUBLISHER:
            return [(at, lambda now: _duplicate(engine, open_second(int(value))))]
        case FaultKind.GARBAGE:
            return [(at, lambda now: tampering.replace(garbage(int(value))))]


def _duplicate(engine: MockEngine, second: Publisher) -> None:
    engine.publisher = DuplicatePublisher(engine.publisher, second)
