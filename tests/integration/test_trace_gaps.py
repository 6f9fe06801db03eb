"""Why a counter is missing: losses made on purpose, with real files, and what is said of them."""

from __future__ import annotations

import errno
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from trace_files import payload, segments, text, trace_settings, wait_until

from forwardpass.analyze.causes import Cause, Gap
from forwardpass.analyze.gap_report import GapReport, report_gaps
from forwardpass.cli.trace_gaps import render_gaps
from forwardpass.clock import SystemClock
from forwardpass.config.settings import CaptureMode
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.discover import ledger_of
from forwardpass.trace.ledger import EventKind, LedgerEvent, decode_ledger_line
from forwardpass.trace.reader import find_segments
from forwardpass.trace.record import TraceSource
from forwardpass.trace.repair import repair
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.sink import TraceSink
from forwardpass.trace.stale import remove, stale_producers, survey

PRODUCER = "77"
SOURCE = TraceSource("ns", "backend", PRODUCER)


class StuckFile(SegmentFile):
    """A file whose writes wait, or fail, when the test says so."""

    go = threading.Event()
    fail = False

    def append(self, data: bytes) -> None:
        """Write, wait or fail."""
        if type(self).fail:
            raise OSError(errno.ENOSPC, "No space left on device")
        type(self).go.wait(30)
        super().append(data)


@pytest.fixture(autouse=True)
def _free_disk() -> Iterator[None]:
    StuckFile.go.set()
    StuckFile.fail = False
    yield
    StuckFile.go.set()


@contextmanager
def recording(folder: Path, **changes: object) -> Iterator[TraceSink]:
    """Run a sink of full mode, and close it."""
    sink = TraceSink(trace_settings(folder, **changes), PRODUCER, create_file=StuckFile)
    sink.start()
    try:
        yield sink
    finally:
        sink.close(30.0)


def offer(sink: TraceSink, *counters: int, worker: str = "w", rank: int = 0) -> None:
    """Offer messages and wait until they are written or lost."""
    for counter in counters:
        sink.offer(SOURCE, payload(counter, worker, rank))


def flushed(sink: TraceSink) -> None:
    """Wait until nothing is pending."""
    wait_until(lambda: sink.counts().pending == 0)


def report(folder: Path) -> GapReport:
    """Explain everything in the folder."""
    return report_gaps(find_segments(folder))


def told(folder: Path) -> list[tuple[int, int, Cause]]:
    """Return the gaps: first, last, cause."""
    return [(gap.first, gap.last, gap.cause) for gap in report(folder).gaps]


def only_gap(folder: Path) -> Gap:
    """Return the one gap there is."""
    (gap,) = report(folder).gaps
    return gap


def test_a_whole_trace_has_no_gap_and_adds_up(tmp_path: Path) -> None:
    """LEDGER-09: Every message is there; the recorder's own counts say so, after its end too."""
    with recording(tmp_path) as sink:
        offer(sink, *range(10))
        offer(sink, *range(5, 9), rank=1)

    found = report(tmp_path)
    assert found.gaps == []
    assert found.missing == 0
    assert [(each.dp_rank, each.rows, each.first_counter, each.last_counter) for each in found.streams] == [
        (0, 10, 0, 9),
        (1, 4, 5, 8),
    ]
    (run,) = found.recorders
    assert (run.closed, run.adds_up, run.totals.offered, run.totals.written) == (True, True, 14, 14)
    assert (found.files, found.files_without_ledger, found.bad_ledger_lines) == (1, 0, 0)


def test_a_full_queue_is_the_queue(tmp_path: Path) -> None:
    """LEDGER-10: While the disk hangs, the oldest in the queue go; the hole in the counters says so."""
    with recording(tmp_path, queue_capacity=8192) as sink:
        offer(sink, 0)
        flushed(sink)
        StuckFile.go.clear()
        sink.offer(SOURCE, payload(1))
        wait_until(lambda: sink.counts().flushes == 1 and sink._pump.queued == 0)
        time.sleep(1.2)  # the writer hangs in its second flush now
        offer(sink, *range(2, 2 + 8192 + 100))
        StuckFile.go.set()

    gap = only_gap(tmp_path)
    assert (gap.cause, gap.first, gap.count) == (Cause.QUEUE, 2, 100)
    assert "queue was full" in gap.evidence


