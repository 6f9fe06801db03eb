"""What a recorder's account says of rows, losses and events, without a disk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from forwardpass.counters import DropReason
from forwardpass.trace.ledger import (
    MAX_NAME,
    MAX_RANGES,
    EventKind,
    LedgerEvent,
    LedgerLine,
    LedgerTotals,
    LostRange,
    StreamWindow,
    decode_ledger_line,
    encode_ledger_line,
    ledger_name,
)
from forwardpass.trace.ledger_book import CALM_SECONDS, MAX_EVENTS, MAX_STREAMS, LedgerBook
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Body, Offered, read_payloads
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics

SOURCE = TraceSource("ns", "backend", "77")
OTHER = TraceSource("ns", "prefill", "77")
NOTHING = LedgerTotals(0, 0, 0, 0, {})


def rows(
    *counters: int, worker: str = "w", rank: int = 0, source: TraceSource = SOURCE, unknown: bool = False
) -> tuple[list[Offered], list[Body]]:
    """Return messages as the writer gets them; ``unknown`` gives them a field that we do not know."""
    payloads = []
    for counter in counters:
        payload = encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=counter))
        payloads.append(b"\x88" + payload[1:] + b"\xa3new\x01" if unknown else payload)
    bodies = read_payloads(payloads)
    return [(source, 0, payload) for payload in payloads], bodies  # type: ignore[return-value]


def book(mode: str = "full") -> LedgerBook:
    """Return a new book."""
    return LedgerBook("77", "r1", mode, 1_000, 0.0)


def joined(*parts: tuple[list[Offered], list[Body]]) -> tuple[list[Offered], list[Body]]:
    """Return the messages in one list."""
    return [item for part in parts for item in part[0]], [body for part in parts for body in part[1]]


def windows(account: LedgerBook) -> list[StreamWindow]:
    """Return what the next line says of each stream."""
    return account.line(2_000, NOTHING).streams


@pytest.mark.parametrize("unknown", [False, True])
@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ([3, 4, 5], (3, 5, 3, 0, 0)),
        ([3, 4, 9, 10], (3, 10, 4, 4, 0)),
        ([9, 0, 1], (9, 1, 3, 0, 1)),
        ([3, 3, 4], (3, 4, 3, 0, 0)),
    ],
)
def test_a_window_counts_rows_holes_and_restarts(
    counters: list[int], expected: tuple[int, ...], unknown: bool
) -> None:
    """LEDGER-03: First and last counter, rows written, counters skipped and times it went back."""
    account = book()
    account.appended(*rows(*counters, unknown=unknown))
    account.settled(len(counters), None)

    (window,) = windows(account)
    assert (window.first, window.last, window.written, window.missing, window.restarts) == expected
    assert (window.namespace, window.component, window.worker_id, window.dp_rank) == ("ns", "backend", "w", 0)


def test_streams_are_told_apart() -> None:
    """LEDGER-03: A stream is a namespace, component, worker and rank, also within one batch."""
    account = book()
    account.appended(
        *joined(
            rows(0, 1), rows(7, rank=1), rows(2), rows(5, worker="v"), rows(4, source=OTHER), rows(8, rank=1)
        )
    )
    account.settled(7, None)

    found = {
        (one.component, one.worker_id, one.dp_rank): (one.first, one.last, one.written)
        for one in windows(account)
    }
    assert found == {
        ("backend", "w", 0): (0, 2, 3),
        ("backend", "w", 1): (7, 8, 2),
        ("backend", "v", 0): (5, 5, 1),
        ("prefill", "w", 0): (4, 4, 1),
    }


@pytest.mark.parametrize("other", [{"rank": 1}, {"worker": "v"}, {"source": OTHER}])
def test_consecutive_counters_of_two_streams_are_not_one_run(other: dict[str, Any]) -> None:
    """LEDGER-03: Messages whose numbers happen to follow each other may still be of different streams."""
    account = book()
    account.appended(*joined(rows(0), rows(1, **other)))
    account.settled(2, None)

    assert [(one.first, one.last) for one in windows(account)] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("where", [0, 1, 2])
def test_a_message_with_an_unknown_field_belongs_to_its_stream(where: int) -> None:
    """LEDGER-03: One message of a batch may be kept as a document; it is counted like its neighbours."""
    account = book()
    account.appended(*joined(*(rows(counter, unknown=counter == where) for counter in range(3))))
    account.settled(3, None)

    (window,) = windows(account)
    assert (window.first, window.last, window.written, window.missing) == (0, 2, 3, 0)


def test_what_the_writer_loses_is_named() -> None:
    """LEDGER-04: Rows settle in their order, in parts of any size; lost ones are listed with the reason."""
    account = book()
    account.appended(*rows(*range(10)))
    account.appended(*rows(*range(10, 20)))
    account.settled(5, None)
    account.settled(8, DropReason.DISK_ERROR)
    account.settled(4, DropReason.INTERNAL_ERROR)
    account.settled(3, None)

    (window,) = windows(account)
    assert window.lost == [LostRange(5, 12, "disk_error"), LostRange(13, 16, "internal_error")]
    assert (window.written, window.lost_count, window.missing) == (8, 12, 0)


def test_rows_that_are_not_settled_are_not_told() -> None:
    """LEDGER-04: What still waits for the disk is in no line before its fate is known."""
    account = book()
    account.appended(*rows(0, 1, 2))

    assert windows(account) == []


def test_sampled_mode_counts_what_did_not_arrive() -> None:
    """LEDGER-05: Of 10 numbers between two rows 7 arrived, so 3 were lost before, and 6 were passed over."""
    account = book("sampled")
    account.appended(*rows(5), [4])
    account.appended(*rows(15), [7])
    account.settled(2, None)

    (window,) = windows(account)
    assert (window.written, window.sampled_out, window.missing) == (2, 3 + 6, 3)


def test_a_line_is_due_after_a_loss_at_once_and_else_now_and_then() -> None:
    """LEDGER-02: An all-clear waits half a minute; a hole, a drop or an event is told with the
    next flush, and the first rows are, as a sign of life.
    """
    account = book()
    calm = account.is_due(1e9, {})
    account.appended(*rows(0))
    account.settled(1, None)
    first = account.is_due(0.0, {})
    account.written(account.line(2_000, NOTHING), 0.0)
    account.appended(*rows(1))
    account.settled(1, None)
    early, late = account.is_due(CALM_SECONDS - 0.1, {}), account.is_due(CALM_SECONDS, {})
    dropped = account.is_due(0.0, {"queue_full": 1})
    account.appended(*rows(5))
    account.settled(1, None)
    hole = account.is_due(0.0, {})

    assert (calm, first, early, late, dropped, hole) == (False, True, False, True, True, True)


def test_a_line_that_could_not_be_written_is_in_the_next_one() -> None:
    """LEDGER-06: Nothing is forgotten before it is on the disk; afterwards nothing is told twice."""
    account = book()
    account.appended(*rows(0, 1))
    account.settled(2, None)
    lost = account.line(2_000, LedgerTotals(5, 2, 0, 0, {"queue_full": 3}))
    account.appended(*rows(5))
    account.settled(1, None)
    again = account.line(3_000, LedgerTotals(6, 3, 0, 0, {"queue_full": 3}))
    account.written(again, 3.0)
    after = account.line(4_000, LedgerTotals(6, 3, 0, 0, {"queue_full": 3}))

    assert (lost.from_unix_ms, again.from_unix_ms, after.from_unix_ms) == (1_000, 1_000, 3_000)
    assert (again.dropped, after.dropped) == ({"queue_full": 3}, {})
    assert [(one.first, one.last, one.missing) for one in again.streams] == [(0, 5, 3)]
    assert after.streams == []
    assert not account.is_due(4.0, {"queue_full": 3})


def test_events_are_told_and_bounded() -> None:
    """LEDGER-07: What the relays saw comes in the next line; what has no room is counted."""
    account = book()
    event = LedgerEvent(EventKind.WIRE_GAP, 1, "tcp://x:1", count=3)
    account.happened([event] * (MAX_EVENTS + 5), 2)
    due = account.is_due(0.0, {})
    line = account.line(2_000, NOTHING)
    account.written(line, 1.0)

    assert due
    assert (len(line.events), line.events_omitted) == (MAX_EVENTS, 7)
    assert account.line(3_000, NOTHING).events == []


def test_very_many_losses_and_streams_are_bounded() -> None:
    """LEDGER-07: Ranges beyond the limit are counted; streams that fell silent are forgotten."""
    account = book()
    for counter in range(0, 4 * MAX_RANGES, 2):
        account.appended(*rows(counter))
        account.settled(1, DropReason.DISK_ERROR)
    (window,) = windows(account)
    account = book()
    for rank in range(MAX_STREAMS + 10):
        account.appended(*rows(0, rank=rank))
        account.settled(1, None)
    account.written(account.line(2_000, NOTHING), 1.0)
    account.appended(*rows(1))
    account.settled(1, None)
    account.written(account.line(3_000, NOTHING), 2.0)

    assert (len(window.lost), window.lost_count) == (MAX_RANGES, 2 * MAX_RANGES)
    assert len(account._streams) == 1


def test_a_long_name_is_cut_and_still_its_own() -> None:
    """LEDGER-07: Of a very long worker_id a line has the beginning and a digest, so that two that begin alike
    stay two; a name that was cut is not cut again.
    """
    account = book()
    for end in "ab":
        account.appended(*rows(0, 1, worker="x" * 900_000 + end))
        account.settled(2, None)
    line = account.line(2_000, NOTHING)
    names = [window.worker_id for window in line.streams]

    assert [len(name) for name in names] == [MAX_NAME, MAX_NAME]
    assert len(set(names)) == 2
    assert names == [ledger_name(name) for name in names]
    assert names[0].startswith("x" * 223 + "…")
    assert len(encode_ledger_line(line)) < 2_000


def test_very_many_streams_make_a_line_due() -> None:
    """LEDGER-07: Streams that come in thousands do not wait in memory for a line that is due by its time."""
    account = book()
    account.appended(*rows(0))
    account.settled(1, None)
    account.written(account.line(2_000, NOTHING), 1.0)
    due = []
    for rank in range(MAX_STREAMS + 1):
        account.appended(*rows(1, rank=rank))
        account.settled(1, None)
        due.append(account.is_due(2.0, {}))

    assert due == [False] * MAX_STREAMS + [True]


def _lines() -> Sequence[LedgerLine]:
    account = book()
    account.appended(*rows(0, 4))
    account.settled(2, DropReason.DISK_ERROR)
    event = LedgerEvent(EventKind.RESTART, 5, "tcp://x:1", "w", 0, last=9, first=0)
    account.happened([event], 0)
    totals = LedgerTotals(2, 0, 0, 0, {"disk_error": 2})
    return [account.line(2_000, totals), account.line(2_000, totals, closed=True), book().line(5, NOTHING)]


def test_a_line_reads_back_as_it_was() -> None:
    """LEDGER-01: One JSON object a line, its schema first; a line with a piece missing is no line."""
    for line in _lines():
        text = encode_ledger_line(line)

        assert text.startswith(b'{"schema":"forwardpass.trace.ledger.v1",')
        assert text.count(b"\n") == 1
        assert decode_ledger_line(text) == line
        assert all(decode_ledger_line(text[:cut]) is None for cut in range(len(text) - 1))


@pytest.mark.parametrize(
    "text", [b"", b"\n", b"{}", b"null", b'{"schema":"forwardpass.trace.ledger.v2","run":"x"}', b"\xff\x00"]
)
def test_what_is_no_line_is_none(text: bytes) -> None:
    """LEDGER-01: Other formats and stray bytes are passed over."""
    assert decode_ledger_line(text) is None
