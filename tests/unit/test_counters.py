"""What a stage counts, and what a snapshot makes of it."""

from __future__ import annotations

from forwardpass.counters import Counters, DropReason, StageCounts


def test_a_new_stage_has_counted_nothing() -> None:
    """All counts begin at zero and no reason is listed."""
    assert Counters().snapshot() == StageCounts(0, 0, 0, 0, {}, 0)


def test_both_identities_hold() -> None:
    """offered = accepted + refused, and accepted = delivered + lost + evicted + pending."""
    counters = Counters()
    counters.offered = 20
    counters.refuse(DropReason.PAUSED, 3)
    counters.delivered = 9
    counters.lose(DropReason.SOCKET_FULL)
    counters.evicted = 2
    counts = counters.snapshot()

    assert counts == StageCounts(
        offered=20,
        accepted=17,
        delivered=9,
        pending=5,
        dropped={"paused": 3, "socket_full": 1, "queue_full": 2},
    )
    assert counts.dropped_total == 6


def test_one_reason_for_refused_lost_and_evicted_is_one_number() -> None:
    """The same reason at the door, on the way and by eviction is added up."""
    counters = Counters()
    counters.offered = 10
    counters.refuse(DropReason.QUEUE_FULL, 2)
    counters.lose(DropReason.QUEUE_FULL, 3)
    counters.evicted = 1

    assert counters.snapshot().dropped == {"queue_full": 6}


def test_settled_is_what_the_consumer_decided() -> None:
    """Delivered and lost items are settled; evicted and refused ones are not the consumer's."""
    counters = Counters()
    counters.offered = 10
    counters.delivered = 4
    counters.lose(DropReason.MALFORMED, 2)
    counters.evicted = 1
    counters.refuse(DropReason.CLOSED)

    assert counters.settled == 6


def test_a_snapshot_does_not_change() -> None:
    """Counting on leaves a snapshot as it was."""
    counters = Counters()
    counters.offered = 1
    counters.lose(DropReason.DISK_ERROR)
    before = counters.snapshot()
    counters.offered = 2
    counters.lose(DropReason.DISK_ERROR)

    assert before.dropped == {"disk_error": 1}
    assert before.offered == 1


def test_reset_forgets_everything() -> None:
    """A stage in a forked child begins again at zero."""
    counters = Counters()
    counters.offered = counters.delivered = counters.evicted = counters.faults = 5
    counters.refuse(DropReason.CLOSED)
    counters.lose(DropReason.DEADLINE)
    counters.reset()

    assert counters.snapshot() == StageCounts(0, 0, 0, 0, {}, 0)


def test_reasons_are_labels() -> None:
    """Every reason is a lower-case word that is safe as a metric label and a file field."""
    assert all(reason.value.replace("_", "").isalpha() and reason.value.islower() for reason in DropReason)
