"""Segments on a real file system, with a clock that the tests move."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_files import line, make_writer, members, segment, segments, text

from forwardpass.config.settings import Fsync
from forwardpass.counters import Counters, DropReason
from forwardpass.errors import TracePathError
from forwardpass.testing.clock import ManualClock
from forwardpass.trace.segment_file import SegmentFile
from forwardpass.trace.writer import FLUSH_BYTES


def test_no_file_before_the_first_flush(tmp_path: Path) -> None:
    """TRACE-08: a segment is created when its first bytes are written."""
    writer = make_writer(tmp_path)
    writer.append(line(1), 1)
    assert segments(tmp_path) == []
    writer.flush()

    assert segments(tmp_path) == [segment(tmp_path, 0)]


def test_a_writer_without_rows_leaves_nothing(tmp_path: Path) -> None:
    """Opening, flushing and closing without a row creates no file."""
    writer = make_writer(tmp_path)
    writer.flush()
    writer.close()

    assert list(tmp_path.iterdir()) == []
    assert writer.seconds_to_flush(0.0) == float("inf")


def test_each_flush_is_one_complete_member(tmp_path: Path) -> None:
    """TRACE-41: after every flush the file is a sequence of complete members of whole lines."""
    writer = make_writer(tmp_path)
    for number in range(3):
        writer.append(line(number) + line(number), 2)
        writer.flush()

        assert members(segment(tmp_path, 0)) == [line(done) * 2 for done in range(number + 1)]


def test_rows_wait_one_second_at_most(tmp_path: Path) -> None:
    """TRACE-40: a batch is written one second after its first row came."""
    clock = ManualClock()
    writer = make_writer(tmp_path, clock=clock)
    writer.append(line(1), 1)
    clock.advance(0.5)
    writer.append(line(2), 1)
    assert writer.seconds_to_flush(clock.monotonic()) == pytest.approx(0.5)
    writer.flush_if_due(clock.monotonic())
    assert segments(tmp_path) == []
    clock.advance(0.5)
    writer.flush_if_due(clock.monotonic())

    assert text(segment(tmp_path, 0)) == line(1) + line(2)


def test_the_second_begins_when_a_payload_is_offered(tmp_path: Path) -> None:
    """TRACE-40, LOSS-02: the time that a row may have waited before it came here is in its second."""
    clock = ManualClock()
    writer = make_writer(tmp_path, clock=clock, waited_seconds=0.25)
    writer.append(line(1), 1)
    clock.advance(0.5)
    writer.flush_if_due(clock.monotonic())
    assert segments(tmp_path) == []
    assert writer.seconds_to_flush(clock.monotonic()) == pytest.approx(0.25)
    clock.advance(0.25)
    writer.flush_if_due(clock.monotonic())

    assert text(segment(tmp_path, 0)) == line(1)


def test_a_mebibyte_is_flushed_at_once(tmp_path: Path) -> None:
    """TRACE-40: the row that brings the batch to 1 MiB is the last of its member."""
    writer = make_writer(tmp_path)
    size = 1000
    rows = FLUSH_BYTES // size + 1
    writer.append(b"".join(line(number, size) for number in range(rows + 5)), rows + 5)

    assert [len(member) for member in members(segment(tmp_path, 0))] == [rows * size]
    writer.close()
    assert [len(member) for member in members(segment(tmp_path, 0))] == [rows * size, 5 * size]


def test_only_rows_that_reached_the_system_are_written(tmp_path: Path) -> None:
    """Rows in the batch are pending; they count as delivered with their member."""
    counters = Counters()
    writer = make_writer(tmp_path, counters=counters)
    counters.offered = 3
    writer.append(line(1) + line(2), 2)
    assert (writer.counts.rows, counters.snapshot().pending) == (0, 3)
    writer.flush()

    assert (writer.counts.rows, counters.delivered, counters.snapshot().pending) == (2, 2, 1)
    assert writer.counts.uncompressed_bytes == 200
    assert writer.counts.compressed_bytes == segment(tmp_path, 0).stat().st_size


def test_four_rows_of_667_bytes_in_3000(tmp_path: Path) -> None:
    """TRACE-42: with a limit of 3000, rows of 667 bytes go four to a segment and a large one goes alone."""
    writer = make_writer(tmp_path, roll_bytes=3000, max_segments=100)
    sizes = [667] * 9 + [5666, 667]
    writer.append(b"".join(line(number, size) for number, size in enumerate(sizes)), len(sizes))
    writer.close()

    assert [len(text(path).splitlines()) for path in segments(tmp_path)] == [4, 4, 1, 1, 1]
    assert [len(text(path)) for path in segments(tmp_path)][3] == 5666


def test_reaching_the_limit_exactly_does_not_roll(tmp_path: Path) -> None:
    """TRACE-42: rows that fill a segment to its limit stay in it; the next row rolls."""
    writer = make_writer(tmp_path, roll_bytes=300)
    for number in range(4):
        writer.append(line(number), 1)
    writer.close()

    assert [len(text(path)) for path in segments(tmp_path)] == [300, 100]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.integers(2, 900), min_size=1, max_size=30), max_size=8),
    st.integers(1, 3000),
    st.sets(st.integers(0, 7)),
)
def test_nothing_is_lost_or_reordered(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]], limit: int, flushes: set[int]
) -> None:
    """TRACE-42: for any rows, limits and flushes the segments hold all rows in order and keep the limit."""
    folder = tmp_path_factory.mktemp("law")
    writer = make_writer(folder, roll_bytes=limit, max_segments=10_000)
    expected = b""
    for number, sizes in enumerate(batches):
        lines = b"".join(line(index % 10, size) for index, size in enumerate(sizes))
        expected += lines
        writer.append(lines, len(sizes))
        if number in flushes:
            writer.flush()
    writer.close()

    texts = [text(path) for path in segments(folder)]
    assert b"".join(texts) == expected
    assert all(len(whole) <= limit or whole.count(b"\n") == 1 for whole in texts)
    assert writer.counts.rows == sum(map(len, batches))


def test_a_restart_goes_on_at_the_next_index(tmp_path: Path) -> None:
    """TRACE-07: a new writer never appends to an old segment."""
    for number in range(3):
        writer = make_writer(tmp_path)
        writer.append(line(number), 1)
        writer.close()

    assert [text(path) for path in segments(tmp_path)] == [line(0), line(1), line(2)]


def test_a_name_that_is_taken_is_passed_over(tmp_path: Path) -> None:
    """TRACE-08: whatever has the name when the segment is created, file, folder or link, stays as it is."""
    writer = make_writer(tmp_path)
    target = tmp_path / "target"
    target.write_text("not yours")
    segment(tmp_path, 0).write_text("")
    segment(tmp_path, 1).mkdir()
    segment(tmp_path, 2).symlink_to(target)
    segment(tmp_path, 3).symlink_to(tmp_path / "nowhere")
    writer.append(line(1), 1)
    writer.close()

    assert text(segment(tmp_path, 4)) == line(1)
    assert target.read_text() == "not yours"
    assert segment(tmp_path, 0).read_text() == ""
    assert not (tmp_path / "nowhere").exists()


def test_folders_and_links_count_for_the_index(tmp_path: Path) -> None:
    """TRACE-07: the highest index counts, whatever kind of entry has it."""
    segment(tmp_path, 4).mkdir()
    segment(tmp_path, 9).symlink_to("nowhere")
    writer = make_writer(tmp_path)
    writer.append(line(1), 1)
    writer.close()

    assert text(segment(tmp_path, 10)) == line(1)


def test_two_writers_never_share_a_file(tmp_path: Path) -> None:
    """TRACE-08: two writers with one prefix and producer that start together write different segments."""
    first, second = make_writer(tmp_path), make_writer(tmp_path)
    for number in range(3):
        first.append(line(number), 1)
        first.flush()
        second.append(line(number), 1)
        second.flush()

    assert first.paths != second.paths
    assert [len(members(path)) for path in segments(tmp_path)] == [3, 3]


def test_a_segment_stays_open_for_its_life(tmp_path: Path) -> None:
    """TRACE-08: a link that takes the segment's place later is not written through."""
    writer = make_writer(tmp_path)
    writer.append(line(1), 1)
    writer.flush()
    moved, target = tmp_path / "moved", tmp_path / "target"
    segment(tmp_path, 0).rename(moved)
    segment(tmp_path, 0).symlink_to(target)
    writer.append(line(2), 1)
    writer.close()

    assert not target.exists()
    assert text(moved) == line(1) + line(2)


