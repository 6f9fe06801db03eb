"""Knows the exact quantiles of many positive numbers in little memory: 8 bytes a number."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_right
from math import ceil

__all__ = ["Quantiles"]

_CHUNK = 1 << 19  # numbers sorted at a time; a Python list of so many floats takes 16 MB for the moment


class Quantiles:
    """A collection of positive finite floats that can be asked for any quantile.

    Numbers are kept in sorted chunks; a quantile is found by halving the range of floats 64 times and
    counting with a binary search per chunk, so no copy of the whole is ever made.
    """

    __slots__ = ("_chunks", "_open", "count", "maximum", "total")

    def __init__(self) -> None:
        self._chunks: list[array[float]] = []
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
        self._chunks.append(array("d", sorted(self._open)))
        self._open = array("d")


def _bits(value: float) -> int:
    number: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return number


def _float(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", bits))[0]
    return value
