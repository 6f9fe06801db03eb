"""Segment names, read back."""

from __future__ import annotations

import pytest

from forwardpass.trace.discover import parse_segment_name


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fpm.42.000000.jsonl.gz", ("fpm", "42", 0)),
        ("dynamo-fpm.a_b-c.1000000.jsonl.gz", ("dynamo-fpm", "a_b-c", 1_000_000)),
        ("a.b.c.7.000012.jsonl.gz", ("a.b.c", "7", 12)),
        ("fpm.42.18446744073709551615.jsonl.gz", ("fpm", "42", 2**64 - 1)),
    ],
)
def test_a_segment_name_has_three_parts(name: str, parts: tuple[str, str, int]) -> None:
    """TRACE-05: prefix (dots and all), producer and index."""
    assert parse_segment_name(name) == parts


@pytest.mark.parametrize(
    "name",
    [
        "fpm.42.00000.jsonl.gz",
        "fpm.42.0000001.jsonl.gz",
        "fpm.42.18446744073709551616.jsonl.gz",
        "fpm.42.٠٠٠٠٠٠.jsonl.gz",
        "fpm.42.000000.jsonl",
        "fpm.42.000000.jsonl.gz.lock",
        "fpm.42.000000.jsonl.gz\n",
        ".42.000000.jsonl.gz",
        "fpm..000000.jsonl.gz",
        "fpm.4 2.000000.jsonl.gz",
        "",
    ],
)
def test_what_no_writer_writes_is_no_segment(name: str) -> None:
    """TRACE-43: a name that a writer would not have written exactly so is somebody else's."""
    assert parse_segment_name(name) is None
