"""Knows where the gzip members of a file are and which of them can be trusted.

The file is cut into regions that follow each other without a hole. A region is

* an *intact* member: it inflates to its end, and its checksum and length are right;
* a *torn* member: it inflates without an error, but its bytes simply end, at the end of the file or
  where the next member begins, and the end is not a member's own. A crash or a full disk does that. What
  was inflated is text that the writer wrote, as far as anyone can know without a checksum;
* a *corrupt* member: inflating fails, or the checksum or length is wrong. Nothing of it is text: the
  first wrong byte may stand anywhere in it;
* zero padding or other bytes that are no member.

After damage the scan goes on at the next gzip header that is real. Three header bytes also occur by
chance inside compressed data, so a header counts only if what is behind it begins like text, and is an
intact member or begins with a row of a trace. A member that is corrupt and would swallow the bytes of
members after it cannot hide them: damage always ends at the next real header.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from forwardpass.trace.file_bytes import FileBytes
from forwardpass.trace.gzip_member import Inflaters, fast_inflaters

__all__ = [
    "GZIP_MAGIC",
    "PIECE_BYTES",
    "HoldsRow",
    "Region",
    "State",
    "inflate",
    "intact_member",
    "next_member",
    "scan_members",
]

GZIP_MAGIC = b"\x1f\x8b\x08"
"""The two bytes of gzip, and the only compression method there is."""

KEEP_BYTES = 3 << 19
"""Text of one member that is held in memory: half as much again as writers put into one, for a merge holds
that of 32 files. A larger member is inflated twice: to check it, and again to hand its text out."""

PIECE_BYTES = 1 << 16
"""Most text handed out at once. Text stays in pieces: a megabyte in one buffer made inflating 1.7 times
and reading 1.2 times slower (page faults for each new buffer; AMD EPYC, 2026-11-30)."""

HoldsRow = Callable[[bytes], bool | None]
"""Says of the beginning of a text whether a row of a trace stands there; ``None`` if it needs more of it."""

_LENGTH_BYTES = 4
_LOOK_BYTES = 4096
_LOOK_TEXT_BYTES = 512
_CONTROLS = bytes(code for code in range(32) if code not in b"\t\n\r")
_READ_BYTES = 1 << 18  # most file bytes fed in one call
_FLAGS_AT = 3
_RESERVED_FLAGS = 0xE0

_zlib = Inflaters(lambda: zlib.decompressobj(wbits=31), zlib.error)
_fastest = fast_inflaters() or _zlib
"""Says of a sound member that it is sound, and gives its text. What it does not take is zlib's to judge."""


class State(Enum):
    """What a region is."""

    INTACT = auto()
    TORN = auto()
    CORRUPT = auto()
    PADDING = auto()
    GARBAGE = auto()


class Region(NamedTuple):
    """Bytes ``start`` (inclusive) to ``end`` (exclusive)."""

    start: int
    end: int
    state: State
    text_bytes: int = 0
    """Bytes of text in an intact or torn member."""
    pieces: tuple[bytes, ...] | None = None
    """The text if it is not too long to keep; :func:`inflate` returns it in any case."""


class _Outcome(Enum):
    RUNNING = auto()
    DONE = auto()  # checksum and length are right
    RAN_OUT = auto()
    FAILED = auto()


class _Inflation:
    """The text of one member, piece by piece, and how it came out."""

    __slots__ = ("_file", "_inflaters", "_limit", "_start", "end", "outcome")

    def __init__(self, file: FileBytes, start: int, limit: int, inflaters: Inflaters = _zlib) -> None:
        self._file = file
        self._inflaters = inflaters
        self._start = start
        self._limit = limit
        self.end = start
        """Byte after the member, once it is done."""
        self.outcome = _Outcome.RUNNING

    def __iter__(self) -> Iterator[bytes]:
        inflater, error = self._inflaters.make(), self._inflaters.error
        position = self._start
        while position < self._limit:
            data = self._file.read(position, self._feed(position))
            if not data:
                break
            position += len(data)
            while True:
                try:
                    text = inflater.decompress(data, PIECE_BYTES)
                except error:
                    self.outcome = _Outcome.FAILED
                    return
                if text:
                    yield text
                data = inflater.unconsumed_tail
                if inflater.eof:  # what is left over is in unused_data, and often in unconsumed_tail again
                    self.end = position - len(inflater.unused_data)
                    self.outcome = _Outcome.DONE
                    return
                if not data and len(text) < PIECE_BYTES:
                    break
        self.outcome = _Outcome.RAN_OUT

    def _feed(self, position: int) -> int:
        """Return how many bytes to inflate next: up to the next header, so that nothing of the member
        behind it is handed over and copied back (a second of a quiet engine is a member of 700 bytes).
        """
        stop = min(position + _READ_BYTES, self._limit)
        header = self._file.find(
            GZIP_MAGIC, position + 1, stop
        )  # at ``position`` it is our own, or no header
        return (stop if header < 0 else header) - position


class _Probe(NamedTuple):
    outcome: _Outcome
    end: int
    text_bytes: int
    pieces: tuple[bytes, ...] | None


