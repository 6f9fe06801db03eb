"""What happens to a trace when the disk refuses (decision D-25)."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_files import line, make_writer, members, segment, segments, text

from forwardpass.config.settings import Fsync
from forwardpass.counters import Counters, DropReason
from forwardpass.testing.clock import ManualClock
from forwardpass.trace.segment_file import SegmentFile


class Disk:
    """A disk that refuses on request: every segment asks it before it does anything."""

    def __init__(self) -> None:
        self.refused: dict[str, int] = {}
        """Operation -> error number."""

    def check(self, operation: str) -> None:
        if operation in self.refused:
            raise OSError(self.refused[operation], os.strerror(self.refused[operation]))

    def file(self, path: str) -> SegmentFile:
        """Create a segment on this disk."""
        self.check("create")
        file = FaultyFile(path)
        file.disk = self
        return file


class FaultyFile(SegmentFile):
    """A real file whose operations can fail. A failing append leaves half of the member behind."""

    __slots__ = ("disk",)

    def size(self) -> int:
        self.disk.check("size")
        return super().size()

    def append(self, data: bytes) -> None:
        if "append" in self.disk.refused:
            super().append(data[: len(data) // 2])
        self.disk.check("append")
        super().append(data)

    def truncate(self, size: int) -> None:
        self.disk.check("truncate")
        super().truncate(size)

    def sync(self) -> None:
        self.disk.check("sync")
        super().sync()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_failed_member_is_cut_off_again(tmp_path: Path, error: int) -> None:
    """TRACE-44: the file is back at its last complete member, and only the failed batch is lost."""
    disk, counters = Disk(), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters)
    writer.append(line(1), 1)
    writer.flush()
    disk.refused["append"] = error
    writer.append(line(2) + line(3), 2)
    writer.flush()
    assert members(segment(tmp_path, 0)) == [line(1)]
    disk.refused.clear()
    writer.append(line(4), 1)
    writer.close()

    assert members(segment(tmp_path, 0)) == [line(1), line(4)]
    assert segments(tmp_path) == [segment(tmp_path, 0)]
    assert counters.lost == {DropReason.DISK_ERROR: 2}
    assert (writer.counts.rows, counters.delivered) == (2, 2)
    assert writer.counts.last_error is not None
    assert os.strerror(error) in writer.counts.last_error


@pytest.mark.parametrize("operation", ["truncate", "size"])
def test_a_file_that_cannot_be_cut_is_left(tmp_path: Path, operation: str) -> None:
    """TRACE-44: where cutting fails nothing more is appended; the next segment begins."""
    disk, counters = Disk(), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters)
    writer.append(line(1), 1)
    writer.flush()
    disk.refused = {"append": errno.EIO, operation: errno.EIO}
    writer.append(line(2), 1)
    writer.flush()
    size = segment(tmp_path, 0).stat().st_size
    disk.refused.clear()
    writer.append(line(3), 1)
    writer.close()

    assert segment(tmp_path, 0).stat().st_size == size
    assert segment(tmp_path, 0).read_bytes().startswith(gzip_of(tmp_path, line(1)))
    assert text(segment(tmp_path, 1)) == line(3)
    assert counters.lost == {DropReason.DISK_ERROR: 1}


def gzip_of(folder: Path, data: bytes) -> bytes:
    """Return the member that a writer makes of ``data``."""
    other = folder / "other"
    other.mkdir()
    writer = make_writer(other)
    writer.append(data, 1)
    writer.close()
    return segment(other, 0).read_bytes()


@pytest.mark.parametrize(
    ("call", "error", "fsync"),
    [("create", errno.EACCES, Fsync.NEVER), ("sync", errno.EIO, Fsync.FLUSH)],
)
def test_a_refused_creation_or_sync_costs_its_batch(
    tmp_path: Path, call: str, error: int, fsync: Fsync
) -> None:
    """TRACE-44, TRACE-45, D-26: The batch is lost and nothing else; the next flush uses the same index.
    With ``fsync=flush`` a member that cannot be synced does not count as written.
    """
    disk, counters = Disk(), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters, fsync=fsync)
    disk.refused[call] = error
    writer.append(line(1), 1)
    writer.flush()
    disk.refused.clear()
    writer.append(line(2), 1)
    writer.close()

    assert text(segment(tmp_path, 0)) == line(2)
    assert counters.lost == {DropReason.DISK_ERROR: 1}


def test_a_sync_that_fails_at_the_end_loses_nothing(tmp_path: Path) -> None:
    """TRACE-45, D-26: with ``fsync=segment`` the rows are written anyway; the failure is remembered."""
    disk, counters = Disk(), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters, fsync=Fsync.SEGMENT)
    disk.refused["sync"] = errno.EIO
    writer.append(line(1), 1)
    writer.close()

    assert text(segment(tmp_path, 0)) == line(1)
    assert counters.lost == {}
    assert writer.counts.last_error is not None


def test_a_batch_without_memory_to_compress_it_is_lost_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-44: the batch is counted as lost and gone, not written by the next flush as well."""
    counters = Counters()
    writer = make_writer(tmp_path, counters=counters)

    def exhausted(data: bytes) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("forwardpass.trace.writer.compress_member", exhausted)
        writer.append(line(1) + line(2), 2)
        writer.flush()
    writer.append(line(3), 1)
    writer.close()

    assert [text(path) for path in segments(tmp_path)] == [line(3)]
    assert (counters.lost, counters.delivered) == ({DropReason.INTERNAL_ERROR: 2}, 1)


