"""A sink with its thread, on a real file system."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from trace_files import (
    LIMIT_SECONDS,
    PRODUCER,
    counter_ids,
    members,
    payload,
    rows,
    segment,
    segments,
    trace_settings,
    wait_until,
)

from forwardpass.clock import SystemClock
from forwardpass.config.settings import CaptureMode
from forwardpass.errors import TracePathError
from forwardpass.pump import StopReport
from forwardpass.trace.record import TraceSource
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.sink import TraceCounts, TraceSink

SOURCE = TraceSource("dynamo", "backend", PRODUCER)


@contextmanager
def recording(folder: Path, **options: Any) -> Iterator[TraceSink]:
    """Open a sink below ``folder`` and close it again."""
    extra = {name: options.pop(name) for name in ("clock", "create_file") if name in options}
    sink = TraceSink(trace_settings(folder, **options), PRODUCER, **extra)
    sink.start()
    try:
        yield sink
    finally:
        sink.close()


def check_ledger(counts: TraceCounts) -> None:
    """Assert that every payload is somewhere, once."""
    assert counts.offered == counts.written + counts.sampled_out + counts.pending + counts.dropped_total
    assert min(counts.written, counts.sampled_out, counts.pending) >= 0


class Gate:
    """A disk that keeps its callers waiting until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def file(self, path: str) -> SegmentFile:
        """Create a segment, after the gate was opened."""
        self.reached.set()
        self.open.wait(LIMIT_SECONDS)
        return SegmentFile(path)


def test_what_is_offered_is_in_the_files(tmp_path: Path) -> None:
    """TRACE-31, TRACE-11, TRACE-13: full mode gives one row per payload, in order, with source and times."""
    before = time.time_ns() // 1_000_000
    with recording(tmp_path) as sink:
        for counter in range(500):
            assert sink.offer(SOURCE, payload(counter))
        assert sink.offer_many(SOURCE, [payload(counter) for counter in range(500, 2000)]) == 1500

    after = time.time_ns() // 1_000_000
    found = rows(tmp_path)
    assert [row["event"]["fpm"]["counter_id"] for row in found] == list(range(2000))
    assert {row["event"]["source"]["producer_id"] for row in found} == {PRODUCER}
    assert all(before <= row["event"]["observed_at_unix_ms"] <= after for row in found)
    stamps = [row["timestamp"] for row in found]
    assert stamps == sorted(stamps)
    assert all(0 <= stamp <= LIMIT_SECONDS * 1000 for stamp in stamps)


def test_a_given_time_is_kept(tmp_path: Path) -> None:
    """TRACE-12: whoever offers may say when it was observed."""
    with recording(tmp_path) as sink:
        sink.offer(SOURCE, payload(1), 111)
        sink.offer_many(SOURCE, [payload(2), payload(3)], 222)

    assert [row["event"]["observed_at_unix_ms"] for row in rows(tmp_path)] == [111, 222, 222]


def test_rows_are_on_disk_within_seconds(tmp_path: Path) -> None:
    """TRACE-40: rows are written about a second after they came, without a close."""
    with recording(tmp_path) as sink:
        sink.offer(SOURCE, payload(1))
        wait_until(lambda: sink.counts().written == 1)

        assert counter_ids(tmp_path) == [1]


def test_the_counts(tmp_path: Path) -> None:
    """The counts say what was written, what was refused, and what it cost."""
    with recording(tmp_path) as sink:
        sink.offer_many(SOURCE, [payload(1), b"\xc1", payload(2), b""])
        sink.close()
        sink.offer(SOURCE, payload(3))
        counts = sink.counts()

    text_bytes = sum(len(member) for member in members(segment(tmp_path, 0)))
    assert (counts.offered, counts.accepted, counts.written) == (5, 4, 2)
    assert counts.dropped == {"malformed": 2, "closed": 1}
    assert (counts.pending, counts.sampled_out, counts.last_error) == (0, 0, None)
    assert (counts.segments, counts.flushes) == (1, 1)
    assert counts.uncompressed_bytes == text_bytes
    assert counts.compressed_bytes == segment(tmp_path, 0).stat().st_size
    assert sink.files() == (str(segment(tmp_path, 0)),)