def test_a_lost_folder_is_made_again(tmp_path: Path) -> None:
    """TRACE-08: a folder that went away before a segment is created comes back with it."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    writer = make_writer(folder)
    folder.rmdir()
    writer.append(line(1), 1)
    writer.close()

    assert text(segment(folder, 0)) == line(1)


def test_a_deleted_segment_is_not_written_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRACE-08: what follows the deletion of the open segment goes to the next one, where it can be found,
    and one line says so.
    """
    writer = make_writer(tmp_path)
    writer.append(line(1), 1)
    writer.flush()
    segment(tmp_path, 0).unlink()
    with caplog.at_level(logging.WARNING):
        writer.append(line(2), 1)
        writer.flush()
        writer.append(line(3), 1)
        writer.close()

    assert segments(tmp_path) == [segment(tmp_path, 1)]
    assert members(segment(tmp_path, 1)) == [line(2), line(3)]
    assert writer.paths == (str(segment(tmp_path, 1)),)
    assert ["was deleted" in record.getMessage() for record in caplog.records] == [True]


def test_a_folder_deleted_under_the_writer_comes_back(tmp_path: Path) -> None:
    """TRACE-08: removing the whole folder while it is written to costs what was in it and nothing more."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    writer = make_writer(folder, max_segments=1)
    writer.append(line(1), 1)
    writer.flush()
    shutil.rmtree(tmp_path / "a")
    writer.append(line(2), 1)
    writer.close()

    assert [text(path) for path in segments(folder)] == [line(2)]


def test_a_deleted_segment_does_not_count_for_the_next_roll(tmp_path: Path) -> None:
    """TRACE-42: the segment after a deleted one takes as many rows as any other."""
    writer = make_writer(tmp_path, roll_bytes=300)
    writer.append(line(1) + line(2), 2)
    writer.flush()
    segment(tmp_path, 0).unlink()
    writer.append(line(3), 1)
    writer.flush()
    writer.append(line(4) + line(5) + line(6), 3)
    writer.close()

    assert [text(path) for path in segments(tmp_path)] == [line(3) + line(4) + line(5), line(6)]


def test_old_segments_go(tmp_path: Path) -> None:
    """TRACE-43: with two segments kept, a writer that rolls deletes the older ones, and those before it."""
    for number in range(3):
        segment(tmp_path, number).write_bytes(b"old")
    writer = make_writer(tmp_path, roll_bytes=100, max_segments=2)
    writer.append(line(1), 1)
    assert len(segments(tmp_path)) == 3
    writer.flush()
    assert segments(tmp_path) == [segment(tmp_path, 2), segment(tmp_path, 3)]
    writer.append(line(2) + line(3), 2)
    writer.close()

    assert [path.name for path in segments(tmp_path)] == [Path(path).name for path in writer.paths]
    assert segments(tmp_path) == [segment(tmp_path, 4), segment(tmp_path, 5)]


def test_retention_looks_once_per_segment(tmp_path: Path) -> None:
    """TRACE-43: what is too much after a segment's first write is left until the next segment's."""
    segment(tmp_path, 5).write_bytes(b"")
    writer = make_writer(tmp_path, roll_bytes=300, max_segments=1)
    writer.append(line(0), 1)
    writer.flush()
    segment(tmp_path, 4).write_bytes(b"")
    for number in (1, 2):
        writer.append(line(number), 1)
        writer.flush()
    assert segments(tmp_path) == [segment(tmp_path, 4), segment(tmp_path, 6)]
    writer.append(line(3), 1)
    writer.close()

    assert segments(tmp_path) == [segment(tmp_path, 7)]


def test_retention_spares_the_segment_that_is_written(tmp_path: Path) -> None:
    """TRACE-43: the active segment stays even where it is not the newest by its number."""
    writer = make_writer(tmp_path, max_segments=1)
    segment(tmp_path, 5).write_bytes(b"")  # after the writer chose its index
    writer.append(line(0), 1)
    writer.close()

    assert segments(tmp_path) == [segment(tmp_path, 0)]


def test_decoys_are_left_alone(tmp_path: Path) -> None:
    """TRACE-43: folders, links, inexact names and other producers' files survive any retention."""
    outside = tmp_path / "outside"
    outside.write_text("keep")
    segment(tmp_path, 0).mkdir()
    segment(tmp_path, 1).symlink_to(outside)
    for name in (
        "fpm.77.0000001.jsonl.gz",
        "fpm.77.00001.jsonl.gz",
        "fpm.78.000000.jsonl.gz",
        "fpm.77.x.jsonl.gz",
    ):
        (tmp_path / name).write_text("keep")
    (tmp_path / "fpm.77.000001.jsonl.lock").write_text("")
    decoys = set(tmp_path.iterdir())
    writer = make_writer(tmp_path, roll_bytes=100, max_segments=1)
    writer.append(b"".join(line(number) for number in range(5)), 5)
    writer.close()

    assert decoys < set(tmp_path.iterdir())
    assert set(tmp_path.iterdir()) - decoys == {segment(tmp_path, 6)}
    assert outside.read_text() == "keep"