def test_a_full_disk_is_the_disk(tmp_path: Path) -> None:
    """LEDGER-10: A batch that the file system refused is missing for that reason, to the counter."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1, 2)
        flushed(sink)
        StuckFile.fail = True
        offer(sink, 3, 4, 5)
        wait_until(lambda: sink.counts().dropped_total == 3)
        StuckFile.fail = False
        offer(sink, 6, 7)

    assert told(tmp_path) == [(3, 5, Cause.DISK)]
    (run,) = report(tmp_path).recorders
    assert run.totals.dropped == {"disk_error": 3}
    assert run.adds_up


def test_what_the_trace_refuses_is_refused(tmp_path: Path) -> None:
    """LEDGER-10: A malformed message used up a counter; its hole is explained by the count of such."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1)
        sink.offer(SOURCE, b"no message")
        offer(sink, 3)

    gap = only_gap(tmp_path)
    assert (gap.first, gap.last, gap.cause) == (2, 2, Cause.REFUSED)
    assert "malformed 1" in gap.evidence


@pytest.mark.parametrize(("reconnected", "cause"), [(False, Cause.SOCKET), (True, Cause.WIRE)])
def test_what_a_relay_saw_is_socket_or_wire(tmp_path: Path, reconnected: bool, cause: Cause) -> None:
    """LEDGER-10: Numbers skipped while the connection stood fell to a full socket, else to the wire."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1)
        event = LedgerEvent(
            EventKind.WIRE_GAP, SystemClock().unix_ms(), "tcp://x:1", "w", 0, [(2, 6)], 5, reconnected
        )
        sink.note(event)
        offer(sink, 7)

    assert told(tmp_path) == [(2, 6, cause)]


def test_causes_share_a_hole(tmp_path: Path) -> None:
    """LEDGER-10: Of one hole each part has the cause that the evidence names for it, the rest is unknown."""
    with recording(tmp_path) as sink:
        offer(sink, 0)
        flushed(sink)
        StuckFile.fail = True
        offer(sink, 3)
        wait_until(lambda: sink.counts().dropped_total == 1)
        StuckFile.fail = False
        at = SystemClock().unix_ms()
        sink.note(LedgerEvent(EventKind.WIRE_GAP, at, "tcp://x:1", "w", 0, [(1, 2)], 2, False))
        offer(sink, 6)

    assert told(tmp_path) == [(1, 2, Cause.SOCKET), (3, 3, Cause.DISK), (4, 5, Cause.UNKNOWN)]


def test_evidence_of_another_stream_explains_nothing(tmp_path: Path) -> None:
    """LEDGER-10: What was lost of rank 1 does not explain a hole of rank 0."""
    with recording(tmp_path) as sink:
        offer(sink, 0)
        at = SystemClock().unix_ms()
        sink.note(LedgerEvent(EventKind.WIRE_GAP, at, "tcp://x:1", "w", 1, [(1, 2)], 2, False))
        offer(sink, 3)

    assert told(tmp_path) == [(1, 2, Cause.UNKNOWN)]


def test_a_restart_is_a_restart(tmp_path: Path) -> None:
    """LEDGER-10: The counter began again at 2: two messages of the new life were not seen."""
    with recording(tmp_path) as sink:
        offer(sink, 8, 9, 2, 3)

    found = report(tmp_path)
    assert told(tmp_path) == [(0, 1, Cause.RESTART)]
    assert found.streams[0].restarts == 1


def test_two_publishers_under_one_name_are_told(tmp_path: Path) -> None:
    """LEDGER-10: Counters that take turns are two lives at once, and not a restart with every row."""
    with recording(tmp_path) as sink:
        for first, second in zip(range(100, 110), range(10), strict=True):
            offer(sink, first, second)

    found = report(tmp_path)
    assert found.streams[0].shared_name
    assert [(gap.count, gap.cause) for gap in found.gaps] == [(0, Cause.RESTART)]


SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from trace_files import payload, trace_settings
from forwardpass.trace.record import TraceSource
from forwardpass.trace.sink import TraceSink

sink = TraceSink(trace_settings(Path({folder!r})), {producer!r})
sink.start()
for counter in range({first}, {last}):
    sink.offer(TraceSource("ns", "backend", {producer!r}), payload(counter))
while sink.counts().pending:
    time.sleep(0.01)
time.sleep(0.1)
print("written", flush=True)
time.sleep(60)
"""


