"""What a relay tells the ledger about its stream."""

from __future__ import annotations

from forwardpass.relay.witness import MAX_RESTARTS, STALL_SECONDS, Witness
from forwardpass.testing.clock import ManualClock
from forwardpass.trace.ledger import MAX_RANGES, CounterRange, EventKind, LedgerEvent
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.sequence import SequenceWatch


class Heard:
    """A witness with the sequence it watches, and what it told."""

    def __init__(self) -> None:
        self.events: list[LedgerEvent] = []
        self.witness = Witness("tcp://x:1", ManualClock(), self.events.append)
        self._watch = SequenceWatch()

    def batch(self, *numbers: int, connects: int = 1, payload: bytes | None = None) -> None:
        """Receive messages with these numbers."""
        payloads = [
            payload if payload is not None else encode(ForwardPassMetrics(worker_id="w", dp_rank=2))
            for _ in numbers
        ]
        self.witness.received(self._watch.note_many(numbers), payloads, connects)

    @property
    def kinds(self) -> list[EventKind]:
        """What was told, in order."""
        return [event.kind for event in self.events]


def test_numbers_in_order_are_nothing_to_tell() -> None:
    """LEDGER-08: Whole batches and the first one, whatever it begins with, make no event."""
    heard = Heard()
    heard.batch(5, 6, 7)
    heard.batch(8)

    assert heard.events == []


def test_a_gap_is_told_with_its_numbers_and_whose_it_is() -> None:
    """LEDGER-08: All gaps of a batch are one event: ranges, count, worker and rank."""
    heard = Heard()
    heard.batch(0, 1)
    heard.batch(5, 6, 9)

    (event,) = heard.events
    assert event.kind is EventKind.WIRE_GAP
    assert event.ranges == [CounterRange(2, 4), CounterRange(7, 8)]
    assert (event.count, event.worker_id, event.dp_rank, event.reconnected) == (5, "w", 2, False)


def test_a_gap_after_a_new_connection_says_so() -> None:
    """LEDGER-08: A connection made since the last message is what lost the numbers between."""
    heard = Heard()
    heard.batch(0, 1)
    heard.batch(5, connects=2)
    heard.batch(9, connects=2)

    assert [event.reconnected for event in heard.events] == [True, False]


def test_the_first_connection_is_no_new_one() -> None:
    """LEDGER-08: A relay that learns of its first connection late does not blame it for a gap."""
    heard = Heard()
    heard.batch(0, 1, connects=0)
    heard.batch(5, connects=1)

    assert [event.reconnected for event in heard.events] == [False]


def test_a_restart_is_told_with_both_numbers() -> None:
    """LEDGER-08: A number that went back is a restart; of very many in a batch the first are told."""
    heard = Heard()
    heard.batch(7, 8)
    heard.batch(0, 1)
    heard.batch(*[number for _ in range(MAX_RESTARTS + 3) for number in (5, 2)])

    first = heard.events[0]
    assert (first.kind, first.last, first.first, first.worker_id) == (EventKind.RESTART, 8, 0, "w")
    assert heard.kinds.count(EventKind.RESTART) == 1 + MAX_RESTARTS


def test_a_batch_of_gaps_lists_the_first_of_them() -> None:
    """LEDGER-07: Ranges are bounded, the count is not."""
    heard = Heard()
    heard.batch(0)
    heard.batch(*range(2, 2 + 3 * 2 * MAX_RANGES, 3))

    (event,) = heard.events
    assert len(event.ranges) == MAX_RANGES
    assert event.count == 1 + 2 * (2 * MAX_RANGES - 1)


def test_a_payload_that_cannot_be_read_has_no_owner() -> None:
    """LEDGER-08: The gap is told all the same."""
    heard = Heard()
    heard.batch(0)
    heard.batch(5, payload=b"not a message")

    assert [(event.count, event.worker_id, event.dp_rank) for event in heard.events] == [(4, None, None)]


def test_a_silence_is_told_when_it_ends() -> None:
    """LEDGER-08: A connected publisher that said nothing for seconds is told of with its next message; one
    that was not connected, or not listened to, is not.
    """
    heard = Heard()
    heard.witness.looked(True, 1)
    heard.witness.turned(0.0)
    heard.batch(0)
    for tick in range(1, 60):
        heard.witness.turned(tick * 0.25)
    heard.batch(1)
    heard.witness.turned(15.0)
    heard.batch(2)
    told = [event for event in heard.events if event.kind is EventKind.SILENT]
    heard.witness.turned(100.0)  # stood still itself
    heard.batch(3)
    heard.witness.looked(False, 1)
    for tick in range(401, 460):
        heard.witness.turned(tick * 0.25)
    heard.witness.looked(True, 2)
    heard.batch(4, connects=2)

    assert [(event.seconds, event.worker_id, event.dp_rank) for event in told] == [(14.75, "w", 2)]
    assert heard.kinds.count(EventKind.SILENT) == 1


def test_connections_failures_and_stalls_are_told_once() -> None:
    """LEDGER-08: Changes of the connection, failures of the socket, and a time in which nothing worked."""
    heard = Heard()
    for connected, connects in ((False, 0), (True, 1), (True, 1), (False, 1), (True, 2), (True, 3)):
        heard.witness.looked(connected, connects)
    heard.witness.failed()
    for now in (0.0, 0.25, 0.25 + STALL_SECONDS, 0.5 + STALL_SECONDS):
        heard.witness.turned(now)

    assert heard.kinds == [
        EventKind.CONNECTED, EventKind.DISCONNECTED, EventKind.CONNECTED,
        EventKind.DISCONNECTED, EventKind.CONNECTED,  # between two looks
        EventKind.RECEIVE_ERROR, EventKind.STALLED,
    ]  # fmt: skip
    assert heard.events[-1].seconds == STALL_SECONDS
