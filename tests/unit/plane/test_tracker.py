"""The latest message of every rank, with the clock of the test."""

from __future__ import annotations

import logging
import math

import msgpack
import msgspec
import pytest

from forwardpass.errors import ConfigError
from forwardpass.plane.base import PlaneMessage
from forwardpass.plane.losses import CounterLosses
from forwardpass.plane.tracker import PublisherLosses, Tracker, TrackerLimits
from forwardpass.plane.workers import WorkerEvent
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint, StreamKey
from forwardpass.wire.schema import ForwardPassMetrics

KEY = StreamKey("7", 0)


def payload(worker: str = "7", rank: int = 0, counter: int = 0) -> bytes:
    """Return a message of one rank."""
    return encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=counter, wall_time=0.1))


def message(data: bytes, publisher: int = 1, sequence: int = 0) -> PlaneMessage:
    """Return it as a plane delivers it."""
    return PlaneMessage(data, Endpoint(), publisher, sequence, 1_000, 2_000)


def tracker(*, require_known: bool = False, clock: ManualClock | None = None, **limits: int) -> Tracker:
    """Return a tracker that shows everybody, unless told otherwise."""
    return Tracker(require_known=require_known, clock=clock or ManualClock(), limits=TrackerLimits(**limits))


def test_the_latest_of_each_rank() -> None:
    """SUB-05: Of each (worker, rank) the payload that arrived last is shown, whatever its counter."""
    seen = tracker()
    for sequence, (worker, rank, counter) in enumerate(
        [("7", 0, 5), ("7", 1, 1), ("8", 0, 9), ("7", 0, 4), ("", 0, 3)]
    ):
        seen.note(message(payload(worker, rank, counter), sequence=sequence))

    assert seen.recent_stats() == {
        ("7", 0): payload("7", 0, 4),
        ("7", 1): payload("7", 1, 1),
        ("8", 0): payload("8", 0, 9),
        ("", 0): payload("", 0, 3),
    }


def test_an_entry_says_where_it_comes_from() -> None:
    """SUB-11: An entry has its payload, age, times, publisher, both numbers and what was lost before it."""
    clock = ManualClock()
    seen = tracker(clock=clock)
    for counter, sequence in ((0, 10), (3, 11), (4, 15)):
        seen.note(message(payload(counter=counter), publisher=99, sequence=sequence))
    clock.advance(2.5)
    entry = seen.recent()[KEY]

    assert entry.payload == payload(counter=4)
    assert entry.age_seconds == 2.5
    assert (entry.published_at_ms, entry.received_at_ms) == (1_000, 2_000)
    assert (entry.publisher_id, entry.sequence, entry.counter_id, entry.messages) == (99, 15, 4, 3)
    assert entry.counters == CounterLosses(2, 1, 0, 0, 0)
    assert entry.plane == PublisherLosses(3, 1, 0)
    assert entry.epoch == 0


def test_the_two_losses_are_independent() -> None:
    """SUB-12: What is lost before the relay shows in the counters alone, what is lost after it in both, and a
    publisher with two ranks has one sequence for both.
    """
    seen = tracker()
    seen.note(message(payload(rank=0, counter=0), sequence=0))
    seen.note(message(payload(rank=1, counter=0), sequence=1))
    seen.note(message(payload(rank=0, counter=5), sequence=2))  # four lost in the engine's socket
    seen.note(message(payload(rank=1, counter=1), sequence=9))  # six lost on the plane
    shown = seen.recent()

    assert shown[StreamKey("7", 0)].counters.missing == 4
    assert shown[StreamKey("7", 1)].counters.missing == 0
    assert {entry.plane.missing for entry in shown.values()} == {6}


def test_a_restart_and_a_counter_that_goes_back() -> None:
    """SUB-13: Another publisher counts as an epoch; a decrease behind the same one is told apart from it."""
    seen = tracker()
    seen.note(message(payload(counter=50), publisher=1))
    seen.note(message(payload(counter=0), publisher=1, sequence=1))
    before = seen.recent()[KEY]
    seen.note(message(payload(counter=0), publisher=2))
    after = seen.recent()[KEY]

    assert (before.epoch, before.counters.decreases) == (0, 1)
    assert (after.epoch, after.counters.decreases) == (1, 1)


def test_age_filter() -> None:
    """SUB-10: With an age only what is not older is shown; the clock is monotonic, a clock set back or on
    changes nothing.
    """
    clock = ManualClock()
    seen = tracker(clock=clock)
    seen.note(message(payload("old")))
    clock.advance(10)
    seen.note(message(payload("new")))
    clock.step_unix(-3600)
    clock.advance(1)

    assert set(seen.recent_stats()) == {("old", 0), ("new", 0)}
    assert set(seen.recent_stats(5)) == {("new", 0)}
    assert set(seen.recent(11)) == {("old", 0), ("new", 0)}
    assert seen.recent(0) == {}


@pytest.mark.parametrize("age", [-1, math.nan])
def test_an_age_that_is_none(age: float) -> None:
    """SUB-10: An age below 0 or that is no number is refused."""
    with pytest.raises(ConfigError) as caught:
        tracker().recent_stats(age)

    assert caught.value.variable == "max_age_s"


