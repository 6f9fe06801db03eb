"""One relay, turn by turn, with a source that says what the test wants."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest

from forwardpass.errors import FrameError
from forwardpass.relay.outbox import Outbox
from forwardpass.relay.relay import PayloadHook, Relay
from forwardpass.relay.targets import RelayTarget
from forwardpass.relay.zmq_source import Batch
from forwardpass.testing.clock import ManualClock
from forwardpass.trace.ledger import LedgerEvent
from forwardpass.wire.frames import Frames

URL = "tcp://127.0.0.1:20380"


def batch(*messages: tuple[int, bytes], bad: int = 0) -> Batch:
    """Return a batch of (sequence, payload), and ``bad`` messages with wrong frames."""
    made = Batch()
    for seq, payload in messages:
        made.sequence_frames.append(seq.to_bytes(8, "big"))
        made.payloads.append(payload)
    made.bad = [FrameError("expected 3 frames, got 1", 1)] * bad
    return made


class ScriptedSource:
    """Gives one scripted outcome per call, then nothing."""

    def __init__(self, *script: Batch | Exception) -> None:
        self.connects = 1
        self.connected = True
        self.descriptor: int | None = None
        self.reopened = 0
        self.closed = False
        self._script = list(script)

    def receive_many(self, limit: int) -> Batch:
        outcome = self._script.pop(0) if self._script else Batch()
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def look(self) -> None:
        pass

    def reopen(self) -> None:
        self.reopened += 1

    def close(self) -> None:
        self.closed = True


class ListTrace:
    """Keeps what it is offered, up to a number of payloads."""

    def __init__(self, accepts: int = 10**9) -> None:
        self.offers: list[tuple[bytes, int | None]] = []
        self._accepts = accepts

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        taken = payloads[: self.room()]
        self.offers += [(payload, observed_unix_ms) for payload in taken]
        return len(taken)

    def note(self, event: LedgerEvent) -> None:
        """Not of interest here."""

    def room(self) -> int:
        return self._accepts - len(self.offers)


class BrokenTrace(ListTrace):
    """Raises, which no trace should."""

    def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
        raise RuntimeError("trace bug")


class RecordingOutbox(Outbox):
    """Only notes what is put; it has no event loop."""

    def __init__(self, order: list[str] | None = None) -> None:
        self.put: list[bytes] = []
        self._order = order if order is not None else []

    def put_many(self, payloads: Sequence[bytes]) -> None:
        self._order.append("plane")
        self.put += payloads


def make(
    source: ScriptedSource,
    trace: ListTrace | None = None,
    outbox: Outbox | None = None,
    on_payload: PayloadHook | None = None,
) -> Relay:
    """Return a relay at a clock that stands still."""
    clock = ManualClock(unix_ms=5000)
    return Relay(RelayTarget(URL, 3), source, clock=clock, trace=trace, outbox=outbox, on_payload=on_payload)


def test_payloads_pass_untouched_to_trace_and_plane() -> None:
    """RELAY-02, RELAY-03, WIRE-16: Whatever the bytes are, both get them as they came, in order, with the
    time of the drain.
    """
    payloads = [b"", b"garbage", b"\x87\x00"]
    trace, outbox = ListTrace(), RecordingOutbox()
    relay = make(ScriptedSource(batch(*enumerate(payloads))), trace, outbox)

    assert relay.turn(0.0, 100) == 3
    assert trace.offers == [(payload, 5000) for payload in payloads]
    assert outbox.put == payloads


def test_trace_comes_first() -> None:
    """RELAY-03: A payload is offered to the trace before the plane gets it."""
    order: list[str] = []

    class OrderedTrace(ListTrace):
        def offer_many(self, payloads: Sequence[bytes], observed_unix_ms: int | None = None) -> int:
            order.append("trace")
            return len(payloads)

    make(ScriptedSource(batch((0, b"x"))), OrderedTrace(), RecordingOutbox(order)).turn(0.0, 1)

    assert order == ["trace", "plane"]


def test_without_trace_and_plane() -> None:
    """A relay without a trace and without a plane only counts."""
    relay = make(ScriptedSource(batch((0, b"abc"), (1, b"de"))))
    relay.turn(0.0, 10)
    stats = relay.stats()

    assert (stats.received, stats.bytes, stats.trace_refused, stats.plane) == (2, 5, 0, None)


def test_stats() -> None:
    """RELAY-07: Every fact about the stream is counted."""
    source = ScriptedSource(batch((5, b"a"), (8, b"b"), bad=2), batch((0, b"c")))
    source.connects = 3
    relay = make(source, ListTrace(accepts=2))
    relay.turn(0.0, 10)
    relay.turn(0.1, 10)
    stats = relay.stats()

    assert (stats.url, stats.dp_rank) == (URL, 3)
    assert (stats.received, stats.bytes, stats.bad_frames) == (3, 3, 2)
    assert (stats.gaps, stats.lost, stats.restarts) == (1, 2, 1)
    assert (stats.trace_refused, stats.last_received_unix_ms) == (1, 5000)
    assert (stats.connected, stats.reconnects, stats.receive_errors) == (True, 2, 0)


def test_nothing_received_yet() -> None:
    """A stream that never spoke has no last time."""
    relay = make(ScriptedSource())

    assert relay.turn(0.0, 10) == 0
    assert relay.stats().last_received_unix_ms is None


def test_a_failed_receive_is_tried_again_with_growing_waits(caplog: pytest.LogCaptureFixture) -> None:
    """RELAY-04: A broken socket is made anew after 0.1 s, 0.2 s, …; a message resets the wait (D-19)."""
    source = ScriptedSource(OSError("broken"), OSError("still"), batch((0, b"x")), OSError("again"))
    relay = make(source)
    relay.turn(10.0, 1)
    relay.turn(10.09, 1)
    assert source.reopened == 0
    relay.turn(10.1, 1)
    assert source.reopened == 1
    relay.turn(10.2, 1)
    assert source.reopened == 1
    assert relay.turn(10.31, 1) == 1
    assert source.reopened == 2
    relay.turn(11.0, 1)
    relay.turn(11.05, 1)
    assert source.reopened == 2
    relay.turn(11.11, 1)

    assert source.reopened == 3
    assert relay.stats().receive_errors == 3
    assert len(caplog.records) == 1


def test_reopening_may_fail_too() -> None:
    """A reopen that fails counts as another failure and is tried again."""
    source = ScriptedSource(OSError("broken"))

    def fail() -> None:
        raise OSError("no descriptors left")

    source.reopen = fail  # type: ignore[method-assign]
    relay = make(source)
    for now in (0.0, 0.2, 0.5, 9.0):
        assert relay.turn(now, 1) == 0

    assert relay.stats().receive_errors == 4


def test_a_bug_does_not_escape(caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a source raises, a turn ends normally and says so."""
    relay = make(ScriptedSource(ZeroDivisionError("bug"), batch((0, b"x"))))

    assert relay.turn(0.0, 1) == 0
    assert relay.turn(1.0, 1) == 1
    assert any(record.levelno == logging.ERROR for record in caplog.records)