def test_lost_rows_do_not_fill_a_segment(tmp_path: Path) -> None:
    """TRACE-42: only rows in the file count for rolling; a refused batch neither rolls nor skips an index."""
    disk = Disk()
    writer = make_writer(tmp_path, create=disk.file, roll_bytes=300)
    disk.refused["append"] = errno.ENOSPC
    writer.append(b"".join(line(number) for number in range(10)), 10)
    writer.flush()
    disk.refused.clear()
    writer.append(line(1) + line(2) + line(3), 3)
    writer.close()

    assert [text(path) for path in segments(tmp_path)] == [line(1) + line(2) + line(3)]


def test_failures_are_said_once_and_then_once_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TRACE-44: one warning, then one a minute with the count, and one line when it works again."""
    disk, clock = Disk(), ManualClock()
    writer = make_writer(tmp_path, create=disk.file, clock=clock)
    disk.refused["append"] = errno.ENOSPC
    with caplog.at_level(logging.INFO):
        for _ in range(150):
            writer.append(line(1), 1)
            writer.flush()
            clock.advance(1.0)
        disk.refused.clear()
        for _ in range(3):
            writer.append(line(1), 1)
            writer.flush()

    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4
    assert all("cannot be written" in message for message in said[:3])
    assert said[3].endswith("is written again; 150 rows were lost")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, timeout=30
        ).returncode
    ):
        pytest.skip("needs the right to mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


def noise(number: int, size: int) -> bytes:
    """Return a line that does not compress."""
    return b"%d" % number + os.urandom(size).hex().encode() + b"\n"


def test_a_full_disk_is_survived(small_disk: Path) -> None:
    """TRACE-44: on a full file system batches are lost and counted, the file stays intact, and once there
    is room again writing goes on by itself."""
    counters = Counters()
    writer = make_writer(small_disk, counters=counters)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(30_000))
    kept = b""
    for number in range(12):
        row, before = noise(number, 5000), writer.counts.rows
        writer.append(row, 1)
        writer.flush()
        if writer.counts.rows > before:
            kept += row
        assert text(segment(small_disk, 0)) == kept
    lost = counters.lost[DropReason.DISK_ERROR]
    assert 0 < lost < 12
    ballast.unlink()
    last = noise(99, 5000)
    writer.append(last, 1)
    writer.close()

    assert text(segment(small_disk, 0)) == kept + last
    assert counters.lost == {DropReason.DISK_ERROR: lost}
    assert writer.counts.rows + lost == 13


def test_old_segments_that_cannot_be_deleted_harm_nothing(
    small_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """TRACE-43: retention that fails warns, and writing goes on."""
    segment(small_disk, 0).write_bytes(b"")
    subprocess.run(["mount", "--bind", *[str(segment(small_disk, 0))] * 2], check=True, timeout=30)
    try:
        writer = make_writer(small_disk, max_segments=1)
        with caplog.at_level(logging.WARNING):
            writer.append(line(1), 1)
            writer.close()
    finally:
        subprocess.run(["umount", str(segment(small_disk, 0))], check=True, timeout=30)

    assert text(segment(small_disk, 1)) == line(1)
    assert ["cannot be deleted" in record.getMessage() for record in caplog.records] == [True]


def test_one_segment_that_cannot_be_deleted_does_not_keep_the_others(small_disk: Path) -> None:
    """TRACE-43: retention goes on past a file that cannot be deleted; else the disk would fill behind it."""
    for number in range(3):
        segment(small_disk, number).write_bytes(b"")
    subprocess.run(["mount", "--bind", *[str(segment(small_disk, 0))] * 2], check=True, timeout=30)
    try:
        writer = make_writer(small_disk, max_segments=1)
        writer.append(line(1), 1)
        writer.close()
    finally:
        subprocess.run(["umount", str(segment(small_disk, 0))], check=True, timeout=30)

    assert segments(small_disk) == [segment(small_disk, 0), segment(small_disk, 3)]


def test_a_segment_that_somebody_else_deleted_first_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-43: a file that went between the look and the deletion is what was wanted."""
    for number in range(3):
        segment(tmp_path, number).write_bytes(b"")
    unlink = os.unlink

    def unlink_twice(path: str) -> None:
        unlink(path)
        unlink(path)

    writer = make_writer(tmp_path, max_segments=1)
    writer.append(line(1), 1)
    monkeypatch.setattr(os, "unlink", unlink_twice)
    with caplog.at_level(logging.WARNING):
        writer.close()

    assert segments(tmp_path) == [segment(tmp_path, 3)]
    assert caplog.records == []


