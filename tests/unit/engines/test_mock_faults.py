"""Faults: how they are written, what is garbage, what happens on the way to the socket."""

import pytest

from forwardpass.counters import DropReason
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.fault_actions import fault_actions
from forwardpass.engines.mock.faults import FAULTS, Fault, FaultKind, check_ranks, parse_fault
from forwardpass.engines.mock.garbage import garbage
from forwardpass.engines.mock.tamper import TamperedSocket, Tampering
from forwardpass.errors import ConfigError, WireError
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.codec import decode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics
from forwardpass.wire.validate import validate_payload


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("slow-rank=1:3.0@5s", Fault(FaultKind.SLOW_RANK, 1, 3.0, 5.0)),
        ("slow-rank=1@5", Fault(FaultKind.SLOW_RANK, 1, 3.0, 5.0)),
        (" pause=0:0.5@1.25s ", Fault(FaultKind.PAUSE, 0, 0.5, 1.25)),
        ("restart=0@2s", Fault(FaultKind.RESTART, 0, 1.0, 2.0)),
        ("lost-frames=12:7@0s", Fault(FaultKind.LOST_FRAMES, 12, 7.0, 0.0)),
        ("long-step=0:1.5@3s", Fault(FaultKind.LONG_STEP, 0, 1.5, 3.0)),
        ("duplicate-publisher=0:20999@3s", Fault(FaultKind.DUPLICATE_PUBLISHER, 0, 20999.0, 3.0)),
        ("garbage=1@3s", Fault(FaultKind.GARBAGE, 1, 9.0, 3.0)),
    ],
)
def test_faults_are_read_as_they_are_written(text, fault):
    """KIND=RANK[:VALUE]@SECONDSs; the value has a default where one makes sense."""
    assert parse_fault(text) == fault


@pytest.mark.parametrize(
    ("text", "accepted"),
    [
        ("", "KIND=RANK"),
        ("slow-rank", "KIND=RANK"),
        ("slow-rank=1:3.0", "KIND=RANK"),
        ("slow-rank=-1@5s", "KIND=RANK"),
        ("slow-rank=1:x@5s", "KIND=RANK"),
        ("slow-rank=1:nan@5s", "KIND=RANK"),
        ("slow-rank=1:3.0@5m", "KIND=RANK"),
        ("slow=1@5s", "pause, restart, lost-frames"),
        ("slow-rank=1:0@5s", "a number from 0.01 to 1000"),
        ("lost-frames=0:1.5@5s", "a whole number from 1"),
        ("duplicate-publisher=0@5s", "a whole number from 1024"),
        ("duplicate-publisher=0:80@5s", "a whole number from 1024"),
    ],
)
def test_a_wrong_fault_is_refused_with_what_would_be_accepted(text, accepted):
    """One error that names the option, the text and the accepted form."""
    with pytest.raises(ConfigError) as caught:
        parse_fault(text)

    assert caught.value.variable == "--fault"
    assert caught.value.value == text
    assert accepted in caught.value.accepted


def test_a_fault_of_a_missing_rank_is_refused():
    """Rank 2 of two ranks does not exist."""
    with pytest.raises(ConfigError):
        check_ranks([parse_fault("pause=2@1s")], 2)


def test_every_kind_is_described():
    """ENG-22: The table that help texts come from has a row for each kind."""
    assert set(FAULTS) == set(FaultKind)


def test_no_garbage_is_a_valid_payload():
    """The strict validation refuses each kind, and the tolerant decoder raises for none."""
    for payload in garbage(20):
        with pytest.raises(WireError):
            validate_payload(payload)
        decode(payload)


class ListSocket:
    """A socket that keeps what it was sent."""

    def __init__(self):
        self.sent = []
        self.closed_with = None
        self.forgotten = False

    def open(self):
        return 4711

    def send(self, seq, payload):
        self.sent.append((seq, payload))
        return DropReason.SOCKET_FULL if payload == b"full" else None

    def close(self, linger_seconds):
        self.closed_with = linger_seconds

    def forget(self):
        self.forgotten = True


def test_lost_and_replaced_messages_keep_their_place():
    """Losing leaves a gap, garbage stands under the number of the message it replaced."""
    inner, tampering = ListSocket(), Tampering()
    socket = TamperedSocket(inner, tampering)
    tampering.lose(2)
    tampering.replace([b"junk"])
    results = [socket.send(seq, b"good") for seq in range(5)]

    assert results == [None] * 5
    assert inner.sent == [(2, b"junk"), (3, b"good"), (4, b"good")]
    assert tampering.pending == 0


def test_an_untouched_message_meets_the_real_socket():
    """What the socket says comes back, and opening, closing and forgetting go through."""
    inner = ListSocket()
    socket = TamperedSocket(inner, Tampering())
    socket.close(0.5)
    socket.forget()

    assert socket.send(0, b"full") is DropReason.SOCKET_FULL
    assert (socket.open(), inner.closed_with, inner.forgotten) == (4711, 0.5, True)


def actions(text, second=None):
    engine = MockEngine(MockConfig(), ListPublisher, ())
    tampering = Tampering()
    opened = []

    def open_second(port):
        opened.append(port)
        return second or ListPublisher()

    return engine, tampering, opened, fault_actions(parse_fault(text), engine, tampering, open_second)


def test_a_pause_ends_by_itself():
    """The publisher refuses between the two moments."""
    engine, _, _, todo = actions("pause=0:2@1s")

    assert [at for at, _ in todo] == [1.0, 3.0]

    todo[0][1](1.0)
    refused = engine.publisher.publish(ForwardPassMetrics())
    todo[1][1](3.0)

    assert (refused, engine.publisher.publish(ForwardPassMetrics())) == (False, True)


@pytest.mark.parametrize(("text", "pending"), [("lost-frames=0:3@1s", 3), ("garbage=0:5@1s", 5)])
def test_frame_faults_are_left_for_the_publisher_thread(text, pending):
    """The engine only says how many messages; the socket's thread does it."""
    _, tampering, _, todo = actions(text)
    todo[0][1](1.0)

    assert tampering.pending == pending


def test_a_duplicate_publisher_says_everything_again():
    """Both get every call; what is reported is the first one's."""
    second = ListPublisher()
    engine, _, opened, todo = actions("duplicate-publisher=0:20999@1s", second)
    first = engine.publisher
    todo[0][1](1.0)
    queued = QueuedRequestMetrics(num_prefill_requests=1)
    engine.publisher.publish(ForwardPassMetrics(wall_time=0.5))
    engine.publisher.note_queue(queued)
    engine.publisher.pause()
    accepted = engine.publisher.publish(ForwardPassMetrics())
    engine.publisher.resume()
    engine.publisher.set_worker_id("9")
    engine.publisher.publish(ForwardPassMetrics())

    assert opened == [20999]
    assert accepted is False
    assert [m.worker_id for m in first.messages] == [m.worker_id for m in second.messages] == ["list", "9"]
    assert first.queue_notes == second.queue_notes == [queued]
    assert engine.publisher.counts() == first.counts()
    assert engine.publisher.port is None

    engine.publisher.shutdown()

    assert (first.closed, second.closed) == (True, True)
