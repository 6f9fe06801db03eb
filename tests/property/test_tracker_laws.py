"""Laws of the tracker, for any interleaving of streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.plane.base import PlaneMessage
from forwardpass.plane.tracker import Tracker, TrackerLimits
from forwardpass.plane.workers import WorkerEvent
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.schema import ForwardPassMetrics

workers = st.sampled_from(["1", "2", "3", ""])
ranks = st.integers(0, 2)
messages = st.tuples(st.just("message"), workers, ranks, st.integers(0, 3))
cards = st.tuples(st.sampled_from(["register", "remove"]), workers, st.just(0), st.just(0))


@given(st.lists(messages | cards, max_size=60))
def test_what_is_shown_is_the_last_message_of_registered_workers(
    events: list[tuple[str, str, int, int]],
) -> None:
    """SUB-05, SUB-06, SUB-07: Against a plain model: a removal forgets, a message replaces, a registration
    shows.
    """
    tracker = Tracker(require_known=True, clock=ManualClock())
    latest: dict[tuple[str, int], bytes] = {}
    known: set[str] = set()
    for kind, worker, rank, number in events:
        if kind == "message":
            payload = encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=number))
            tracker.note(PlaneMessage(payload, Endpoint(), number, 0, 0, 0))
            latest[worker, rank] = payload
        elif kind == "register":
            tracker.note_worker(WorkerEvent(worker, "{}"))
            known.add(worker)
        else:
            tracker.note_worker(WorkerEvent(worker, None))
            known.discard(worker)
            latest = {key: payload for key, payload in latest.items() if key[0] != worker}

    assert tracker.recent_stats() == {key: data for key, data in latest.items() if key[0] in known}


@given(st.lists(st.tuples(ranks, st.integers(0, 4)), min_size=1, max_size=60), st.data())
def test_losses_add_up(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """SUB-12: For publishers that count up, what is missing is what was numbered and did not come, for each
    rank and for the publisher of all of them.
    """
    tracker = Tracker(require_known=False, clock=ManualClock())
    counter = dict.fromkeys(range(3), 0)
    missing = dict.fromkeys(range(3), 0)
    sequence = lost = 0
    for at, (rank, skipped) in enumerate(steps):
        first_of_rank = counter[rank] == 0
        counter[rank] += 1 + skipped
        missing[rank] += 0 if first_of_rank else skipped
        gone = data.draw(st.integers(0, 2)) if at else 0
        sequence += 1 + gone
        lost += gone
        payload = encode(ForwardPassMetrics(dp_rank=rank, counter_id=counter[rank]))
        tracker.note(PlaneMessage(payload, Endpoint(), 5, sequence, 0, 0))
    shown = tracker.recent()

    assert {key.dp_rank: entry.counters.missing for key, entry in shown.items()} == {
        rank: missing[rank] for rank in {rank for rank, _ in steps}
    }
    assert {entry.plane.missing for entry in shown.values()} == {lost}


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.binary(max_size=30)), max_size=60))
def test_memory_is_bounded_whatever_comes(events: list[tuple[int, int, bytes]]) -> None:
    """SUB-14: Any messages leave at most as many streams, bytes and publishers as the limits say, and every
    stream that came is held, replaced or counted as dropped.
    """
    limits = TrackerLimits(streams=5, payload_bytes=3_000, publishers=4)
    tracker = Tracker(require_known=False, clock=ManualClock(), limits=limits)
    for publisher, worker, junk in events:
        good = encode(ForwardPassMetrics(worker_id=str(worker))) + junk
        for payload in (good, junk):
            tracker.note(PlaneMessage(payload, Endpoint(), publisher, 0, 0, 0))
    counts = tracker.counts()
    held = tracker.recent_stats()

    assert counts.streams == len(held) <= limits.streams
    assert counts.publishers <= limits.publishers
    assert sum(map(len, held.values())) <= limits.payload_bytes
    assert counts.messages == 2 * len(events)
