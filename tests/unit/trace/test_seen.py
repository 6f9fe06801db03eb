"""Messages that were seen are told from those that were not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.trace.record import MessageId
from forwardpass.trace.seen import SeenMessages


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30)), max_size=200))
def test_it_is_a_set(messages: list[tuple[int, int]]) -> None:
    """COLLECT-05: In any order, each message is new once, and is kept in as few runs as there can be."""
    seen, expected = SeenMessages(), set()
    for publisher, sequence in messages:
        is_new = seen.add(MessageId(publisher, sequence))

        assert is_new == ((publisher, sequence) not in expected)
        expected.add((publisher, sequence))
    firsts = {(publisher, sequence) for publisher, sequence in expected} - {
        (publisher, sequence + 1) for publisher, sequence in expected
    }

    assert seen.runs() == len(firsts)


def test_memory_is_that_of_the_publishers() -> None:
    """COLLECT-05: 100,000 messages of ten publishers, every second one late, end as ten runs."""
    seen = SeenMessages()
    for parity in (1, 0):
        for number in range(parity, 10_000, 2):
            for publisher in range(10):
                assert seen.add(MessageId(publisher, number))

    assert seen.runs() == 10
