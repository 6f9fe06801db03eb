"""Traces written anew: every row that is sure, nothing else, and the old files as they were."""

from __future__ import annotations

import errno
import gzip
import random
from pathlib import Path

import pytest

from forwardpass.errors import TracePathError
from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.repair import RepairedFile, repair
from forwardpass.trace.segment_file import SegmentFile

ROWS = [trace_line(number) for number in range(60)]
MEMBERS = [gzip_member(ROWS[first : first + 10]) for first in range(0, 60, 10)]
NAME = "fpm.4192.000000.jsonl.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A folder for files to be repaired."""
    folder = tmp_path / "old"
    folder.mkdir()
    return folder


def repaired(old: Path, content: bytes, new: Path, **options: bool) -> RepairedFile:
    """Write ``content`` as a segment and repair it into ``new``."""
    (old / NAME).write_bytes(content)
    (done,) = repair([old / NAME], new, **options)
    assert (old / NAME).read_bytes() == content
    return done


def lines(path: str | Path) -> list[bytes]:
    """Read a file with the standard library alone."""
    return gzip.decompress(Path(path).read_bytes()).splitlines()


def test_what_follows_a_damaged_member_is_saved(old: Path, tmp_path: Path) -> None:
    """TRACE-66: The rows of every intact member stand in the new file, in order and byte for byte."""
    broken = bytearray(MEMBERS[2])
    broken[len(broken) // 2] ^= 0xFF
    done = repaired(old, b"".join([*MEMBERS[:2], broken, *MEMBERS[3:]]), tmp_path / "new")

    assert lines(tmp_path / "new" / NAME) == ROWS[:20] + ROWS[30:]
    assert (done.rows, done.lossless) == (50, False)
    assert TraceReader(tmp_path / "new").files == [tmp_path / "new" / NAME]


@pytest.mark.parametrize("seed", range(40))
def test_any_damage_gives_a_file_that_is_intact(old: Path, tmp_path: Path, seed: int) -> None:
    """TRACE-66: Cut, flipped, doubled or filled with zeros: the new file is intact for our reader and for the
    standard library, and has what the tolerant reader takes from the old one.
    """
    rng, content = random.Random(seed), bytearray(b"".join(MEMBERS))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content))
        kind = rng.randrange(4)
        if kind == 0:
            del content[at:]
        elif kind == 1:
            content[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            content[at:at] = content[at : at + 50]
        else:
            content[at : at + 30] = bytes(len(content[at : at + 30]))
        content = content or bytearray(MEMBERS[0])
    (old / NAME).write_bytes(content)
    sure = [record.line for record in TraceReader(old / NAME)]
    done = repaired(old, bytes(content), tmp_path / "new")

    assert done.rows == len(sure)
    assert (done.target is None) == (not sure)
    if sure:
        assert lines(tmp_path / "new" / NAME) == sure
        reader = TraceReader(tmp_path / "new")
        assert [record.line for record in reader] == sure
        assert reader.report.intact


def test_torn_rows_are_taken_on_request_only(old: Path, tmp_path: Path) -> None:
    """TRACE-62, TRACE-66: What no checksum proves is left out, and counted, unless it is asked for."""
    cut = MEMBERS[0] + MEMBERS[1][:-8]
    without = repaired(old, cut, tmp_path / "new")
    taken = repaired(old, cut, tmp_path / "all", unverified=True)

    assert without.rows == 10
    assert without.source.unverified_rows == 10
    assert lines(tmp_path / "all" / NAME) == ROWS[:20]
    assert taken.rows == 20


def test_plain_lines_stay_plain(old: Path, tmp_path: Path) -> None:
    """TRACE-61, TRACE-66: A plain file's whole lines stand in a plain file; what is no row is left out."""
    (old / "rows.jsonl").write_bytes(b"\n".join([ROWS[0], b'{"torn": ', ROWS[1], ROWS[2][:50]]))
    (done,) = repair([old / "rows.jsonl"], tmp_path / "new")

    assert (tmp_path / "new" / "rows.jsonl").read_bytes() == ROWS[0] + b"\n" + ROWS[1] + b"\n"
    assert len(done.source.problem_counts) == 2


def test_a_large_trace_is_written_in_pieces(old: Path, tmp_path: Path) -> None:
    """TRACE-41, TRACE-66: Members of about a mebibyte, so that later damage costs one of them."""
    rows = [trace_line(number) for number in range(4000)]
    done = repaired(old, gzip_member(rows) + b"garbage", tmp_path / "new")
    reader = TraceReader(tmp_path / "new")

    assert [record.line for record in reader] == rows
    assert done.rows == 4000
    assert reader.report.files[0].members == 3


def test_what_is_there_is_not_touched(old: Path, tmp_path: Path) -> None:
    """TRACE-08, TRACE-66: A file, a folder or a link of that name stays as it is, and an error names it."""
    new = tmp_path / "new"
    new.mkdir()
    (new / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TracePathError, match="is there already"):
        repaired(old, MEMBERS[0], new)

    assert (new / NAME).is_symlink()
    assert not (tmp_path / "elsewhere").exists()


def test_a_trace_is_not_repaired_into_its_own_folder(old: Path) -> None:
    """TRACE-66: The old files would be in the way, and they stay."""
    with pytest.raises(TracePathError, match="is there already"):
        repaired(old, MEMBERS[0] + MEMBERS[1][:20], old)

    assert (old / NAME).read_bytes() == MEMBERS[0] + MEMBERS[1][:20]


def test_a_full_disk_leaves_no_half_file(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRACE-66: What cannot be written whole is not there, the error names the new file, and those before it
    stay.
    """
    append = SegmentFile.append

    def full(self: SegmentFile, data: bytes) -> None:
        if "000001" in self.path:
            append(self, data[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        append(self, data)

    monkeypatch.setattr(SegmentFile, "append", full)
    files = [old / NAME, old / "fpm.4192.000001.jsonl.gz"]
    for path in files:
        path.write_bytes(MEMBERS[0])
    with pytest.raises(TracePathError, match=r"000001.*No space left"):
        list(repair(files, tmp_path / "new"))

    assert [path.name for path in (tmp_path / "new").iterdir()] == [NAME]


def test_a_folder_that_cannot_be_made_is_named(old: Path, tmp_path: Path) -> None:
    """TRACE-66: The error says which folder and why."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(TracePathError, match=r"file/new: cannot be made"):
        repaired(old, MEMBERS[0], tmp_path / "file" / "new")