def test_only_registered_workers_are_shown() -> None:
    """SUB-06: A worker without a card is hidden and shown once it has one."""
    seen = tracker(require_known=True)
    seen.note(message(payload()))
    hidden = seen.recent_stats()
    seen.note_worker(WorkerEvent("7", '{"name":"m"}'))

    assert hidden == {}
    assert seen.recent_stats() == {("7", 0): payload()}
    assert seen.cards() == {"7": '{"name":"m"}'}


def test_a_worker_that_goes_and_comes_back() -> None:
    """SUB-07: The last card's removal forgets the worker and its entries; a message that comes late is
    hidden, and shown again when the worker registers again.
    """
    seen = tracker(require_known=True)
    seen.note_worker(WorkerEvent("7", "{}"))
    seen.note(message(payload(counter=1)))
    seen.note_worker(WorkerEvent("7", None))
    seen.note_worker(WorkerEvent("8", None))  # one that nobody knew
    removed = (seen.recent_stats(), seen.counts().streams)
    seen.note(message(payload(counter=2), sequence=1))
    late = seen.recent_stats()
    seen.note_worker(WorkerEvent("7", "{}"))

    assert removed == ({}, 0)
    assert late == {}
    assert seen.recent_stats() == {("7", 0): payload(counter=2)}


def test_a_new_watch_names_everybody_again() -> None:
    """SUB-06: After a failed watch nobody is known until the next one names them; nothing is forgotten."""
    seen = tracker(require_known=True)
    seen.note_worker(WorkerEvent("7", "{}"))
    seen.note(message(payload()))
    seen.forget_workers()
    between = seen.recent_stats()
    seen.note_worker(WorkerEvent("7", "{}"))

    assert between == {}
    assert seen.recent_stats() == {("7", 0): payload()}


@pytest.mark.parametrize(
    "data",
    [b"", b"junk", msgpack.packb(["7", 0]), msgpack.packb({"worker_id": "7"}), b"\x81\xa9worker_id\xc1"],
)
def test_what_has_no_key_is_counted(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """SUB-08: A message without a key is not held; it is counted, and said once with its size."""
    seen = tracker()
    with caplog.at_level(logging.WARNING):
        for sequence in range(3):
            seen.note(message(data, sequence=sequence))

    assert (seen.recent(), seen.counts().unkeyable) == ({}, 3)
    (record,) = caplog.records
    assert f"{len(data)} bytes" in record.message


def test_versions_that_nobody_knows_are_tracked() -> None:
    """SUB-08: A message of another version, or without a counter, is the latest of its rank all the same."""
    seen = tracker()
    other = msgpack.packb({"version": 2, "worker_id": "7", "dp_rank": 0, "counter_id": "five", "body": []})
    seen.note(message(other))
    entry = seen.recent()[KEY]

    assert (entry.payload, entry.counter_id) == (other, None)


def test_streams_are_bounded() -> None:
    """SUB-14: An impostor with ever new workers fills no memory: streams silent the longest go, counted."""
    seen = tracker(streams=10)
    for number in range(100):
        seen.note(message(payload(str(number)), sequence=number))

    assert [key.worker_id for key in seen.recent()] == [str(number) for number in range(90, 100)]
    assert (seen.counts().streams, seen.counts().dropped_streams) == (10, 90)


def test_an_impostor_drives_out_no_registered_worker() -> None:
    """SUB-14: Where workers are registered, those that are not go first, however old the others are."""
    seen = tracker(require_known=True, streams=10)
    for worker in ("7", "8"):
        seen.note_worker(WorkerEvent(worker, "{}"))
        seen.note(message(payload(worker)))
    for number in range(100, 200):
        seen.note(message(payload(str(number)), publisher=2, sequence=number))

    assert set(seen.recent_stats()) == {("7", 0), ("8", 0)}
    assert seen.counts().streams == 10


def test_payload_bytes_are_bounded() -> None:
    """SUB-14: Large payloads leave room for fewer streams; a single one that is too large is held alone."""
    seen = tracker(payload_bytes=10_000)
    for number in range(8):
        large = msgpack.packb({"worker_id": str(number), "dp_rank": 0, "blob": b"x" * 3_000})
        seen.note(message(large, sequence=number))
    few = len(seen.recent())
    for _ in range(5):  # a stream whose payload is replaced takes its place once
        seen.note(message(msgpack.packb({"worker_id": "7", "dp_rank": 0, "blob": b"x" * 3_000})))
    still = len(seen.recent())
    seen.note(message(msgpack.packb({"worker_id": "big", "dp_rank": 0, "blob": b"x" * 20_000})))

    assert (few, still) == (3, 3)
    assert set(seen.recent_stats()) == {("big", 0)}


def test_publishers_and_workers_are_bounded() -> None:
    """SUB-14: So are publishers, whose losses are forgotten, and registered workers, which stay unknown."""
    seen = tracker(require_known=True, publishers=5, workers=2)
    for publisher in range(20):
        seen.note(message(payload(), publisher=publisher))
    for worker in ("7", "8", "9", "9"):
        seen.note_worker(WorkerEvent(worker, "{}"))
    seen.note_worker(WorkerEvent("8", '{"again":1}'))
    counts = seen.counts()

    assert (counts.publishers, counts.dropped_publishers) == (5, 15)
    assert (counts.workers, counts.refused_workers) == (2, 2)
    assert seen.cards() == {"7": "{}", "8": '{"again":1}'}
    assert msgspec.to_builtins(counts)["messages"] == 20
