"""Knows the exact quantiles of many positive numbers in little memory: 8 bytes a number, 32 MiB at most.

What is more than that goes to a temporary file of 8 bytes a number, in the system's folder for those.
"""

from __future__ import annotations

import os
import struct
import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import ceil
from typing import overload

__all__ = ["Quantiles"]

_CHUNK = 1 << 19  # numbers sorted at a time; a Python list of so many floats takes 16 MB for the moment
_CHUNKS_IN_MEMORY = 8


class Quantiles:
    """A collection of positive finite floats that can be asked for any quantile.

    Numbers are kept in sorted chunks; a quantile is found by halving the range of floats 64 times and
    counting with a binary search per chunk, so no copy of the whole is ever made. Where there is no room
    for a temporary file all chunks stay in memory.
    """

    __slots__ = ("_chunks", "_file", "_open", "count", "maximum", "total")

    def __init__(self) -> None:
        self._chunks: list[Sequence[float]] = []
        self._file: _NumberFile | None = None
        self._open: array[float] = array("d")
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0

    def add(self, value: float) -> None:
        """Take one number > 0. The caller sees to it that it is finite."""
        self._open.append(value)
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value
        if len(self._open) >= _CHUNK:
            self._close_chunk()

    def extend(self, other: Quantiles) -> None:
        """Take all numbers of ``other``."""
        for chunk in (*other._chunks, other._open):
            for value in chunk:
                self.add(value)

    def quantile(self, share: float) -> float | None:
        """Return the nearest-rank quantile: the smallest number that at least ``share`` (0 < share <= 1)
        of all numbers do not exceed. ``None`` for an empty collection.
        """
        if not self.count:
            return None
        if self._open:
            self._close_chunk()
        wanted = max(1, ceil(round(share * self.count, 6)))  # 0.07 * 100 is 7.000000000000001
        low, high = 0, _bits(self.maximum)  # positive floats are ordered as their bits are
        while low < high:
            middle = (low + high) // 2
            if self._count_up_to(_float(middle)) >= wanted:
                high = middle
            else:
                low = middle + 1
        return _float(low)

    def _count_up_to(self, value: float) -> int:
        return sum(bisect_right(chunk, value) for chunk in self._chunks)

    def _close_chunk(self) -> None:
        chunk = array("d", sorted(self._open))
        self._open = array("d")
        self._chunks.append(self._put_away(chunk) if len(self._chunks) >= _CHUNKS_IN_MEMORY else chunk)

    def _put_away(self, chunk: array[float]) -> Sequence[float]:
        with suppress(OSError):
            self._file = self._file or _NumberFile()
            return self._file.append(chunk)
        return chunk


class _NumberFile:
    """A temporary file without a name that lives as long as somebody uses its numbers."""

    def __init__(self) -> None:
        self.descriptor, path = tempfile.mkstemp(prefix="fpm-numbers-")
        weakref.finalize(self, os.close, self.descriptor)
        os.unlink(path)
        self._size = 0

    def append(self, numbers: array[float]) -> _Stored:
        """Write ``numbers`` and return them as they are read back. Raises ``OSError``."""
        start, data = self._size, numbers.tobytes()
        written = 0
        while written < len(data):
            written += os.pwrite(self.descriptor, data[written:], start + written)
        self._size += len(data)
        return _Stored(self, start, len(numbers))


class _Stored(Sequence[float]):
    """Numbers in a file, one read for each that is asked for."""

    def __init__(self, file: _NumberFile, start: int, count: int) -> None:
        self._file, self._start, self._count = file, start, count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> float: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[float]: ...
    def __getitem__(self, at: int | slice) -> float | Sequence[float]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(self._count))]
        if not 0 <= at < self._count:
            raise IndexError(at)
        (value,) = struct.unpack("d", os.pread(self._file.descriptor, 8, self._start + 8 * at))
        return float(value)

    def __iter__(self) -> Iterator[float]:
        numbers = array("d")
        numbers.frombytes(os.pread(self._file.descriptor, 8 * self._count, self._start))
        return iter(numbers)


def _bits(value: float) -> int:
    number: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return number


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value