def killed_recorder(folder: Path, producer: str, first: int, last: int) -> None:
    """Record counters in a process of its own and kill it when they are written."""
    script = SCRIPT.format(
        tests=str(Path(__file__).parent), folder=str(folder), producer=producer, first=first, last=last
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("next_producer", [PRODUCER, "78"])
def test_a_time_without_a_recorder_is_that(tmp_path: Path, next_producer: str) -> None:
    """LEDGER-11: A recorder is killed and another one begins, with the same producer id or a new one."""
    killed_recorder(tmp_path, PRODUCER, 0, 5)
    killed_recorder(tmp_path, next_producer, 9, 12)

    gap = only_gap(tmp_path)
    assert (gap.first, gap.last, gap.cause) == (5, 8, Cause.RECORDER_DOWN)
    assert "without a last word" in gap.evidence
    assert [run.closed for run in report(tmp_path).recorders] == [False, False]
    assert all(run.adds_up for run in report(tmp_path).recorders)


def test_a_recorder_that_was_stopped_says_so(tmp_path: Path) -> None:
    """LEDGER-11: The last line of a recorder that ended as it should tells the two ends apart."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1)
    with recording(tmp_path) as sink:
        offer(sink, 5)

    gap = only_gap(tmp_path)
    assert gap.cause is Cause.RECORDER_DOWN
    assert "was stopped" in gap.evidence


def test_what_another_recorder_has_is_not_missing(tmp_path: Path) -> None:
    """LEDGER-12: Two recorders of one stream: only what neither has is missing, and it is told once."""
    names = ("a", "b")
    lost = {"a": {3, 4, 5}, "b": {5, 6}}
    for name in names:
        lines = [trace_line(counter, producer_id=name) for counter in range(10) if counter not in lost[name]]
        (tmp_path / f"fpm.{name}.000000.jsonl.gz").write_bytes(gzip_member(lines))

    assert [(gap.first, gap.last) for gap in report(tmp_path).gaps] == [(5, 5)]


def test_damage_is_damage(tmp_path: Path) -> None:
    """LEDGER-11: A hole beside a damaged gzip member was recorded; the file lost it, not the recorder."""
    with recording(tmp_path) as sink:
        for first in (0, 3, 6):
            offer(sink, *range(first, first + 3))
            flushed(sink)
    (path,) = segments(tmp_path)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 8] = b"\xff" * 8
    path.write_bytes(bytes(data))

    gap = only_gap(tmp_path)
    assert (gap.first, gap.last, gap.cause) == (3, 5, Cause.DAMAGE)


def test_a_file_that_is_gone_is_deleted(tmp_path: Path) -> None:
    """LEDGER-11: Of three segments the middle one was removed by somebody."""
    with recording(tmp_path, roll_bytes=1) as sink:
        offer(sink, 0, 1, 2)
    segments(tmp_path)[1].unlink()

    assert told(tmp_path) == [(1, 1, Cause.DELETED)]


def test_without_a_ledger_it_is_said_what_cannot_be_known(tmp_path: Path) -> None:
    """LEDGER-13: A hole in another writer's trace is unknown, and the reason is that there is no ledger."""
    lines = [trace_line(counter) for counter in (0, 1, 5)]
    (tmp_path / "fpm.4192.000000.jsonl.gz").write_bytes(gzip_member(lines))

    found = report(tmp_path)
    (gap,) = found.gaps
    assert (gap.cause, found.files_without_ledger) == (Cause.UNKNOWN, 1)
    assert "no ledger" in gap.evidence


def test_a_silence_is_listed(tmp_path: Path) -> None:
    """LEDGER-09: A pause of the engine leaves no gap in its counters; that it was silent is told."""
    with recording(tmp_path) as sink:
        offer(sink, 0)
        at = SystemClock().unix_ms()
        sink.note(LedgerEvent(EventKind.SILENT, at, "tcp://x:1", "w", 0, seconds=12.5))
        offer(sink, 1)

    found = report(tmp_path)
    assert [(each.worker_id, each.until_unix_ms, each.seconds) for each in found.silences] == [
        ("w", at, 12.5)
    ]
    assert (found.gaps, found.missing) == ([], 0)
    assert "12.5" in "\n".join(render_gaps(found, 20))


def test_a_sample_is_a_sample(tmp_path: Path) -> None:
    """LEDGER-14: What sampling left out is not missing; what never arrived is, as far as was counted."""
    with recording(tmp_path, mode=CaptureMode.SAMPLED, sample_interval_seconds=0.2) as sink:
        offer(sink, *range(10))
        flushed(sink)
        at = SystemClock().unix_ms()
        sink.note(LedgerEvent(EventKind.WIRE_GAP, at, "tcp://x:1", "w", 0, [(10, 13)], 4, False))
        offer(sink, *range(14, 20), 23, 24)

    found = report(tmp_path)
    (stream,) = found.streams
    assert (stream.sampled, stream.rows) == (True, 2)
    assert [(gap.first, gap.last, gap.cause) for gap in found.gaps] == [(10, 13, Cause.SOCKET)]
    assert stream.lost_unseen == 3
    assert found.missing == 7


def test_a_sample_without_a_ledger_is_not_known(tmp_path: Path) -> None:
    """LEDGER-14: Sampled rows of another writer cannot tell whether anything was lost."""
    lines = [trace_line(counter, capture_mode="sampled") for counter in (0, 50, 99)]
    (tmp_path / "fpm.4192.000000.jsonl.gz").write_bytes(gzip_member(lines))

    found = report(tmp_path)
    (stream,) = found.streams
    assert (found.gaps, stream.lost_unseen, stream.sampled_out) == ([], None, 97)


# --- the ledger's own life -----------------------------------------------------------------------


def test_the_ledger_lives_and_dies_with_its_segment(tmp_path: Path) -> None:
    """LEDGER-15: One for each segment, removed with it; its lines follow each other without a hole."""
    with recording(tmp_path, roll_bytes=1, max_segments=3) as sink:
        offer(sink, *range(8))

    left = [path.name for path in segments(tmp_path)]
    ledgers = sorted(path.name for path in tmp_path.glob("*.ledger"))
    assert [name.replace(".jsonl.gz", ".ledger") for name in left] == ledgers
    assert len(left) == 3
    lines = [
        decode_ledger_line(line)
        for name in ledgers
        for line in (tmp_path / name).read_bytes().splitlines(keepends=True)
    ]
    assert None not in lines
    assert all(
        one is not None and two is not None and one.to_unix_ms == two.from_unix_ms
        for one, two in itertools.pairwise(lines)
    )


def test_a_name_that_is_taken_costs_the_ledger_and_no_row(tmp_path: Path) -> None:
    """LEDGER-16: A link planted at the ledger's name is not followed, not replaced, and not waited for."""
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with recording(tmp_path) as sink:
        (tmp_path / f"fpm.{PRODUCER}.000000.ledger").symlink_to(victim)
        offer(sink, 0, 1)

    (path,) = segments(tmp_path)
    assert len(text(path).splitlines()) == 2
    assert victim.read_text() == "mine"
    assert report(tmp_path).bad_ledger_lines == 1  # what the link shows is no ledger


def test_a_torn_ledger_costs_its_last_line(tmp_path: Path) -> None:
    """LEDGER-16: Cut anywhere, the lines before the cut still explain, and the rows are all there."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1)
        sink.offer(SOURCE, b"no message")
        offer(sink, 3)
        flushed(sink)
    (path,) = segments(tmp_path)
    ledger = ledger_of(path)
    assert ledger is not None
    whole = ledger.read_bytes()
    ends = [at for at in range(len(whole)) if whole[at : at + 1] == b"\n"]
    for cut in range(0, len(whole), 7):
        ledger.write_bytes(whole[:cut])
        found = report(tmp_path)

        assert sum(stream.rows for stream in found.streams) == 3
        assert [gap.count for gap in found.gaps] == [1]
        assert found.bad_ledger_lines == (cut - 1 not in ends and cut > 0 and cut not in ends)


def test_a_repaired_trace_keeps_its_explanation(tmp_path: Path) -> None:
    """LEDGER-15: The ledger is copied beside the new file, and explains the same gap there."""
    with recording(tmp_path / "old") as sink:
        offer(sink, 0, 1)
        sink.offer(SOURCE, b"no message")
        offer(sink, 3)
    list(repair(find_segments(tmp_path / "old"), tmp_path / "new"))

    assert told(tmp_path / "new") == told(tmp_path / "old") == [(2, 2, Cause.REFUSED)]


def test_pruning_removes_the_ledgers_of_a_dead_producer(tmp_path: Path) -> None:
    """LEDGER-15: A producer's ledgers go with its segments, and one that was left alone goes too."""
    with recording(tmp_path, roll_bytes=1) as sink:
        offer(sink, 0, 1)
    segments(tmp_path)[0].unlink()
    (stale,) = stale_producers(survey(str(tmp_path / "fpm")), SystemClock().unix_ms() + 60_000)

    assert remove(stale) == []
    assert os.listdir(tmp_path) == []


def test_the_command_says_it_in_words_and_json(tmp_path: Path) -> None:
    """LEDGER-09: Exit code 1 if something is missing; the JSON document holds every gap."""
    with recording(tmp_path) as sink:
        offer(sink, 0, 1, 5)
    command = [sys.executable, "-m", "forwardpass", "trace", "gaps", str(tmp_path)]
    words = subprocess.run(command, capture_output=True, text=True, check=False)
    document = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)

    assert (words.returncode, document.returncode) == (1, 1)
    assert "2..4" in words.stdout
    assert "No gap is not “no loss”" in words.stdout
    (gap,) = json.loads(document.stdout)["gaps"]
    assert (gap["first"], gap["last"], gap["cause"]) == (2, 4, "unknown")
    assert os.listdir(tmp_path)
