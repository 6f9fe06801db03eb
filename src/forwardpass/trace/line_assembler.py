"""Knows how text that arrives in pieces becomes whole lines, in bounded memory."""

from __future__ import annotations

__all__ = ["LineAssembler", "OversizedLine"]


class OversizedLine(bytes):
    """Stands for a line that was too long to keep. Empty; ``size`` is how many bytes the line had."""

    size: int

    @classmethod
    def of(cls, size: int) -> OversizedLine:
        """Return the stand-in for a line of ``size`` bytes."""
        line = cls()
        line.size = size
        return line


class LineAssembler:
    """Cuts pieces of text into lines. A line may span pieces.

    Of a line beyond ``max_line_bytes`` only the length is kept.
    """

    __slots__ = ("_carry", "_carry_bytes", "_max_line_bytes")

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._carry: list[bytes] = []  # the beginning of a line, empty once that is too long
        self._carry_bytes = 0

    def feed(self, text: bytes) -> list[bytes]:
        """Return the lines that end in ``text``, without their newlines."""
        lines = text.split(b"\n")
        rest = lines.pop()
        if lines:
            if len(text) > self._max_line_bytes:
                lines = [self._checked(line) for line in lines]
            if self._carry_bytes:
                lines[0] = self._completed(lines[0])
        if rest:
            self._keep(rest)
        return lines

    def feed_text(self, pieces: list[bytes]) -> bytes | None:
        """Return the lines that end in ``pieces`` as one text, with their newlines.

        ``None``, and nothing is taken, if they are none, or if a line may be too long: then :meth:`feed` is
        to be called.
        """
        size = sum(map(len, pieces))
        end = pieces[-1].rfind(b"\n") + 1
        if not end or self._carry_bytes + size > self._max_line_bytes:
            return None
        *before, last = pieces
        whole = b"".join((*self._carry, *before, memoryview(last)[:end]))
        self._carry.clear()
        self._carry_bytes = 0
        if end < len(last):
            self._keep(last[end:])
        return whole

    def finish(self) -> bytes | None:
        """Return the line that has begun and not ended, if there is one, and forget it."""
        return self._completed(b"") if self._carry_bytes else None

    def _keep(self, part: bytes) -> None:
        self._carry_bytes += len(part)
        if self._carry_bytes <= self._max_line_bytes:
            self._carry.append(part)
        else:
            self._carry.clear()

    def _completed(self, last: bytes) -> bytes:
        size = self._carry_bytes + (last.size if isinstance(last, OversizedLine) else len(last))
        whole = b"".join((*self._carry, last)) if size <= self._max_line_bytes else OversizedLine.of(size)
        self._carry.clear()
        self._carry_bytes = 0
        return whole

    def _checked(self, line: bytes) -> bytes:
        return line if len(line) <= self._max_line_bytes else OversizedLine.of(len(line))
