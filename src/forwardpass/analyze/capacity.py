"""Knows how much a trace takes in the long run, and how far back it reaches before its oldest rows go.

A writer counts uncompressed bytes: it begins a new segment at ``roll_bytes`` and keeps ``max_segments``
of them, the one it writes to included. The disk holds their gzip. All per producer: retention never
touches another producer's files, so multiply by the producers that ever wrote to the folder.
"""

from __future__ import annotations

import math

from msgspec import Struct

from forwardpass.analyze.derived import ratio
from forwardpass.analyze.summary import ProducerSummary

__all__ = [
    "Capacity",
    "Plan",
    "capacity",
    "capacity_of",
    "plan_of",
    "rows_per_second",
    "segments_to_keep",
]

_DAY_SECONDS = 86_400


class Capacity(Struct, frozen=True):
    """What one producer writes and keeps."""

    producer_id: str
    rows_per_second: float
    mean_row_bytes: float
    """Newline included."""
    compression_ratio: float
    """Text bytes per file byte."""
    text_bytes_per_day: float
    file_bytes_per_day: float
    roll_bytes: int
    max_segments: int
    kept_file_bytes: float
    """Bytes on the disk once retention has begun to remove segments."""
    kept_seconds_at_least: float
    """Time covered just after a segment was removed: all segments full but the newest, which is empty."""
    kept_seconds_at_most: float
    """Time covered just before the next one goes."""


def capacity(
    producer_id: str,
    *,
    rows_per_second: float,
    mean_row_bytes: float,
    compression_ratio: float,
    roll_bytes: int,
    max_segments: int,
) -> Capacity:
    """Return the long-run numbers from a rate > 0, a row length, a ratio > 0 and the writer's limits."""
    text_per_second = rows_per_second * mean_row_bytes
    segment_seconds = roll_bytes / text_per_second
    return Capacity(
        producer_id=producer_id,
        rows_per_second=rows_per_second,
        mean_row_bytes=mean_row_bytes,
        compression_ratio=compression_ratio,
        text_bytes_per_day=text_per_second * _DAY_SECONDS,
        file_bytes_per_day=text_per_second * _DAY_SECONDS / compression_ratio,
        roll_bytes=roll_bytes,
        max_segments=max_segments,
        kept_file_bytes=max_segments * roll_bytes / compression_ratio,
        kept_seconds_at_least=(max_segments - 1) * segment_seconds,
        kept_seconds_at_most=max_segments * segment_seconds,
    )


def capacity_of(
    producer: ProducerSummary, *, compression_ratio: float, roll_bytes: int, max_segments: int
) -> Capacity | None:
    """Return the numbers of a producer whose trace was summed up, or ``None`` if it is too short for a rate.

    The rate is that of the recorded time, idle stretches included: it holds as long as the load does.
    """
    rate = ratio(producer.rows, producer.elapsed_seconds)
    if rate is None or producer.rows < 2:
        return None
    return capacity(
        producer.producer_id,
        rows_per_second=rate,
        mean_row_bytes=producer.row_bytes / producer.rows,
        compression_ratio=compression_ratio,
        roll_bytes=roll_bytes,
        max_segments=max_segments,
    )


def rows_per_second(*, ranks: int, passes_per_second: float, sample_interval_seconds: float | None) -> float:
    """Return the rows a second of a producer with so many ranks, each with so many passes and heartbeats.

    ``sample_interval_seconds`` is sampled mode's, which writes at most one row per rank and interval;
    ``None`` is full mode.
    """
    each = passes_per_second
    if sample_interval_seconds is not None:
        each = min(each, 1 / sample_interval_seconds)
    return ranks * each


def segments_to_keep(seconds: float, found: Capacity) -> int:
    """Return the fewest segments with which the last ``seconds`` are there at any moment.

    One more than they fill, because the newest may just have begun.
    """
    text = found.rows_per_second * found.mean_row_bytes * seconds
    return 1 + math.ceil(text / found.roll_bytes)


class Plan(Struct, frozen=True):
    """What a trace of several producers alike will take."""

    producers: int
    each: Capacity
    text_bytes_per_day: float
    """Of all producers, as the next ones."""
    file_bytes_per_day: float
    kept_file_bytes: float
    keep_seconds: int | None
    segments_to_keep: int | None
    """Segments that a producer must keep so that the last ``keep_seconds`` are always there."""
    file_bytes_to_keep: float | None


def plan_of(each: Capacity, producers: int, keep_seconds: int | None = None) -> Plan:
    """Return what so many producers like ``each`` take, and what keeping ``keep_seconds`` would take."""
    segments = None if keep_seconds is None else segments_to_keep(keep_seconds, each)
    segment_bytes = producers * each.roll_bytes / each.compression_ratio
    return Plan(
        producers=producers,
        each=each,
        text_bytes_per_day=producers * each.text_bytes_per_day,
        file_bytes_per_day=producers * each.file_bytes_per_day,
        kept_file_bytes=producers * each.kept_file_bytes,
        keep_seconds=keep_seconds,
        segments_to_keep=segments,
        file_bytes_to_keep=None if segments is None else segments * segment_bytes,
    )