def test_a_segment_that_another_recorder_writes_is_not_pruned(tmp_path: Path) -> None:
    """TRACE-43, LOSS-11: two recorders of one producer share the names; what one of them still writes the
    other leaves, and takes away once it is finished.
    """
    slow, fast = make_writer(tmp_path), make_writer(tmp_path, roll_bytes=100, max_segments=1)
    slow.append(line(1), 1)
    slow.flush()
    fast.append(line(2) + line(3) + line(4), 3)
    fast.flush()
    assert segments(tmp_path) == [segment(tmp_path, 0), segment(tmp_path, 3)]
    slow.append(line(5), 1)
    slow.close()
    assert text(segment(tmp_path, 0)) == line(1) + line(5)
    fast.append(line(6), 1)
    fast.close()

    assert segments(tmp_path) == [segment(tmp_path, 4)]


def test_the_last_number_is_an_error_at_the_start(tmp_path: Path) -> None:
    """TRACE-07, LOSS-14: after the highest number that a segment can have there is none that a reader or
    retention would know; a file planted there is said to be in the way, and nothing is written.
    """
    planted = tmp_path / f"fpm.77.{2**64 - 1}.jsonl.gz"
    planted.write_bytes(b"")
    with pytest.raises(TracePathError) as caught:
        make_writer(tmp_path)

    assert str(2**64 - 1) in str(caught.value)
    assert list(tmp_path.iterdir()) == [planted]