def test_malformed_payloads_are_said_at_most_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TRACE-21: a stream of bad payloads is one warning, and its total is in the counts."""
    with caplog.at_level(logging.WARNING), recording(tmp_path) as sink:
        sink.offer_many(SOURCE, [b"\xc1"] * 1000)

    assert sink.counts().dropped == {"malformed": 1000}
    assert len(caplog.records) == 1


def test_sampled_mode_on_a_real_clock(tmp_path: Path) -> None:
    """TRACE-32: a busy stream gives about one row per interval, ascending, and the rest is passed over."""
    begin = time.monotonic()
    with recording(tmp_path, mode=CaptureMode.SAMPLED, sample_interval_seconds=0.1) as sink:
        for counter in range(100):
            sink.offer(SOURCE, payload(counter))
            time.sleep(0.005)
            check_ledger(sink.counts())

    intervals = (time.monotonic() - begin) / 0.1
    found, counts = counter_ids(tmp_path), sink.counts()
    assert found == sorted(set(found))
    assert found[-1] == 99
    assert 3 <= len(found) <= intervals + 1
    assert {row["event"]["capture_mode"] for row in rows(tmp_path)} == {"sampled"}
    assert (counts.written, counts.sampled_out) == (len(found), 100 - len(found))


class JumpyClock(SystemClock):
    """A wall clock that is set back and forth by days between any two looks."""

    def __init__(self) -> None:
        self.shown: list[int] = []

    def unix_ms(self) -> int:  # type: ignore[override]
        """Return a time that has nothing to do with the last one."""
        shown = 1_800_000_000_000 + (-1) ** len(self.shown) * 86_400_000 * len(self.shown)
        if threading.current_thread() is threading.main_thread():
            self.shown.append(shown)
        return shown


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_a_wall_clock_that_jumps_moves_nothing_but_its_own_field(tmp_path: Path, mode: CaptureMode) -> None:
    """TRACE-11, TRACE-12: intervals, order and ``timestamp`` follow the monotonic clock; the observed time is
    what the wall clock said.
    """
    clock = JumpyClock()
    with recording(tmp_path, mode=mode, clock=clock, sample_interval_seconds=0.05) as sink:
        clock.shown.clear()
        for counter in range(60):
            sink.offer(SOURCE, payload(counter))
            time.sleep(0.005)

    found = rows(tmp_path)
    counters = [row["event"]["fpm"]["counter_id"] for row in found]
    stamps = [row["timestamp"] for row in found]
    assert counters == sorted(set(counters))
    assert stamps == sorted(stamps)
    assert stamps[-1] < 60_000
    assert [row["event"]["observed_at_unix_ms"] for row in found] == [clock.shown[one] for one in counters]
    assert 3 <= len(found) <= (60 if mode is CaptureMode.FULL else 15)


def test_many_threads_may_offer(tmp_path: Path) -> None:
    """TRACE-50: several producers of payloads share one sink; each one's order is kept and none is lost."""
    threads_count, each = 4, 1500

    def offer(sink: TraceSink, rank: int) -> None:
        for counter in range(each):
            sink.offer(SOURCE, payload(counter, rank=rank))

    with recording(tmp_path, queue_capacity=100_000) as sink:
        threads = [threading.Thread(target=offer, args=(sink, rank)) for rank in range(threads_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_SECONDS)
            check_ledger(sink.counts())

    fpms = [row["event"]["fpm"] for row in rows(tmp_path)]
    assert len(fpms) == threads_count * each
    for rank in range(threads_count):
        assert [fpm["counter_id"] for fpm in fpms if fpm["dp_rank"] == rank] == list(range(each))


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads that take turns a thousand times as often as they would."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("mode", list(CaptureMode))
def test_the_counts_add_up_at_every_instant(tmp_path: Path, mode: CaptureMode) -> None:
    """TRACE-30, D-24: whoever looks while threads offer, the queue overflows, segments roll and the sink
    closes, sees every payload somewhere, once, and no count go back.
    """
    stop = threading.Event()

    def offer(sink: TraceSink, rank: int) -> None:
        counter = 0
        while not stop.is_set():
            sink.offer(SOURCE, payload(counter, rank=rank))
            sink.offer_many(SOURCE, [payload(counter + more, rank=rank) for more in range(1, 50)])
            sink.offer(SOURCE, b"junk")
            counter += 50

    options = {"roll_bytes": 20_000, "max_segments": 2, "sample_interval_seconds": 0.003}
    with recording(tmp_path, mode=mode, **options) as sink:
        threads = [threading.Thread(target=offer, args=(sink, rank)) for rank in range(3)]
        closing = threading.Timer(1.0, sink.close, [LIMIT_SECONDS])
        for thread in (*threads, closing):
            thread.start()
        end, last = time.monotonic() + 1.2, sink.counts()
        while time.monotonic() < end:
            last, before = sink.counts(), last
            check_ledger(last)
            for name in ("offered", "written", "sampled_out", "dropped_total"):
                assert getattr(last, name) >= getattr(before, name)
        stop.set()
        for thread in (*threads, closing):
            thread.join(LIMIT_SECONDS)

    counts = sink.counts()
    check_ledger(counts)
    assert counts.pending == 0
    assert counts.written > 0
    assert counts.dropped["closed"] > 0
    assert counts.dropped["malformed"] > 0


def test_what_is_accepted_during_a_close_is_written(tmp_path: Path) -> None:
    """TRACE-53: an offer that is in flight when the close begins is written, however slow its thread is."""
    in_flight, accepted = threading.Event(), []

    def pause(frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call" and argument is len and frame.f_code.co_filename.endswith("pump.py"):
            in_flight.set()  # the offer has seen that the pump accepts, and has not queued its item yet
            time.sleep(0.3)

    def offer() -> None:
        sys.setprofile(pause)
        accepted.append(sink.offer(SOURCE, payload(1)))
        sys.setprofile(None)

    with recording(tmp_path) as sink:
        thread = threading.Thread(target=offer)
        thread.start()
        assert in_flight.wait(LIMIT_SECONDS)
        assert sink.close(LIMIT_SECONDS).finished
        thread.join(LIMIT_SECONDS)

    assert accepted == [True]
    assert counter_ids(tmp_path) == [1]
    assert sink.counts().pending == 0


def test_a_slow_disk_costs_the_oldest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRACE-30, D-24: while the disk hangs, offers neither wait nor fail; the oldest payloads go, counted and
    said once, with a summary at the end. What is written is the newest, in order."""
    gate, total = Gate(), 20_000
    with caplog.at_level(logging.WARNING), recording(tmp_path, create_file=gate.file) as sink:
        sink.offer(SOURCE, payload(0))
        assert gate.reached.wait(LIMIT_SECONDS)
        assert sink.room() == 8192
        begin = time.perf_counter()
        assert all(sink.offer(SOURCE, payload(counter)) for counter in range(1, total))
        took = time.perf_counter() - begin
        lagging = sink.counts()
        assert sink.room() == 0
        check_ledger(lagging)
        gate.open.set()

    lost = total - 1 - 8192
    assert took < 5.0
    assert lagging.dropped == {"queue_full": lost}
    assert counter_ids(tmp_path) == [0, *range(lost + 1, total)]
    assert sink.counts().written == 1 + 8192
    said = [record.getMessage() for record in caplog.records]
    assert [f"{lost} payloads lost to a full queue, {lost} since the start" in text for text in said] == [
        True,
        False,
    ]
    assert said[1] == f"trace of producer {PRODUCER} lost {lost} payloads to a full queue"


def test_what_is_lost_while_closing_is_said_to_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRACE-30, D-24: a loss that the close comes upon is said as one during shutdown, then summed up."""
    gate = Gate()
    with caplog.at_level(logging.WARNING), recording(tmp_path, create_file=gate.file) as sink:
        sink.offer(SOURCE, payload(0))
        assert gate.reached.wait(LIMIT_SECONDS)
        sink.offer_many(SOURCE, [payload(counter) for counter in range(1, 8202)])
        assert not sink.close(0.0).finished
        gate.open.set()
        assert sink.close(LIMIT_SECONDS).finished

    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(": ")[0] for text in said] == [
        f"trace of producer {PRODUCER} lags behind during shutdown",
        f"trace of producer {PRODUCER} lost 9 payloads to a full queue",
    ]


@pytest.mark.parametrize("mode", list(CaptureMode))
def test_a_whole_stop_leaves_nothing_undelivered(tmp_path: Path, mode: CaptureMode) -> None:
    """TRACE-53: the report of a stop that had time says that nothing is left, passed over or written."""
    with recording(tmp_path, mode=mode) as sink:
        sink.offer_many(SOURCE, [payload(counter) for counter in range(1000)])

        assert sink.close(LIMIT_SECONDS) == StopReport(finished=True, undelivered=0)


def test_a_stop_has_an_end(tmp_path: Path) -> None:
    """TRACE-53, D-28: closing on a disk that hangs returns in time, says so, and may be repeated."""
    gate = Gate()
    sink = TraceSink(trace_settings(tmp_path), PRODUCER, create_file=gate.file)
    sink.start()
    sink.offer(SOURCE, payload(0))
    assert gate.reached.wait(LIMIT_SECONDS)
    begin = time.perf_counter()
    report = sink.close(0.3)
    assert time.perf_counter() - begin < 5.0
    assert not report.finished
    gate.open.set()

    assert sink.close(LIMIT_SECONDS).finished
    assert sink.close(LIMIT_SECONDS).finished
    assert counter_ids(tmp_path) == [0]


def test_a_folder_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    """TRACE-09: the start raises, and the sink refuses everything afterwards."""
    (tmp_path / "file").write_text("")
    sink = TraceSink(trace_settings(tmp_path / "file" / "x"), PRODUCER)
    with pytest.raises(TracePathError):
        sink.start()

    assert not sink.offer(SOURCE, payload(1))
    assert sink.counts().dropped == {"closed": 1}
    assert sink.close(1.0).finished


def test_two_sinks_of_one_producer_keep_apart(tmp_path: Path) -> None:
    """TRACE-08: two sinks with one prefix and producer write different segments, all of them readable."""
    with recording(tmp_path) as first, recording(tmp_path) as second:
        first.offer_many(SOURCE, [payload(counter) for counter in range(100)])
        second.offer_many(SOURCE, [payload(counter) for counter in range(100, 200)])

    assert not set(first.files()) & set(second.files())
    assert sorted(counter_ids(tmp_path)) == list(range(200))
    assert len(segments(tmp_path)) == 2