def scan_members(file: FileBytes, holds_row: HoldsRow) -> Iterator[Region]:
    """Yield the regions of ``file``, from its first byte to its last."""
    start = 0
    while start < file.size:
        magic = file.read(start, len(GZIP_MAGIC))
        member = magic == GZIP_MAGIC[: file.size - start]
        if member:
            probe = _probe(file, start, file.size)
            if probe.outcome is _Outcome.DONE:
                yield Region(start, probe.end, State.INTACT, probe.text_bytes, probe.pieces)
                start = probe.end
                continue
        end = next_member(file, start + 1, holds_row)
        if member:
            yield _broken_member(file, start, end)
        else:
            zeros = _all_zero(file, start, end)
            yield Region(start, end, State.PADDING if zeros else State.GARBAGE)
        start = end


def inflate(file: FileBytes, region: Region) -> Iterable[bytes]:
    """Return the text of an intact or torn member, in pieces of at most ``PIECE_BYTES``."""
    if region.pieces is not None:
        return region.pieces
    inflaters = _fastest if region.state is State.INTACT else _zlib
    return _Inflation(file, region.start, region.end, inflaters)


def intact_member(file: FileBytes, start: int) -> Region | None:
    """Return the member that begins at ``start`` if it is intact and begins like text."""
    if not _begins_like_text(file, start):
        return None
    probe = _probe(file, start, file.size)
    if probe.outcome is not _Outcome.DONE:
        return None
    return Region(start, probe.end, State.INTACT, probe.text_bytes, probe.pieces)


def _probe(file: FileBytes, start: int, limit: int) -> _Probe:
    """Inflate a member to its end, or to ``limit``, to see whether it is sound."""
    flags = file.read(start + _FLAGS_AT, 1)
    if _fastest is not _zlib and flags and not flags[0] & _RESERVED_FLAGS:
        probe = _inflated(_Inflation(file, start, limit, _fastest))
        if probe.outcome is _Outcome.DONE:
            return probe
    return _inflated(_Inflation(file, start, limit))


def _inflated(inflation: _Inflation) -> _Probe:
    kept: list[bytes] = []
    size = 0
    for text in inflation:
        size += len(text)
        if size <= KEEP_BYTES:
            kept.append(text)
        else:
            kept.clear()
    return _Probe(inflation.outcome, inflation.end, size, tuple(kept) if size <= KEEP_BYTES else None)


def _broken_member(file: FileBytes, start: int, end: int) -> Region:
    probe = _probe(file, start, end)
    if probe.outcome is not _Outcome.RAN_OUT:
        return Region(start, end, State.CORRUPT)
    if probe.text_bytes and _states_its_length(file, end, probe.text_bytes):
        return Region(start, end, State.CORRUPT)
    return Region(start, end, State.TORN, probe.text_bytes, probe.pieces)


def _states_its_length(file: FileBytes, end: int, text_bytes: int) -> bool:
    """Say whether the last four bytes look like the length that a whole member ends with.

    Then nothing was torn off: damage made inflating run past the end. Of 960,000 single flipped bits in
    small members, 17 gave a wrong row that way, and in 26,400 of 26,400 members that ran out so, the
    text was within a factor of two of the stated length. A torn member ends so by chance in 1 of 1,000
    cases at most (its text below 1 MiB), and then loses rows that could not be verified anyway.
    """
    stated = int.from_bytes(file.read(end - _LENGTH_BYTES, _LENGTH_BYTES), "little")
    return text_bytes <= 4 * stated <= 16 * text_bytes


def next_member(file: FileBytes, start: int, holds_row: HoldsRow) -> int:
    """Return where the next real member begins at or after ``start``, or the file's size."""
    while True:
        candidate = file.find(GZIP_MAGIC, start, file.size)
        if candidate < 0:
            return file.size
        if _begins_like_text(file, candidate) and _is_member(file, candidate, holds_row):
            return candidate
        start = candidate + 1


def _begins_like_text(file: FileBytes, start: int) -> bool:
    """Say whether the bytes at ``start`` inflate to what could be lines of JSON, by a first look.

    JSON has no control characters. Without this look a file made of false headers would be inflated from
    each of them to its end.
    """
    inflater = zlib.decompressobj(wbits=31)
    try:
        text = inflater.decompress(file.read(start, _LOOK_BYTES), _LOOK_TEXT_BYTES)
    except zlib.error:
        return False
    seen = len(text) > 0 or inflater.eof or start + _LOOK_BYTES >= file.size
    return seen and len(text.translate(None, _CONTROLS)) == len(text)


def _is_member(file: FileBytes, start: int, holds_row: HoldsRow) -> bool:
    inflation = _Inflation(file, start, file.size)
    beginning = b""
    answer: bool | None = None
    for text in inflation:
        if answer is None:
            beginning += text
            answer = holds_row(beginning)
            if answer:
                return True
            if answer is not None:
                beginning = b""
    return inflation.outcome is _Outcome.DONE


def _all_zero(file: FileBytes, start: int, end: int) -> bool:
    while start < end:
        data = file.read(start, min(_READ_BYTES, end - start))
        if not data or data.count(0) != len(data):
            return not data
        start += len(data)
    return True
