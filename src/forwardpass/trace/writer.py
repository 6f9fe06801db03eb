"""Knows how rows reach the disk: one complete gzip member per flush, in segments that roll and are pruned.

Which name, when to roll and what to prune is decided in ``segments.py``; here it is done. A failing disk
costs the rows of a batch, never an exception.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.config.settings import Fsync, TraceSettings
from forwardpass.counters import Counters, DropReason
from forwardpass.errors import TracePathError
from forwardpass.quiet import QuietLog
from forwardpass.trace.folders import CANNOT_SYNC, make_folder, sync_folder
from forwardpass.trace.gzip_member import compress_member
from forwardpass.trace.live import remove_finished
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.segments import MAX_INDEX, Entry, Fill, SegmentNames, lonely_ledgers, prunable

__all__ = ["FLUSH_BYTES", "FLUSH_SECONDS", "SegmentWriter", "WriterCounts", "WriterWatch"]

logger = logging.getLogger(__name__)

FLUSH_BYTES = 1 << 20
FLUSH_SECONDS = 1.0

_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class WriterCounts(Struct):
    """What the writer did, in total."""

    rows: int = 0
    """Rows whose member reached the operating system."""
    segments: int = 0
    flushes: int = 0
    """Gzip members written."""
    uncompressed_bytes: int = 0
    compressed_bytes: int = 0
    last_error: str | None = None


class WriterWatch(Protocol):
    """Who is told what becomes of rows, in the order in which they were appended."""

    def settled(self, rows: int, lost: DropReason | None) -> None:
        """The oldest ``rows`` were written, or were ``lost``."""
        ...

    def segment_ends(self, index: int) -> None:
        """Nothing more will be written to segment ``index``, which exists."""
        ...


class SegmentWriter:
    """Batches lines and writes them to the segments of one producer.

    Rows count as delivered once their member reached the operating system, and as lost (``disk_error``)
    when that failed; until then they are pending. Belongs to one thread.
    """

    def __init__(
        self,
        names: SegmentNames,
        settings: TraceSettings,
        counters: Counters,
        clock: Clock,
        *,
        create: Callable[[str], SegmentFile] = SegmentFile,
        watch: WriterWatch | None = None,
        waited_seconds: float = 0.0,
    ) -> None:
        """``waited_seconds`` is how long a row may have waited elsewhere before it comes here."""
        self.counts = WriterCounts()
        self.created: int | None = None
        """Index of the newest segment that was created here."""
        self._watch = watch
        self._names = names
        self._settings = settings
        self._counters = counters
        self._clock = clock
        self._create_file = create
        self._flush_seconds = FLUSH_SECONDS - waited_seconds
        self._log = QuietLog(logger, clock)
        self._index = 0
        self._file: SegmentFile | None = None
        self._unpruned = False
        self._fill = Fill()
        self._batch = bytearray()  # its first ``_batch_fill.bytes`` count
        self._batch_fill = Fill()
        self._flush_at = 0.0
        self._failed_rows = 0
        self._paths: list[str] = []
        self._unsynced_folders: list[str] = []

    def open(self) -> None:
        """Find the next free index. No file is created before the first flush.

        Raises ``OSError``, and ``TracePathError`` where no index is left.
        """
        self._index = self._names.next_index(os.listdir(self._names.directory))
        if self._index > MAX_INDEX:
            raise TracePathError(self._where(), f"no segment can be numbered higher than {MAX_INDEX}")

    @property
    def paths(self) -> tuple[str, ...]:
        """The segments written here that were not pruned, oldest first."""
        return tuple(self._paths)

    # --- rows come in ----------------------------------------------------------------------------

    def append(self, lines: bytes, rows: int) -> None:
        """Add ``rows`` lines, each ending in a newline, to the batch; flush and roll where due."""
        size = len(lines)
        fits = self._fill.bytes + size <= self._settings.roll_bytes
        if fits and self._batch_fill.bytes + size < FLUSH_BYTES:
            self._add(lines, rows)
            return
        start = 0
        while start < size:
            room = min(self._settings.roll_bytes - self._fill.bytes, FLUSH_BYTES - 1 - self._batch_fill.bytes)
            end = lines.rfind(b"\n", start, start + max(0, room)) + 1
            if end > start:  # as many as neither end a member nor a segment
                self._add(lines[start:end], lines.count(b"\n", start, end))
            else:
                end = lines.find(b"\n", start) + 1
                self._append_line(lines[start:end])
            start = end

    def _append_line(self, line: bytes) -> None:
        roll_bytes = self._settings.roll_bytes
        if self._fill.rolls_before(len(line), roll_bytes):
            self.flush()
            if self._fill.rolls_before(len(line), roll_bytes):  # unless the disk refused what was there
                self._next_segment()
        self._add(line, 1)
        if self._batch_fill.bytes >= FLUSH_BYTES:
            self.flush()

    def _add(self, lines: bytes, rows: int) -> None:
        if not self._batch_fill.rows:
            self._flush_at = self._clock.monotonic() + self._flush_seconds
        end = self._batch_fill.bytes
        self._batch[end : end + len(lines)] = lines
        self._batch_fill.add(rows, len(lines))
        self._fill.add(rows, len(lines))

    # --- members go out --------------------------------------------------------------------------

    def seconds_to_flush(self, now: float) -> float:
        """Return how long the batch may still wait (infinity without one)."""
        return max(0.0, self._flush_at - now) if self._batch_fill.rows else float("inf")

    def flush_if_due(self, now: float) -> None:
        """Flush if the oldest row has waited for a second, the time before it came here included."""
        if self._batch_fill.rows and now >= self._flush_at:
            self.flush()

    def flush(self) -> None:
        """Write the batch, if there is one, as one gzip member; on an error lose it, and count it so."""
        batch = self._batch_fill
        if not batch.rows:
            return
        self._batch_fill = Fill()
        self._fill.add(-batch.rows, -batch.bytes)
        try:
            member = self._compressed(batch.bytes)
            self._write_or_make_room(member)
        except OSError as error:
            self._lose(DropReason.DISK_ERROR, batch.rows, error.strerror or str(error))
            return
        except MemoryError:
            self._lose(DropReason.INTERNAL_ERROR, batch.rows, "out of memory")
            return
        self._fill.add(batch.rows, batch.bytes)
        self._count(batch, len(member))
        if self._unpruned:
            self._prune()

    def _compressed(self, size: int) -> bytes:
        """Return the batch's ``size`` bytes as a member, and keep their room for the next batch.

        A new megabyte for each member was new pages for the kernel to clear: 0.27 page faults a row.
        """
        try:
            with memoryview(self._batch) as room, room[:size] as text:
                return compress_member(text)
        finally:
            del self._batch[FLUSH_BYTES:]  # a row of many megabytes does not keep them

    def close(self) -> None:
        """Flush and close the segment."""
        self.flush()
        self._close_file()

    def _count(self, batch: Fill, member_bytes: int) -> None:
        counts = self.counts
        self._counters.delivered += batch.rows  # before ``rows``: readers rely on rows <= delivered
        counts.rows += batch.rows
        counts.flushes += 1
        counts.uncompressed_bytes += batch.bytes
        counts.compressed_bytes += member_bytes
        if self._watch is not None:
            self._watch.settled(batch.rows, None)
        if self._failed_rows:
            logger.warning("trace %s is written again; %d rows were lost", self._where(), self._failed_rows)
            self._failed_rows = 0

    def _lose(self, reason: DropReason, rows: int, words: str) -> None:
        self._counters.lose(reason, rows)
        self._failed_rows += rows
        self.counts.last_error = words
        if self._watch is not None:
            self._watch.settled(rows, reason)
        self._log.warning("write", f"trace {self._where()} cannot be written: {words}; rows lost: {rows:,}")

    # --- one segment -----------------------------------------------------------------------------

    def _write_or_make_room(self, member: bytes) -> None:
        """Write; where a full disk or a full file refuses, do what makes room, once."""
        try:
            self._write(member)
        except OSError as error:
            if self._file is None:  # what was written could not be cut off: again would be twice
                raise
            if error.errno in _DISK_FULL and self._unpruned:
                self._prune()  # the new segment makes one of ours too many, and that may be what fills it
            elif error.errno == errno.EFBIG and self._fill.rows:
                self._next_segment()
            else:
                raise
            self._write(member)

    def _write(self, member: bytes) -> None:
        file = self._findable() or self._create()
        offset = None
        try:
            offset = file.size()
            file.append(member)
            if self._settings.fsync is Fsync.FLUSH:
                file.sync()
                self._sync_folders()
        except OSError:
            self._take_back(file, offset)
            raise

    def _take_back(self, file: SegmentFile, offset: int | None) -> None:
        """Cut a member that failed off again (decision D-25), or leave the segment as it is for good.

        What follows a torn member is unreadable to ordinary gzip readers, so nothing may follow it.
        """
        if offset is not None:
            with suppress(OSError):
                file.truncate(offset)
                return
        self._next_segment()

    def _findable(self) -> SegmentFile | None:
        """Return the open segment, unless it was deleted behind our back: then the next one is due."""
        file = self._file
        if file is not None and file.deleted():
            self._log.warning("deleted", f"trace segment {file.path} was deleted; the next one begins")
            self._forget(file.path)
            self._next_segment()
        return self._file

    def _create(self) -> SegmentFile:
        changed = [*make_folder(self._names.directory), self._names.directory]
        while True:
            if self._index > MAX_INDEX:
                raise OSError(errno.EOVERFLOW, f"no segment can be numbered higher than {MAX_INDEX}")
            path = self._names.path(self._index)
            try:
                self._file = self._create_file(path)
                break
            except FileExistsError:
                self._index += 1
        self._paths.append(path)
        self.created = self._index
        self.counts.segments += 1
        self._unpruned = True
        if self._settings.fsync is not Fsync.NEVER:
            self._unsynced_folders += changed
        return self._file

    def _next_segment(self) -> None:
        self._close_file()
        if self._watch is not None and self.created == self._index:
            self._watch.segment_ends(self._index)
        self._index += 1
        self._fill = Fill()

    def _close_file(self) -> None:
        if self._file is None:
            return
        if self._settings.fsync is not Fsync.NEVER:
            try:
                self._file.sync()
                self._sync_folders()
            except OSError as error:
                self.counts.last_error = str(error)
                self._log.warning("sync", f"trace segment {self._file.path} cannot be synced: {error}")
        self._file.close()
        self._file = None

    def _sync_folders(self) -> None:
        """Force the names of what is new to the disk, so that it is found after a power loss."""
        while self._unsynced_folders:
            folder = self._unsynced_folders[-1]
            try:
                sync_folder(folder)
            except OSError as error:
                if error.errno not in CANNOT_SYNC:
                    raise
                self._log.warning("sync", f"trace folder {folder} cannot be synced: {error}")
            self._unsynced_folders.pop()

    def _where(self) -> str:
        return self._names.path(self._index)

    # --- retention -------------------------------------------------------------------------------

    def _prune(self) -> None:
        """Delete the oldest segments of this producer. Tried once for each new segment."""
        self._unpruned = False
        try:
            with os.scandir(self._names.directory) as listing:
                entries = [Entry(item.name, item.is_file(follow_symlinks=False)) for item in listing]
        except OSError as error:
            self._log.warning("prune", f"old segments of {self._where()} cannot be looked for: {error}")
            return
        gone = []
        for index in prunable(self._names, entries, self._settings.max_segments, self._index):
            path = self._names.path(index)
            if self._delete(path):
                self._forget(path)
                gone.append(index)
        for index in lonely_ledgers(self._names, entries, gone, self._index):
            self._delete(self._names.ledger_path(index))

    def _delete(self, path: str) -> bool:
        try:
            if not remove_finished(path):  # another recorder of this producer writes it
                return False
        except FileNotFoundError:  # somebody else was faster
            pass
        except OSError as error:  # one that cannot go must not keep the others
            self._log.warning("prune", f"old trace segment {path} cannot be deleted: {error}")
            return False
        return True

    def _forget(self, path: str) -> None:
        if path in self._paths:
            self._paths.remove(path)
