"""Passes for tests and benchmarks."""

from itertools import islice

from forwardpass.engines.mock.load import Lengths, Load
from forwardpass.testing.passes import simulated_passes
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics
from forwardpass.wire.validate import validate_payload


def test_passes_are_valid_numbered_and_repeatable():
    """The endless default load gives the same stamped messages each time."""
    first, again = (list(islice(simulated_passes(seed=3, dp_rank=1, worker_id="9"), 300)) for _ in range(2))

    assert first == again
    assert [message.counter_id for message in first] == list(range(300))
    assert {(message.worker_id, message.dp_rank) for message in first} == {("9", 1)}
    assert all(validate_payload(encode(message)) for message in first)


def test_a_finite_load_gives_a_finite_number_of_passes():
    """One request of one output token is one pass."""
    load = Load(1.0, Lengths(10), Lengths(1), limit=1)

    assert len(list(simulated_passes(load))) == 1


def test_the_list_publisher_stamps_numbers_and_counts():
    """Messages are numbered from 0 as they are taken; what is refused uses up no number."""
    publisher = ListPublisher(2, "5")
    accepted = [publisher.publish(ForwardPassMetrics(wall_time=1.0))]
    publisher.pause()
    accepted.append(publisher.publish(ForwardPassMetrics()))
    publisher.resume()
    publisher.set_worker_id("6")
    accepted.append(publisher.publish(ForwardPassMetrics(wall_time=2.0)))
    publisher.note_queue(QueuedRequestMetrics(1))
    report = publisher.shutdown()
    accepted.append(publisher.publish(ForwardPassMetrics()))
    counts = publisher.counts()

    assert accepted == [True, False, True, False]
    assert [(m.worker_id, m.dp_rank, m.counter_id) for m in publisher.messages] == [("5", 2, 0), ("6", 2, 1)]
    assert (counts.offered, counts.delivered, counts.dropped) == (4, 2, {"paused": 1, "closed": 1})
    assert publisher.queue_notes == [QueuedRequestMetrics(1)]
    assert report == (True, 0)