def test_a_broken_trace_does_not_take_the_plane_with_it() -> None:
    """RELAY-03: The plane gets its payloads even when the trace raises."""
    outbox = RecordingOutbox()
    make(ScriptedSource(batch((0, b"x"))), BrokenTrace(), outbox).turn(0.0, 1)

    assert outbox.put == [b"x"]


def test_bad_frames_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """RELAY-02: A thousand bad messages are one log line and a count."""
    relay = make(ScriptedSource(*[batch(bad=10)] * 100))
    for turn in range(100):
        relay.turn(turn / 100, 10)

    assert relay.stats().bad_frames == 1000
    assert len(caplog.records) == 1


def test_hook_sees_every_message_after_the_trace() -> None:
    """A live view gets the stream's rank and the message, once the trace was offered it."""
    trace = ListTrace()
    seen: list[tuple[int | None, Frames, int]] = []
    relay = make(
        ScriptedSource(batch((4, b"a"), (5, b"b"))),
        trace,
        on_payload=lambda rank, frames: seen.append((rank, frames, len(trace.offers))),
    )
    relay.turn(0.0, 10)

    assert seen == [(3, Frames(b"", 4, b"a"), 2), (3, Frames(b"", 5, b"b"), 2)]


def test_a_broken_hook_costs_nothing() -> None:
    """A live view that raises does not stop the recording."""

    def fail(rank: int | None, frames: Frames) -> None:
        raise ValueError("view bug")

    trace = ListTrace()
    relay = make(ScriptedSource(batch((0, b"a")), batch((1, b"b"))), trace, on_payload=fail)

    assert relay.turn(0.0, 10) == 1
    assert relay.turn(0.1, 10) == 1
    assert len(trace.offers) == 2
    assert relay.stats().receive_errors == 0


def test_close_releases_the_socket() -> None:
    """Closing a relay closes its source."""
    source = ScriptedSource()
    make(source).close()

    assert source.closed