class FullDisk:
    """A disk of so many bytes: what does not fit into it any more is refused, as a file system does."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size

    def file(self, path: str) -> SegmentFile:
        """Create a segment on this disk."""
        file = FileOnFullDisk(path)
        file.disk = self
        return file

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class FileOnFullDisk(SegmentFile):
    """A real file; what fits of a member that does not is written, and the rest refused."""

    __slots__ = ("disk",)

    def append(self, data: bytes) -> None:
        room = self.disk.size - self.disk.used
        super().append(data[:room])
        if room < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_surplus_goes_when_it_fills_the_disk(tmp_path: Path) -> None:
    """TRACE-43, LOSS-08: where the segments that are kept fill the disk, the first write of the next one
    would fail for ever: the one that is surplus then goes first, and nothing is lost.
    """
    counters = Counters()
    disk = FullDisk(tmp_path, size=6 * len(gzip_of(tmp_path.parent, noise(0, 500))) + 40)
    writer = make_writer(tmp_path, create=disk.file, counters=counters, roll_bytes=3_100, max_segments=2)
    for number in range(40):
        writer.append(noise(number % 10, 500), 1)
        writer.flush()
    writer.close()

    assert counters.lost == {}
    assert writer.counts.rows == 40
    assert len(segments(tmp_path)) == 2


def test_a_disk_full_of_other_things_costs_no_old_segment_more_than_the_limit(tmp_path: Path) -> None:
    """TRACE-43, LOSS-11: a full disk is no reason to remove what is within the limit."""
    for number in range(2):
        segment(tmp_path, number).write_bytes(bytes(1000))
    disk, counters = FullDisk(tmp_path, size=2000), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters, max_segments=3)
    for _ in range(3):
        writer.append(line(1), 1)
        writer.flush()

    assert segments(tmp_path) == [segment(tmp_path, number) for number in range(3)]
    assert counters.lost == {DropReason.DISK_ERROR: 3}


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EFBIG])
def test_what_could_not_be_cut_off_is_not_written_again(tmp_path: Path, error: int) -> None:
    """TRACE-44, LOSS-07: a whole member that stays behind although it counts as lost is not tried once more
    in the next segment: no row is ever in the files twice.
    """
    disk, counters = Disk(), Counters()
    writer = make_writer(tmp_path, create=disk.file, counters=counters, fsync=Fsync.FLUSH)
    for number in (1, 2):
        disk.refused = {"sync": error, "truncate": errno.EIO}
        writer.append(line(number), 1)
        writer.flush()
        disk.refused.clear()
        writer.append(line(number + 2), 1)
        writer.flush()
    writer.close()

    kept = b"".join(text(path) for path in segments(tmp_path)).splitlines(keepends=True)
    assert sorted(kept) == [line(1), line(2), line(3), line(4)]
    assert counters.lost == {DropReason.DISK_ERROR: 2}


LIMITED = """
import os, resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from trace_files import make_writer, segments, text
from forwardpass.counters import Counters

folder = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
counters = Counters()
writer = make_writer(folder, counters=counters, max_segments=100)
kept = []
for number in range(8):
    size = 30_000 if number == 4 else 5000
    row, before = b"%d" % number + os.urandom(size).hex().encode() + b"\\n", writer.counts.rows
    writer.append(row, 1)
    writer.flush()
    kept += [row] if writer.counts.rows > before else []
writer.close()
assert [row + b"\\n" for path in segments(folder) for row in text(path).splitlines()] == kept
print(writer.counts.rows, sum(counters.lost.values()), len(segments(folder)))
"""


def test_a_short_write_is_cut_off(tmp_path: Path) -> None:
    """TRACE-44, LOSS-08: the kernel writes a part and then refuses (a file size limit): the part is cut off
    again, and recording goes on in the next segment; only a row that is too large for any is lost.
    """
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["7", "1", "3"]
