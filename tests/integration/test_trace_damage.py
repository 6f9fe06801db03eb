"""Damaged traces: what is provably sound is read, nothing is made up, and the report says where."""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from forwardpass.testing.traces import decode_pass, gzip_member, trace_line
from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.gzip_member import available
from forwardpass.trace.member_scan import State, scan_members
from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import begins_with_row
from forwardpass.trace.report import ByteRange, FileReport, ProblemKind

Read = Callable[..., tuple[list[bytes], FileReport]]


def group(first: int, count: int) -> list[bytes]:
    """Return rows with numbers that look random, as real ones do."""
    chance = random.Random(first)
    return [
        trace_line(
            number,
            decode_pass(chance.randrange(1, 99), chance.randrange(10**6)),
            wall_time=chance.random() / 10,
            observed_at_unix_ms=1_796_042_000_000 + chance.randrange(10**6),
        )
        for number in range(first, first + count)
    ]


GROUPS = [group(0, 2), group(10, 1), group(20, 3)]
MEMBERS = [gzip_member(lines) for lines in GROUPS]
STARTS = [sum(map(len, MEMBERS[:n])) for n in range(len(MEMBERS) + 1)]
ALL = [line for lines in GROUPS for line in lines]
WHOLE = b"".join(MEMBERS)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Read bytes as a file; the byte ranges always add up and agree with the problems."""

    def read_bytes(content: bytes, unverified: bool = False) -> tuple[list[bytes], FileReport]:
        path = tmp_path / "a.jsonl.gz"
        path.write_bytes(content)
        reader = TraceReader(path, unverified=unverified)
        rows = [record.line for record in reader]
        report = reader.report.files[0]
        assert sum(part.end - part.start for part in report.ranges) == report.size == len(content)
        assert all(
            left.end == right.start for left, right in zip(report.ranges, report.ranges[1:], strict=False)
        )
        assert report.damaged_bytes == sum(p.end - p.start for p in report.ranges if p.damage is not None)
        assert report.rows + unverified * report.unverified_rows == len(rows)
        return rows, report

    return read_bytes


def test_cut_at_every_byte(read: Read) -> None:
    """TRACE-62: wherever a file ends, it gives all of every whole member; what the torn one holds is
    counted as unverified, is read on request, and then goes on where the whole ones end.
    """
    for cut in range(len(WHOLE) + 1):
        rows, report = read(WHOLE[:cut], unverified=True)

        whole = sum(end <= cut for end in STARTS[1:])
        sound = sum(map(len, GROUPS[:whole]))
        assert rows == ALL[: len(rows)]
        assert len(rows) == sound + report.unverified_rows
        assert read(WHOLE[:cut])[0] == ALL[:sound]
        assert report.members == whole
        if cut in STARTS:
            assert report.intact
        else:
            assert set(report.problem_counts) == {ProblemKind.TORN_MEMBER}
            assert report.ranges[-1] == ByteRange(STARTS[whole], cut, ProblemKind.TORN_MEMBER)


def test_torn_tail_gives_its_whole_rows(read: Read) -> None:
    """TRACE-62: a tail that lacks only its checksum has every row, unverified."""
    rows, report = read(WHOLE[:-3], unverified=True)

    assert rows == ALL
    assert (report.unverified_rows, report.members) == (3, 2)
    assert read(WHOLE[:-3])[0] == ALL[:-3]


def test_stray_bytes_after_a_cut_make_no_row(read: Read) -> None:
    """TRACE-63: whatever follows a cut inside a member, what it inflates to is no row unless asked for.

    Two bytes behind a cut can end the copy of an earlier row early: a row that nobody wrote, and valid.
    """
    for cut in range(20, len(MEMBERS[0]) - 8):  # before the checksum
        for stray in (b"\x00\x05", b"\x00", b"\xff\xff", b"\x55\xaa\x12"):
            rows, report = read(MEMBERS[1] + MEMBERS[0][:cut] + stray)

            assert rows == GROUPS[1]
            assert not report.intact


def test_plain_file_cut_anywhere(read: Read) -> None:
    """TRACE-62: a plain file gives every line up to the cut, and a whole last object without its newline."""
    text = b"\n".join(ALL) + b"\n"
    ends = [len(b"\n".join(ALL[: n + 1])) for n in range(len(ALL))]
    near = {end + off for end in ends for off in (-2, -1, 0, 1, 2) if end + off <= len(text)}
    for cut in sorted({*range(0, len(text) + 1, 29), *near}):
        rows, report = read(text[:cut])

        expected = sum(end <= cut for end in ends)
        assert rows == ALL[:expected]
        assert report.intact == (cut == 0 or text[cut - 1 : cut] == b"\n" or cut in ends)


def test_flipped_bits_at_every_byte(read: Read) -> None:
    """TRACE-63: one wrong bit costs the rows of its member at most. The others are all returned, no row is
    returned that was not written, and a member with its end in place is never taken for a torn one.
    """
    for position in range(len(WHOLE)):
        hit = sum(start <= position for start in STARTS) - 1
        others = Counter(line for n, lines in enumerate(GROUPS) if n != hit for line in lines)
        for bit in range(position % 2, 8, 2):
            damaged = bytearray(WHOLE)
            damaged[position] ^= 1 << bit
            rows, report = read(bytes(damaged))

            assert Counter(rows) >= others, (position, bit)
            assert set(rows) <= set(ALL), (position, bit)
            assert report.unverified_rows == 0, (position, bit)
            if len(rows) < len(ALL):
                assert not report.intact, (position, bit)
                assert all(
                    STARTS[hit] <= p.start <= p.end <= STARTS[hit + 1] for p in report.ranges if p.damage
                )


def test_every_byte_overwritten_and_lost(read: Read) -> None:
    """TRACE-63: the same for a byte that became another one, and for a byte that is not there."""
    chance = random.Random(7)
    for position in range(len(WHOLE)):
        hit = sum(start <= position for start in STARTS) - 1
        others = Counter(line for n, lines in enumerate(GROUPS) if n != hit for line in lines)
        for damaged in (
            WHOLE[:position] + bytes([chance.randrange(256)]) + WHOLE[position + 1 :],
            WHOLE[:position] + WHOLE[position + 1 :],
        ):
            rows, _ = read(damaged)

            assert Counter(rows) >= others, position
            assert set(rows) <= set(ALL), position


@pytest.mark.parametrize("holes", [64, 512])
def test_zeroed_block(read: Read, holes: int) -> None:
    """TRACE-63: a block of zeros, as a power loss leaves it, costs the members it touches."""
    for start in range(0, len(WHOLE) - holes, 37):
        rows, _ = read(WHOLE[:start] + bytes(holes) + WHOLE[start + holes :])

        safe = [
            line
            for n, lines in enumerate(GROUPS)
            if STARTS[n + 1] <= start or STARTS[n] >= start + holes
            for line in lines
        ]
        assert Counter(rows) >= Counter(safe)
        assert set(rows) <= set(ALL)


def test_member_torn_by_a_full_disk_does_not_hide_what_follows(read: Read) -> None:
    """TRACE-63: a partial member with whole ones after it (D-25: what a writer without truncation leaves)."""
    torn = MEMBERS[1][:-20]
    rows, report = read(MEMBERS[0] + torn + MEMBERS[2])

    assert Counter(rows) >= Counter(GROUPS[0] + GROUPS[2])
    assert set(rows) <= set(ALL)
    begin = len(MEMBERS[0])
    assert report.ranges == [
        ByteRange(0, begin),
        ByteRange(begin, begin + len(torn), ProblemKind.TORN_MEMBER),
        ByteRange(begin + len(torn), report.size),
    ]


def test_torn_members_in_a_row_are_each_read(read: Read) -> None:
    """A disk that stays full leaves one partial member after another; each gives its whole rows."""
    parts = [MEMBERS[0], MEMBERS[2][:-9], MEMBERS[0][:-9], MEMBERS[1]]
    rows, report = read(b"".join(parts), unverified=True)

    assert rows[:2] == GROUPS[0]
    assert rows[-1:] == GROUPS[1]
    assert set(GROUPS[2][:2]) <= set(rows)
    assert report.problem_counts == {ProblemKind.TORN_MEMBER: 2}
    assert report.unverified_rows == len(rows) - 3


def test_corrupt_member_cannot_swallow_the_next(read: Read) -> None:
    """TRACE-63: a member that no longer says where it ends is damage up to the next header, not further."""
    stored = zlib.compressobj(0, zlib.DEFLATED, 31)
    text = b"\n".join(GROUPS[0]) + b"\n"
    member = bytearray(stored.compress(text) + stored.flush())
    length = len(text) + 900  # of the stored block: reaches into the members behind it
    member[11:15] = length.to_bytes(2, "little") + (length ^ 0xFFFF).to_bytes(2, "little")
    rows, report = read(bytes(member) + MEMBERS[1] + MEMBERS[2])

    assert rows == GROUPS[1] + GROUPS[2]
    assert report.ranges == [
        ByteRange(0, len(member), ProblemKind.CORRUPT_MEMBER),
        ByteRange(len(member), report.size),
    ]


def test_wrong_checksum_gives_no_row(read: Read) -> None:
    """TRACE-63: where the checksum is wrong no row can be trusted, whichever byte it was."""
    damaged = bytearray(WHOLE)
    damaged[len(MEMBERS[0]) - 6] ^= 0xFF
    rows, report = read(bytes(damaged))

    assert rows == GROUPS[1] + GROUPS[2]
    assert report.problem_counts == {ProblemKind.CORRUPT_MEMBER: 1}


@pytest.mark.parametrize(
    ("junk", "kind"),
    [
        (bytes(1), ProblemKind.ZERO_PADDING),
        (bytes(70_000), ProblemKind.ZERO_PADDING),
        (b"some words", ProblemKind.GARBAGE),
        (bytes(100) + b"x", ProblemKind.GARBAGE),
        (b"\x1f\x8b\x08\x00junk that is no deflate", ProblemKind.CORRUPT_MEMBER),
        (b"\x1f\x8b\x08" * 50, ProblemKind.TORN_MEMBER),
        (b"\n".join(GROUPS[0]), ProblemKind.GARBAGE),
    ],
)
def test_junk_before_between_and_after_members(read: Read, junk: bytes, kind: ProblemKind) -> None:
    """TRACE-63: bytes that are no member are named by place and kind, wherever they are."""
    for content, start in (
        (WHOLE + junk, len(WHOLE)),
        (MEMBERS[0] + junk + MEMBERS[1] + MEMBERS[2], len(MEMBERS[0])),
    ):
        rows, report = read(content)

        assert rows == ALL
        assert [p for p in report.ranges if p.damage] == [ByteRange(start, start + len(junk), kind)]
    if not junk.startswith(b"{"):
        rows, report = read(junk + WHOLE)
        assert rows == ALL
        assert report.ranges[0] == ByteRange(0, len(junk), kind)


def test_false_headers_inside_a_damaged_member_are_not_believed(read: Read) -> None:
    """TRACE-63: three header bytes that occur in compressed data begin no member."""
    false = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03"
    text = b"".join(b"%s\n" % line for line in GROUPS[0])
    stored = zlib.compressobj(0, zlib.DEFLATED, 31)
    member = (
        stored.compress(false + b"\n" + false + zlib.compress(b"hello\n", 6, -15) + text) + stored.flush()
    )
    damaged = bytearray(member)
    damaged[-1] ^= 1
    rows, report = read(bytes(damaged) + MEMBERS[2])

    assert rows == GROUPS[2]
    assert report.ranges[0] == ByteRange(0, len(member), ProblemKind.CORRUPT_MEMBER)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "header",
    [
        b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff",  # an extra field of 64 kB
        b"\x1f\x8b\x08\x08" + b"name after name",  # a file name that does not end
        b"\x1f\x8b\x08" + bytes(7) + b"\x00\xff\xff\x00\x00",  # a stored block of 64 kB
    ],
)
def test_a_file_of_false_headers_takes_no_ages(read: Read, header: bytes) -> None:
    """A hundred thousand headers that each lead far into the file are told from members by a first look."""
    rows, report = read(header * 100_000 + MEMBERS[1])

    assert rows == GROUPS[1]
    assert report.ranges[-1] == ByteRange(report.size - len(MEMBERS[1]), report.size)


@pytest.mark.parametrize("rows", [3, 300])
def test_a_false_header_inside_an_intact_member_hides_nothing(read: Read, rows: int) -> None:
    """TRACE-63, LOSS-09: the three bytes that begin a member occur by chance once in 16 MB of compressed
    data; the member that has them, also one of many pieces, ends where it ends, and all behind it is read.
    """
    lines = [trace_line(number) for number in range(rows)]
    plain = gzip_member(lines)
    chance = b"\x1f\x8b\x08"
    header = plain[:3] + b"\x04" + plain[4:10] + len(chance).to_bytes(2, "little") + chance
    found, report = read(MEMBERS[0] + header + plain[10:] + MEMBERS[1] + MEMBERS[2])

    assert found == GROUPS[0] + lines + GROUPS[1] + GROUPS[2]
    assert report.intact
    assert report.members == 4


def test_row_that_spans_into_damage_is_torn(read: Read) -> None:
    """A row whose second half stood in a corrupt member is reported, and neither half becomes a row."""
    text = b"\n".join(ALL) + b"\n"
    parts = [zlib.compress(piece, 6, 31) for piece in (text[:1200], text[1200:2500], text[2500:])]
    broken = bytearray(parts[1])
    broken[len(broken) // 2] ^= 0x55
    rows, report = read(parts[0] + bytes(broken) + parts[2])

    assert set(rows) < set(ALL)
    assert ProblemKind.TORN_ROW in report.problem_counts
    assert ProblemKind.BAD_JSON in report.problem_counts
    assert ProblemKind.CORRUPT_MEMBER in report.problem_counts


def test_large_damaged_member_is_withheld_whole(read: Read) -> None:
    """A member too large to keep is inflated once to be checked, and gives nothing if it is corrupt."""
    many = [trace_line(number) for number in range(9_000)]
    member = bytearray(gzip_member(many, level=1))
    member[-30] ^= 0x10
    rows, report = read(MEMBERS[0] + bytes(member) + MEMBERS[1])

    assert rows == GROUPS[0] + GROUPS[1]
    assert report.problem_counts == {ProblemKind.CORRUPT_MEMBER: 1}


def test_large_torn_member_gives_its_whole_rows(read: Read) -> None:
    """The same member cut short gives the rows before the cut, unverified."""
    many = [trace_line(number) for number in range(9_000)]
    member = gzip_member(many, level=1)
    rows, report = read(MEMBERS[0] + member[: len(member) * 3 // 4], unverified=True)

    assert rows[:2] == GROUPS[0]
    assert rows[2:] == many[: len(rows) - 2]
    assert 5_000 < report.unverified_rows == len(rows) - 2 < 9_000


@pytest.mark.parametrize("name", [compressor.name for compressor in available()])
def test_the_fast_way_to_inflate_takes_what_zlib_takes(tmp_path: Path, name: str) -> None:
    """TRACE-61: whichever library inflates, a member counts as intact exactly where zlib takes it whole.

    Every bit of a member that another one follows is flipped, its reserved flags, checksum and length too.
    """
    compress = next(each.compress for each in available() if each.name == name)
    text = b"".join(line + b"\n" for line in GROUPS[0])
    member = compress(text)
    path = tmp_path / "a.jsonl.gz"
    for bit in range(len(member) * 8):
        content = bytearray(member + MEMBERS[1])
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        with FileBytes(path) as file:
            region = next(iter(scan_members(file, lambda text: begins_with_row(text, 1 << 20))))
        inflater = zlib.decompressobj(31)
        try:
            found = inflater.decompress(content)
            intact = inflater.eof
        except zlib.error:
            intact = False

        assert (region.state is State.INTACT) == intact
        if intact:
            assert b"".join(region.pieces or ()) == found
            assert region.end == len(content) - len(inflater.unused_data)
