"""The latest messages are remembered, and no more."""

from __future__ import annotations

from forwardpass.collect.recent import RecentMessages
from forwardpass.trace.record import MessageId


def test_the_oldest_are_forgotten() -> None:
    """COLLECT-06: Beyond the capacity the message that was added first goes first."""
    recent = RecentMessages(capacity=3)
    recent.add(MessageId(1, number) for number in range(5))

    assert len(recent) == 3
    assert [MessageId(1, number) in recent for number in range(5)] == [False, False, True, True, True]
    assert MessageId(2, 4) not in recent
