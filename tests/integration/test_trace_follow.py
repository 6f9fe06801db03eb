"""Traces that are read while they are written: each row once, in order, as soon as it is sure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_files import make_writer, segment

from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.trace.follow import TraceFollower
from forwardpass.trace.report import Problem, ProblemKind

ROWS = [trace_line(number) for number in range(200)]


class Follow:
    """A follower, the rows it gave and the problems it told."""

    def __init__(self, *paths: Path) -> None:
        self.problems: list[Problem] = []
        self.rows: list[bytes] = []
        self.follower = TraceFollower(list(map(str, paths)), self.problems.append)

    def poll(self) -> list[bytes]:
        """Return the new rows."""
        new = [record.line for batch in self.follower.poll() for record in batch]
        self.rows += new
        return new

    @property
    def kinds(self) -> list[ProblemKind]:
        return [problem.kind for problem in self.problems]


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Follow the trace with prefix ``fpm`` in an empty folder."""
    made = Follow(tmp_path / "fpm")
    yield made
    made.follower.close()


@pytest.mark.parametrize("seed", range(5))
def test_a_writer_is_followed_across_rolls(tmp_path: Path, follow: Follow, seed: int) -> None:
    """TRACE-67: However writes, rolls and looks interleave, every row comes once and in order, and soon."""
    rng = random.Random(seed)
    writer = make_writer(tmp_path, roll_bytes=4000)
    written = 0
    for number, row in enumerate(ROWS):
        writer.append(row + b"\n", 1)
        if rng.random() < 0.3:
            writer.flush()
            written = number + 1
        if rng.random() < 0.3:
            follow.poll()
            assert len(follow.rows) >= written
    writer.close()
    follow.poll()

    assert follow.rows == ROWS
    assert follow.problems == []
    assert follow.poll() == []


def test_a_trace_that_is_not_there_yet_is_waited_for(tmp_path: Path, follow: Follow) -> None:
    """TRACE-67: Nothing is nothing, and no error."""
    assert follow.poll() == []
    segment(tmp_path, 0).write_bytes(gzip_member(ROWS[:2]))

    assert follow.poll() == ROWS[:2]


def test_a_member_that_is_not_whole_is_waited_for(tmp_path: Path, follow: Follow) -> None:
    """TRACE-67: A write that is seen half done is no damage; its rows come when its checksum is there."""
    path, member = segment(tmp_path, 0), gzip_member(ROWS[:50])
    for end in range(0, len(member), 97):
        path.write_bytes(member[:end])
        assert follow.poll() == []
    path.write_bytes(member)

    assert follow.poll() == ROWS[:50]
    assert follow.problems == []


def test_what_nobody_will_finish_is_told_once(tmp_path: Path, follow: Follow) -> None:
    """TRACE-67: When the next segment begins the torn end is reported, and what stands behind it is read."""
    broken = gzip_member(ROWS[2:4])[:-6]
    segment(tmp_path, 0).write_bytes(gzip_member(ROWS[:2]) + broken + gzip_member(ROWS[4:6]))
    assert follow.poll() == ROWS[:2]
    segment(tmp_path, 1).write_bytes(gzip_member(ROWS[6:8]))

    assert follow.poll() == ROWS[4:8]
    assert follow.kinds == [ProblemKind.TORN_MEMBER]
    assert (follow.problems[0].start, follow.problems[0].end) == (
        len(gzip_member(ROWS[:2])),
        len(gzip_member(ROWS[:2]) + broken),
    )
    assert follow.poll() == []


def test_a_segment_that_retention_removes_is_read_to_its_end(tmp_path: Path, follow: Follow) -> None:
    """TRACE-67: A file that was opened is there for us although nobody can open it any more."""
    path = segment(tmp_path, 0)
    path.write_bytes(gzip_member(ROWS[:2]))
    follow.poll()
    with path.open("ab") as file:
        file.write(gzip_member(ROWS[2:4]))
    path.unlink()
    segment(tmp_path, 1).write_bytes(gzip_member(ROWS[4:6]))
    follow.poll()

    assert sorted(follow.rows) == sorted(ROWS[:6])
    assert follow.problems == []


def test_producers_are_followed_side_by_side(tmp_path: Path, follow: Follow) -> None:
    """TRACE-67: A roll of one says nothing about the others; a new one is noticed."""
    segment(tmp_path, 0, "1").write_bytes(gzip_member(ROWS[:1]) + gzip_member(ROWS[1:2])[:-1])
    segment(tmp_path, 5, "2").write_bytes(gzip_member(ROWS[10:11]))
    assert follow.poll() == [ROWS[0], ROWS[10]]
    segment(tmp_path, 6, "2").write_bytes(gzip_member(ROWS[11:12]))
    segment(tmp_path, 0, "3").write_bytes(gzip_member(ROWS[20:21]))

    assert follow.poll() == [ROWS[11], ROWS[20]]
    assert follow.problems == []


def test_a_file_that_was_cut_back_goes_on(tmp_path: Path, follow: Follow) -> None:
    """TRACE-44, TRACE-67: A writer cuts a failed write off and goes on there."""
    path = segment(tmp_path, 0)
    path.write_bytes(gzip_member(ROWS[:2]) + gzip_member(ROWS[2:4])[:20])
    follow.poll()
    path.write_bytes(gzip_member(ROWS[:2]) + gzip_member(ROWS[4:6]))

    assert follow.poll() == ROWS[4:6]
    assert follow.problems == []


def test_plain_lines_come_when_they_are_whole(tmp_path: Path) -> None:
    """TRACE-61, TRACE-67: A plain file is followed by lines; what is no row is told."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROWS[0] + b"\n" + ROWS[1][:40])
    follow = Follow(path)
    assert follow.poll() == [ROWS[0]]
    with path.open("ab") as file:
        file.write(ROWS[1][40:] + b"\nnonsense\n" + ROWS[2] + b"\n")

    assert follow.poll() == ROWS[1:3]
    assert follow.kinds == [ProblemKind.BAD_JSON]
    follow.follower.close()
