"""Knows points files: explicit points to measure instead of a generated grid, schema versions 1 to 3.

Strict JSON: nothing unknown, nothing coerced. All that is wrong is found before anything is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from forwardpass.bench.points import EXPLICIT, Partition, Phase, Point
from forwardpass.errors import ManifestError

__all__ = [
    "MAX_BYTES",
    "OPTION",
    "SCHEMAS",
    "DecodeEntry",
    "PointsFile",
    "PrefillEntry",
    "file_of",
    "manifest_points",
    "points_from",
    "read_points_file",
]

OPTION = "--benchmark-points-file"
SCHEMAS = (1, 2, 3)
MAX_BYTES = 64 * 1024 * 1024
"""A larger file is refused unread; 100,000 points have 12 MB."""


class PrefillEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One prefill point of a file."""

    batch_size: int
    total_prefill_tokens: int
    total_kv_read_tokens: int
    partition: Partition | None = None
    """Since schema 2."""
    rows: tuple[tuple[int, int], ...] | None = None
    """``[tokens to compute, tokens to read]`` of each request; since schema 3."""


class DecodeEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One decode point of a file."""

    batch_size: int
    total_kv_read_tokens: int


class PointsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole file. An empty list for a phase means that it measures nothing, and misses nothing."""

    schema_version: int
    prefill: tuple[PrefillEntry, ...] = field()
    decode: tuple[DecodeEntry, ...] = field()

    def balanced(self) -> tuple[PointsFile, int]:
        """Return the file without the points whose requests differ on purpose, and how many those were."""
        kept = tuple(entry for entry in self.prefill if not _prefill_point(entry).is_imbalanced)
        return msgspec.structs.replace(self, prefill=kept), len(self.prefill) - len(kept)


