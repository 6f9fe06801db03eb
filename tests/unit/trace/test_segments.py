"""Names, numbers, rolling and pruning of segments, with values only."""

from __future__ import annotations

import pytest

from forwardpass.trace.segments import Entry, Fill, SegmentNames, prunable

NAMES = SegmentNames.of("/data/fpm", "77")


def regular(*indices: int) -> list[Entry]:
    """Return segments of the producer as regular files."""
    return [Entry(f"fpm.77.{index:06d}.jsonl.gz", True) for index in indices]


@pytest.mark.parametrize(
    ("producer", "part"),
    [("123", "123"), ("a/b c", "a_b_c"), ("ü", "_"), ("", "unknown"), ("A-z_9", "A-z_9"), ("../x", "___x")],
)
def test_producers_become_parts_of_names(producer: str, part: str) -> None:
    """TRACE-05: whatever is outside [A-Za-z0-9_-] becomes an underscore; nothing becomes ``unknown``."""
    assert SegmentNames.of("/data/fpm", producer).path(0) == f"/data/fpm.{part}.000000.jsonl.gz"


@pytest.mark.parametrize(
    ("prefix", "folder"), [("/data/fpm", "/data"), ("fpm", "."), ("a/b.c", "a"), ("/f", "/")]
)
def test_segments_live_beside_the_prefix(prefix: str, folder: str) -> None:
    """TRACE-03: the prefix is a path; its folder holds the segments."""
    assert SegmentNames.of(prefix, "1").directory == folder


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("fpm.77.000000.jsonl.gz", 0),
        ("fpm.77.000012.jsonl.gz", 12),
        ("fpm.77.1000000.jsonl.gz", 1_000_000),
        ("fpm.77.18446744073709551615.jsonl.gz", 2**64 - 1),
        ("fpm.77.18446744073709551616.jsonl.gz", None),
        ("fpm.77.0000001.jsonl.gz", None),
        ("fpm.77.00001.jsonl.gz", None),
        ("fpm.77.00000a.jsonl.gz", None),
        ("fpm.77.٠٠٠٠٠١.jsonl.gz", None),
        ("fpm.77.+00001.jsonl.gz", None),
        ("fpm.77.00000².jsonl.gz", None),
        ("fpm.77..jsonl.gz", None),
        ("fpm.77.000000.jsonl", None),
        ("fpm.77.000000.jsonl.lock", None),
        ("fpm.77.000000.jsonl.gz.tmp", None),
        ("fpm.778.000000.jsonl.gz", None),
        ("fpm.7.000000.jsonl.gz", None),
        ("xfpm.77.000000.jsonl.gz", None),
        ("FPM.77.000000.jsonl.gz", None),
        ("fpm.000000.jsonl.gz", None),
        (".fpm.write-probe-1-0", None),
        ("", None),
    ],
)
def test_which_names_are_ours(name: str, index: int | None) -> None:
    """TRACE-43: a name is a segment's exactly if formatting its number gives the name again."""
    assert NAMES.index_of(name) == index


def test_prefixes_are_no_patterns() -> None:
    """A prefix with special characters matches itself only."""
    names = SegmentNames.of("/d/f*[pm].x", "1")

    assert names.index_of("f*[pm].x.1.000003.jsonl.gz") == 3
    assert names.index_of("ff[pm].x.1.000003.jsonl.gz") is None


@pytest.mark.parametrize(
    ("existing", "expected"),
    [
        ([], 0),
        (["other.txt", "fpm.78.000009.jsonl.gz"], 0),
        (["fpm.77.000000.jsonl.gz"], 1),
        (["fpm.77.000007.jsonl.gz", "fpm.77.000003.jsonl.gz"], 8),
        (["fpm.77.999999.jsonl.gz"], 1_000_000),
        (["fpm.77.1000000.jsonl.gz", "fpm.77.999999.jsonl.gz"], 1_000_001),
    ],
)
def test_a_writer_begins_after_the_highest(existing: list[str], expected: int) -> None:
    """TRACE-07: the next index is the highest of this producer plus one, else 0."""
    assert NAMES.next_index(existing) == expected


def test_reaching_the_limit_does_not_roll() -> None:
    """TRACE-42: with a limit of 3000, rows of 667 bytes go four to a segment; 3000 exactly still fits."""
    fill = Fill()
    fill.add(4, 4 * 667)

    assert not fill.rolls_before(3000 - 4 * 667, 3000)
    assert fill.rolls_before(667, 3000)


def test_a_large_row_goes_alone() -> None:
    """TRACE-42: a row above the limit goes into an empty segment, and the row after it rolls."""
    fill = Fill()

    assert not fill.rolls_before(5666, 3000)
    fill.add(1, 5666)
    assert fill.rolls_before(1, 3000)


def test_the_lowest_go_until_the_limit_holds() -> None:
    """TRACE-43: of five segments with a limit of three the two lowest go, in the order of their numbers."""
    entries = regular(1_000_000, 999_999, 3, 20, 100)

    assert prunable(NAMES, entries, 3, 1_000_000) == [3, 20]


def test_nothing_goes_below_the_limit() -> None:
    """TRACE-43: as long as the limit holds nothing is deleted."""
    assert prunable(NAMES, regular(0, 1, 2, 3), 4, 3) == []


def test_decoys_neither_count_nor_go() -> None:
    """TRACE-43: folders, links and names that are not exact are neither counted nor deleted."""
    decoys = [
        Entry("fpm.77.000000.jsonl.gz", False),
        Entry("fpm.77.0000001.jsonl.gz", True),
        Entry("fpm.78.000000.jsonl.gz", True),
        Entry("fpm.77.000001.jsonl.lock", True),
    ]

    assert prunable(NAMES, [*decoys, *regular(5, 6, 7)], 2, 7) == [5]


def test_the_active_segment_stays() -> None:
    """The segment being written is never deleted, even if somebody put a higher number beside it."""
    assert prunable(NAMES, regular(1, 2, 900), 1, 2) == [1, 900]
