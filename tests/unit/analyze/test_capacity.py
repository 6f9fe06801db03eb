"""What a trace takes in the long run (D-30)."""

from __future__ import annotations

import pytest

from forwardpass.analyze.capacity import capacity, capacity_of
from forwardpass.analyze.summary import ProducerSummary


def test_documented_numbers() -> None:
    """D-30: 600-byte rows every 5 seconds are 17,280 rows and 10.4 MB of text a day."""
    result = capacity(
        "1", rows_per_second=0.2, mean_row_bytes=600, compression_ratio=10, roll_bytes=10**6, max_segments=4
    )

    assert result.text_bytes_per_day == pytest.approx(10_368_000)
    assert result.file_bytes_per_day == pytest.approx(1_036_800)
    assert result.kept_file_bytes == pytest.approx(400_000)


def test_time_kept_is_between_the_segments() -> None:
    """With full segments of 1000 s each, four of them reach back 3000 to 4000 s."""
    result = capacity(
        "1", rows_per_second=10, mean_row_bytes=100, compression_ratio=1, roll_bytes=10**6, max_segments=4
    )

    assert (result.kept_seconds_at_least, result.kept_seconds_at_most) == (3000, 4000)


def test_a_single_segment_may_keep_nothing() -> None:
    """Just after a roll the only segment is the new, empty one."""
    result = capacity(
        "1", rows_per_second=10, mean_row_bytes=100, compression_ratio=1, roll_bytes=10**6, max_segments=1
    )

    assert (result.kept_seconds_at_least, result.kept_seconds_at_most) == (0, 1000)


def test_rate_comes_from_the_trace() -> None:
    """Rows a second and the mean row are those of the recorded time."""
    producer = ProducerSummary("7", rows=200, row_bytes=140_000, ranks=2, elapsed_seconds=50.0)
    result = capacity_of(producer, compression_ratio=20.0, roll_bytes=10**6, max_segments=2)

    assert result is not None
    assert (result.producer_id, result.rows_per_second, result.mean_row_bytes) == ("7", 4.0, 700.0)


@pytest.mark.parametrize(("rows", "elapsed"), [(1, 5.0), (10, 0.0)])
def test_too_short_a_trace_has_no_rate(rows: int, elapsed: float) -> None:
    """One row, or rows without time between them, say nothing about a day."""
    producer = ProducerSummary("7", rows=rows, row_bytes=700, ranks=1, elapsed_seconds=elapsed)

    assert capacity_of(producer, compression_ratio=20.0, roll_bytes=10**6, max_segments=2) is None