def read_points_file(path: Path, *, option: str = OPTION) -> PointsFile:
    """Return the file at ``path``. Raises :class:`ManifestError`, which names ``option`` and the path."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(option, str(path), [f"cannot be read: {error.strerror or error}"]) from error
    if len(data) > MAX_BYTES:
        raise ManifestError(option, str(path), [f"has more than {MAX_BYTES} bytes"])
    try:
        parsed = msgspec.json.decode(data, type=PointsFile)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ManifestError(option, str(path), [str(error)]) from error
    problems = list(_problems(parsed))
    if problems:
        raise ManifestError(option, str(path), problems)
    return parsed


def points_from(document: Any) -> PointsFile:
    """Return the points of a document that was handed over, checked anew. Raises :class:`ManifestError`."""
    try:
        parsed = msgspec.convert(document, type=PointsFile)
    except msgspec.MsgspecError as error:
        raise ManifestError("benchmark config", "points", [str(error)]) from error
    problems = list(_problems(parsed))
    if problems:
        raise ManifestError("benchmark config", "points", problems)
    return parsed


def manifest_points(file: PointsFile, phases: tuple[Phase, ...]) -> list[tuple[str, Point]]:
    """Return ``(entry, point)`` of the selected phases, such as ``prefill[0]``, in the order of execution."""
    found: list[tuple[str, Point]] = []
    if Phase.PREFILL in phases:
        found += [(f"prefill[{index}]", _prefill_point(entry)) for index, entry in enumerate(file.prefill)]
    if Phase.DECODE in phases:
        found += [
            (
                f"decode[{index}]",
                Point(
                    Phase.DECODE,
                    0,
                    total_prefill_tokens=0,
                    total_kv_read_tokens=entry.total_kv_read_tokens,
                    batch_size=entry.batch_size,
                    sample_reasons=(EXPLICIT,),
                ),
            )
            for index, entry in enumerate(file.decode)
        ]
    return found


def file_of(points: Iterable[Point]) -> PointsFile:
    """Return the file that names ``points`` in their order, in the oldest schema that can."""
    found = [point for point in points if not point.is_replica]
    prefill = tuple(
        PrefillEntry(
            batch_size=point.batch_size,
            total_prefill_tokens=point.total_prefill_tokens,
            total_kv_read_tokens=point.total_kv_read_tokens,
            partition=point.partition,
            rows=point.rows,
        )
        for point in found
        if point.point_type is Phase.PREFILL
    )
    decode = tuple(
        DecodeEntry(point.batch_size, point.total_kv_read_tokens)
        for point in found
        if point.point_type is Phase.DECODE
    )
    uneven = [2 for entry in prefill if entry.partition] + [3 for entry in prefill if entry.rows is not None]
    return PointsFile(max(uneven, default=1), prefill, decode)


def _prefill_point(entry: PrefillEntry) -> Point:
    return Point(
        Phase.PREFILL,
        0,
        total_prefill_tokens=entry.total_prefill_tokens,
        total_kv_read_tokens=entry.total_kv_read_tokens,
        batch_size=entry.batch_size,
        sample_reasons=(EXPLICIT,),
        partition=entry.partition,
        rows=entry.rows,
    )


# --- the rules that types cannot say -------------------------------------------------------------------


def _problems(file: PointsFile) -> Iterator[str]:
    if file.schema_version not in SCHEMAS:
        yield f"$.schema_version: found {file.schema_version}, expected one of 1, 2, 3"
    for index, prefill in enumerate(file.prefill):
        yield from _named(f"$.prefill[{index}]", _prefill_problems(prefill, file.schema_version))
    for index, decode in enumerate(file.decode):
        yield from _named(f"$.decode[{index}]", _decode_problems(decode))


def _named(entry: str, problems: Iterator[tuple[str, object, str]]) -> Iterator[str]:
    for name, found, expected in problems:
        yield f"{entry}.{name}: found {found}, expected {expected}"


def _prefill_problems(entry: PrefillEntry, schema: int) -> Iterator[tuple[str, object, str]]:
    batch, total, read = entry.batch_size, entry.total_prefill_tokens, entry.total_kv_read_tokens
    if batch < 1:
        yield "batch_size", batch, "1 or more"
    if total < max(1, batch):
        yield "total_prefill_tokens", total, f"{max(1, batch)} or more: one for each request"
    if read < 0 or (0 < read < batch and entry.rows is None):
        yield "total_kv_read_tokens", read, f"0, or {batch} or more: one for each request"
    for name, since in (("partition", 2), ("rows", 3)):
        if getattr(entry, name) is not None and schema < since:
            yield name, f"it in schema {schema}", f"schema_version {since} or later"
    if entry.partition is not None and entry.rows is not None:
        yield "rows", "partition and rows", "one of them"
    if entry.partition is not None:
        yield from _partition_problems(entry.partition, batch, read)
    if entry.rows is not None:
        yield from _row_problems(entry.rows, batch, total, read)


def _partition_problems(partition: Partition, batch: int, read: int) -> Iterator[tuple[str, object, str]]:
    if batch < 2:
        yield "partition", f"a batch of {batch}", "a batch of 2 or more"
    elif not 1 <= partition.high_count < batch:
        yield "partition.high_count", partition.high_count, f"1 … {batch - 1}"
    if not 0 < partition.fraction < 1:
        yield "partition.fraction", partition.fraction, "a number between 0 and 1"
    if partition.axis != "new" and read <= 0:
        yield "partition.axis", f"{partition.axis!r} and no tokens to read", "total_kv_read_tokens above 0"


def _row_problems(
    rows: tuple[tuple[int, int], ...], batch: int, total: int, read: int
) -> Iterator[tuple[str, object, str]]:
    if len(rows) != batch:
        yield "rows", f"{len(rows)} rows", f"{batch}, one for each request"
    for index, (new, kv) in enumerate(rows):
        if new < 1:
            yield f"rows[{index}][0]", new, "1 or more"
        if kv < 0:
            yield f"rows[{index}][1]", kv, "0 or more"
    sums: tuple[tuple[str, int, Callable[[tuple[int, int]], int]], ...] = (
        ("total_prefill_tokens", total, lambda row: row[0]),
        ("total_kv_read_tokens", read, lambda row: row[1]),
    )
    for name, declared, column in sums:
        if sum(map(column, rows)) != declared:
            yield name, declared, f"{sum(map(column, rows))}, the sum of the rows"


def _decode_problems(entry: DecodeEntry) -> Iterator[tuple[str, object, str]]:
    if entry.batch_size < 1:
        yield "batch_size", entry.batch_size, "1 or more"
    if entry.total_kv_read_tokens < max(1, entry.batch_size):
        yield "total_kv_read_tokens", entry.total_kv_read_tokens, f"{max(1, entry.batch_size)} or more"
