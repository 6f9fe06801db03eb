"""What a row's time measures, and that times of different meanings stay apart."""

from __future__ import annotations

import msgspec
import pytest

from forwardpass.analyze.summary import summarize
from forwardpass.analyze.timing import MAX_CHARACTERS, NOT_SAID, Scopes
from forwardpass.cli.summary_view import render_summary
from forwardpass.trace.ledger import LedgerTotals, decode_ledger_line
from forwardpass.trace.ledger_reader import Run
from forwardpass.trace.record import TraceRecord, decode_line
from forwardpass.wire.schema import ForwardPassMetrics, ScheduledRequestMetrics


def row(
    counter: int, producer: str = "1", wall_time: float = 0.01, unix_ms: int = 1000, **more: object
) -> TraceRecord:
    """Return the row of one decode pass, with fields of the publisher's own."""
    metrics = ForwardPassMetrics(
        worker_id=producer,
        counter_id=counter,
        wall_time=wall_time,
        scheduled_requests=ScheduledRequestMetrics(num_decode_requests=1),
    )
    source = {"namespace": "n", "component": "c", "producer_id": producer}
    event = {"schema": "dynamo.fpm.trace.v1", "source": source, "capture_mode": "full"}
    fpm = {**msgspec.to_builtins(metrics), **more}
    document = {"timestamp": 0, "event": {**event, "observed_at_unix_ms": unix_ms + counter, "fpm": fpm}}
    return decode_line(msgspec.json.encode(document))


def run(producer: str, wall_time: str, begin: int = 0, end: int = 10_000, name: str = "a") -> Run:
    """Return one life of a recorder."""
    totals = LedgerTotals(0, 0, 0, 0, {})
    return Run(producer, name, "full", begin, end, totals, wall_time=wall_time)


def test_the_recorder_says_it_for_its_rows() -> None:
    """LEDGER-17: A producer's ledger decides for its rows; of others the reader may say it, or nobody."""
    runs = [run("1", "gpu_span"), run("3", "")]

    assert [Scopes(runs).of(row(0, one)) for one in ("1", "2", "3")] == ["gpu_span", NOT_SAID, NOT_SAID]
    assert [Scopes(runs, "x").of(row(0, one)) for one in ("1", "2", "3")] == ["gpu_span", "x", "x"]


def test_lives_that_differ_are_told_by_their_time() -> None:
    """LEDGER-17: A producer id that was fixed may have recorded two engines, one after the other."""
    scopes = Scopes([run("1", "gpu_span", 0, 500), run("1", "output_period", 600, 900, "b")], "x")

    assert [scopes.of(row(0, unix_ms=moment)) for moment in (100, 700, 550)] == [
        "gpu_span", "output_period", "x",
    ]  # fmt: skip


def test_a_row_says_it_itself() -> None:
    """LEDGER-17, ENG-16: The publisher's own word wins, and is cut where it is long."""
    scopes = Scopes([run("1", "gpu_span")])

    assert scopes.of(row(0, timing_scope="device")) == "device"
    assert scopes.of(row(0, timing_scope="y" * 1000)) == "y" * MAX_CHARACTERS


@pytest.mark.parametrize("word", [None, 7, [], {"a": 1}, ""])
def test_what_is_no_word_says_nothing(word: object) -> None:
    """LEDGER-17: A field of another type, or the words in another place, change nothing."""
    scopes = Scopes([run("1", "gpu_span")])

    assert scopes.of(row(0, timing_scope=word)) == "gpu_span"
    assert scopes.of(row(0, other={"timing_scope": "device"})) == "gpu_span"


def test_times_of_different_meanings_have_lines_of_their_own() -> None:
    """LEDGER-17: No percentile, mean or rate is made of both; each stream says what its times are."""
    fast = [row(number, "1", 0.001) for number in range(10)]
    slow = [row(number, "2", 1.0) for number in range(10)]
    summary = summarize([*fast, *slow], Scopes([run("1", "gpu_span"), run("2", "output_period")]))

    assert [(kind.wall_time, kind.passes, kind.p50_seconds, kind.max_seconds) for kind in summary.kinds] == [
        ("gpu_span", 10, 0.001, 0.001), ("output_period", 10, 1.0, 1.0),
    ]  # fmt: skip
    assert [stream.wall_times for stream in summary.streams] == [("gpu_span",), ("output_period",)]
    assert summary.wall_times == ("gpu_span", "output_period")
    assert summary.tokens_per_busy_second is None
    text = render_summary(summary)
    assert "Times of different meanings are not put together" in text
    lines = [line.split() for line in text.splitlines() if line.startswith("decode")]
    assert [(line[0], line[1], line[-1]) for line in lines] == [
        ("decode", "10", "gpu_span"), ("decode", "10", "output_period"),
    ]  # fmt: skip


def test_one_meaning_is_named_once() -> None:
    """LEDGER-17: The summary of one engine's trace looks as ever and says what its times are."""
    summary = summarize([row(number) for number in range(3)], Scopes([run("1", "gpu_span")]))
    text = render_summary(summary)

    assert summary.tokens_per_busy_second is not None
    assert text.count("gpu_span") == 1
    assert "; wall_time is gpu_span" in text


def test_several_recorders_of_which_nobody_said_it_are_noted() -> None:
    """LEDGER-17: What cannot be told apart is put together, and the page says that."""
    both = render_summary(summarize([row(0, "1"), row(0, "2")]))
    one = render_summary(summarize([row(0, "1"), row(1, "1")]))

    assert "Nobody said what wall_time measures" in both
    assert "wall_time" not in one


def test_a_publishers_word_cannot_drive_a_terminal() -> None:
    """LEDGER-17: The word is a stranger's text and is shown with its control characters escaped."""
    rows = [row(0, timing_scope="\x1b[2J"), row(1)]

    assert "\x1b" not in render_summary(summarize(rows))
    assert "\x1b" not in render_summary(summarize(rows[:1]))


def test_lines_of_older_recorders_are_read() -> None:
    """LEDGER-17: The two fields are optional: a line without them says nothing about the engine."""
    text = (
        b'{"schema":"forwardpass.trace.ledger.v1","producer_id":"77","run":"r","capture_mode":"full",'
        b'"from_unix_ms":1,"to_unix_ms":2,"totals":{"offered":0,"written":0,"sampled_out":0,"pending":0,'
        b'"dropped":{}}}\n'
    )
    line = decode_ledger_line(text)

    assert line is not None
    assert (line.engine, line.wall_time) == ("", "")