def test_a_writer_that_runs_out_of_numbers_counts_what_it_loses(tmp_path: Path) -> None:
    """LOSS-14: the last number is used; what would go behind it is counted as refused by the disk."""
    (tmp_path / f"fpm.77.{2**64 - 2}.jsonl.gz").write_bytes(b"")
    counters = Counters()
    writer = make_writer(tmp_path, counters=counters, roll_bytes=100)
    writer.append(line(1) + line(2), 2)
    writer.close()

    assert text(tmp_path / f"fpm.77.{2**64 - 1}.jsonl.gz") == line(1)
    assert counters.lost == {DropReason.DISK_ERROR: 1}


class CountingFile(SegmentFile):
    """Counts the syncs of all segments."""

    __slots__ = ()
    syncs = 0

    def sync(self) -> None:
        type(self).syncs += 1
        super().sync()


@pytest.mark.parametrize(("mode", "syncs"), [(Fsync.NEVER, 0), (Fsync.SEGMENT, 2), (Fsync.FLUSH, 6)])
def test_syncing_is_a_choice(tmp_path: Path, mode: Fsync, syncs: int) -> None:
    """TRACE-45, D-26: never, with the end of each segment, or with each flush (and each segment's end)."""

    class File(CountingFile):
        __slots__ = ()

    writer = make_writer(tmp_path, fsync=mode, roll_bytes=200, create=File)
    for number in range(4):
        writer.append(line(number), 1)
        writer.flush()
    writer.close()

    assert len(segments(tmp_path)) == 2
    assert File.syncs == syncs


