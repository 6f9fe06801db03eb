"""Knows a mistake for each clause of the loss contract, and which check has to find it.

Each is put into the product's classes for as long as a process lives. They show that the checks can fail.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from forwardpass import counters
from forwardpass.pump import Pump
from forwardpass.trace import preflight, report, segment_file, segment_reader, segments, sink, writer
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.writer import SegmentWriter

__all__ = ["MISTAKES", "Mistake"]


class Mistake(NamedTuple):
    """One way to break one clause."""

    clause: str
    check: str
    words: str
    make: Callable[[], None]


def _close_without_flush() -> None:
    SegmentWriter.close = SegmentWriter._close_file


def _two_seconds() -> None:
    writer.FLUSH_SECONDS = 2.0


def _member_without_trailer() -> None:
    compress = writer.compress_member
    writer.compress_member = lambda data: compress(data)[:-4]


def _sync_always() -> None:
    append = SegmentFile.append

    def wrong(self: SegmentFile, data: bytes) -> None:
        append(self, data)
        self.sync()

    SegmentFile.append = wrong


def _names_not_synced() -> None:
    writer.sync_folder = lambda path: None


def _parents_not_synced() -> None:
    preflight.sync_folder = lambda path: None


def _files_not_synced() -> None:
    SegmentFile.sync = lambda self: None


def _damage_stays() -> None:
    SegmentFile.truncate = lambda self, size: None


def _losses_not_counted() -> None:
    def wrong(self: Any, reason: Any, rows: int, words: str) -> None:
        self.counts.last_error = words

    SegmentWriter._lose = wrong


def _off_after_an_error() -> None:
    write, failed = SegmentWriter._write, []

    def wrong(self: SegmentWriter, member: bytes) -> None:
        if failed:
            raise failed[0]
        try:
            write(self, member)
        except OSError as error:
            failed.append(error)
            raise

    SegmentWriter._write = wrong


def _surplus_stays() -> None:
    SegmentWriter._write_or_make_room = SegmentWriter._write


def _torn_rows_believed() -> None:
    begin = segment_reader.SegmentReader.__init__

    def wrong(self: Any, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **{**options, "unverified": True})

    segment_reader.SegmentReader.__init__ = wrong


def _damage_has_no_range() -> None:
    add = report.FileReport.add_range

    def wrong(self: Any, start: int, end: int, damage: Any = None) -> None:
        if damage is None:
            add(self, start, end)

    report.FileReport.add_range = wrong


def _evicted_not_counted() -> None:
    def wrong(self: Any) -> bool:
        self._queue.popleft()
        return True

    Pump._make_room = wrong


def _settled_read_last() -> None:
    """Somebody reads the counts in the wrong order: what is settled in between is counted twice."""
    snapshot = counters.Counters.snapshot

    def wrong(self: Any) -> Any:
        offered = self.offered
        threading.Event().wait(0.0005)
        now = snapshot(self)
        return counters.StageCounts(
            offered, now.accepted - now.offered + offered, now.delivered, now.pending - now.offered + offered,
            now.dropped,
        )  # fmt: skip

    counters.Counters.snapshot = wrong


def _live_not_asked() -> None:
    def wrong(path: str) -> bool:
        os.unlink(path)
        return True

    writer.remove_finished = wrong


def _anything_is_a_segment() -> None:
    entry = writer.Entry
    writer.Entry = lambda name, regular: entry(name, True)


def _one_too_many() -> None:
    right = writer.prunable
    writer.prunable = lambda names, entries, most, active: right(names, entries, most + 1, active)


def _one_lock_for_all() -> None:
    flush, lock = SegmentWriter.flush, threading.Lock()

    def wrong(self: SegmentWriter) -> None:
        with lock:
            flush(self)

    SegmentWriter.flush = wrong


def _offer_waits() -> None:
    def wrong(self: Any) -> bool:
        while len(self._queue) >= self._capacity:
            threading.Event().wait(0.01)
        return True

    Pump._make_room = wrong


def _links_followed() -> None:
    segment_file._CREATE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK


def _deleted_not_noticed() -> None:
    SegmentFile.deleted = lambda self: False


def _names_reused() -> None:
    segments.SegmentNames.next_index = lambda self, names: 0
    segment_file._CREATE = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    segment_file.claim = lambda descriptor: True


def _parents_batch_kept() -> None:
    def begin_once(self: Any) -> None:
        preflight.prove_writable(self._settings.output_prefix)
        if not self.writer.counts.flushes and not self.writer._batch:
            self.writer.open()

    sink._SinkTask.open = begin_once
    sink._SinkTask.forked = lambda self: self._on_fork()


def _wall_clock() -> None:
    """The flush is due by the time of day."""

    def add(self: Any, lines: bytes, rows: int) -> None:
        if not self._batch:
            self._flush_at = self._clock.unix_ms() / 1000 + 1
        self._batch.append(lines)
        self._batch_fill.add(rows, len(lines))
        self._fill.add(rows, len(lines))

    def due(self: Any, now: float) -> None:
        if self._batch and self._clock.unix_ms() / 1000 >= self._flush_at + 7200:
            self.flush()

    SegmentWriter._add = add
    SegmentWriter.flush_if_due = due


MISTAKES: tuple[Mistake, ...] = (
    Mistake("LOSS-01", "stops", "a close forgets the batch", _close_without_flush),
    Mistake("LOSS-02", "kills", "rows wait for two seconds", _two_seconds),
    Mistake("LOSS-03", "kills", "a member is written without its end", _member_without_trailer),
    Mistake("LOSS-04", "power", "every write is forced, asked for or not", _sync_always),
    Mistake("LOSS-05", "power", "the folder is not forced with the file", _names_not_synced),
    Mistake("LOSS-06", "power", "the file is not forced", _files_not_synced),
    Mistake(
        "LOSS-06", "power", "a folder that was made is not forced into the one above", _parents_not_synced
    ),
    Mistake("LOSS-07", "faults", "half a member stays behind", _damage_stays),
    Mistake("LOSS-08", "faults", "a failed batch is not counted", _losses_not_counted),
    Mistake("LOSS-08", "faults", "one error ends the recording", _off_after_an_error),
    Mistake("LOSS-08", "full-disk", "the surplus is not removed from a full disk", _surplus_stays),
    Mistake("LOSS-09", "damage", "rows without a checksum are believed", _torn_rows_believed),
    Mistake("LOSS-09", "damage", "damaged bytes are in no range", _damage_has_no_range),
    Mistake("LOSS-10", "identity", "what makes room is not counted", _evicted_not_counted),
    Mistake("LOSS-10", "identity", "what was offered is read before what is settled", _settled_read_last),
    Mistake("LOSS-11", "retention", "nobody asks whether a segment is written", _live_not_asked),
    Mistake("LOSS-11", "retention", "pipes and folders are taken for segments", _anything_is_a_segment),
    Mistake("LOSS-12", "retention", "one segment too many is kept", _one_too_many),
    Mistake("LOSS-13", "apart", "all writers share a lock", _one_lock_for_all),
    Mistake("LOSS-13", "apart", "an offer waits for room", _offer_waits),
    Mistake("LOSS-14", "planted", "segments are opened through what is there", _links_followed),
    Mistake("LOSS-15", "meddling", "a deleted segment is written on", _deleted_not_noticed),
    Mistake("LOSS-16", "restarts", "a restart writes on in the first segment", _names_reused),
    Mistake("LOSS-16", "restarts", "a forked child keeps its parent's batch", _parents_batch_kept),
    Mistake("LOSS-17", "clocks", "the flush goes by the wall clock", _wall_clock),
)