@pytest.mark.parametrize(("mode", "synced"), [(Fsync.NEVER, 0), (Fsync.SEGMENT, 1), (Fsync.FLUSH, 1)])
def test_syncing_includes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Fsync, synced: int
) -> None:
    """TRACE-45, D-26: a synced segment can be found after a power loss: its folder is synced as well."""
    real_sync, folders = os.fsync, []

    def watched(descriptor: int) -> None:
        real_sync(descriptor)
        if os.path.samestat(os.fstat(descriptor), os.stat(tmp_path)):
            folders.append(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    writer = make_writer(tmp_path, fsync=mode)
    for number in range(3):
        writer.append(line(number), 1)
        writer.flush()
    writer.close()

    assert len(folders) == synced


def synced_folders(monkeypatch: pytest.MonkeyPatch, error: int | None = None) -> list[str]:
    """Return a list that gets the path of every folder that is synced; or have that refused with an error."""
    real_sync, folders = os.fsync, []

    def watched(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if os.path.isdir(path):
            if error is not None:
                raise OSError(error, os.strerror(error))
            folders.append(path)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return folders


def test_a_folder_that_is_made_is_synced_into_the_one_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOSS-06: a synced segment is of no use in a folder that a power loss takes away with it."""
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    writer = make_writer(folder, fsync=Fsync.FLUSH)
    shutil.rmtree(tmp_path / "a")
    folders = synced_folders(monkeypatch)
    writer.append(line(1), 1)
    writer.close()

    assert sorted(folders) == [str(tmp_path), str(tmp_path / "a"), str(folder)]


def test_a_folder_that_cannot_be_synced_costs_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOSS-06: with ``fsync=flush`` a row in a file whose name may be lost does not count as written, and
    the next flush tries the folder again.
    """
    counters = Counters()
    writer = make_writer(tmp_path, fsync=Fsync.FLUSH, counters=counters)
    with monkeypatch.context() as patch:
        synced_folders(patch, errno.EIO)
        writer.append(line(1), 1)
        writer.flush()
    folders = synced_folders(monkeypatch)
    writer.append(line(2), 1)
    writer.close()

    assert text(segment(tmp_path, 0)) == line(2)
    assert folders == [str(tmp_path)]
    assert counters.lost == {DropReason.DISK_ERROR: 1}


def test_a_file_system_without_sync_of_folders_is_used_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """TRACE-45, D-26: where folders cannot be synced at all nothing is lost for it, and one line says so."""
    synced_folders(monkeypatch, errno.EINVAL)
    writer = make_writer(tmp_path, fsync=Fsync.FLUSH)
    with caplog.at_level(logging.WARNING):
        writer.append(line(1), 1)
        writer.close()

    assert text(segment(tmp_path, 0)) == line(1)
    assert ["cannot be synced" in record.getMessage() for record in caplog.records] == [True]


def test_segments_do_not_leak_into_child_programs(tmp_path: Path) -> None:
    """The open segment is closed when another program is started."""
    file = SegmentFile(str(tmp_path / "x"))
    try:
        descriptor = max(
            int(name)
            for name in os.listdir("/proc/self/fd")
            if os.path.realpath(f"/proc/self/fd/{name}") == str(tmp_path / "x")
        )
        assert not os.get_inheritable(descriptor)
    finally:
        file.close()
