"""Lines out of text in pieces."""

from __future__ import annotations

from forwardpass.trace.line_assembler import LineAssembler, OversizedLine


def sizes(lines: list[bytes]) -> list[object]:
    """Return lines as they are, and the size of those that were too long."""
    return [line.size if isinstance(line, OversizedLine) else line for line in lines]


def test_lines_may_span_pieces() -> None:
    """A line is returned when its end has come, whole."""
    assembler = LineAssembler(100)

    assert assembler.feed(b"one\ntw") == [b"one"]
    assert assembler.feed(b"") == []
    assert assembler.feed(b"o") == []
    assert assembler.feed(b"\n\nfour\n") == [b"two", b"", b"four"]
    assert assembler.finish() is None


def test_the_rest_is_given_once() -> None:
    """An unfinished line is returned at the end and then forgotten."""
    assembler = LineAssembler(100)
    assembler.feed(b"a\nhal")

    assert assembler.finish() == b"hal"
    assert assembler.finish() is None
    assert assembler.feed(b"b\n") == [b"b"]


def test_a_line_at_the_limit_is_kept() -> None:
    """The limit is the longest line that is kept, however it arrives."""
    for pieces in ([b"abcd\nabcde\n"], [b"ab", b"cd\nab", b"cde\n"]):
        assembler = LineAssembler(4)
        lines = [line for piece in pieces for line in assembler.feed(piece)]

        assert sizes(lines) == [b"abcd", 5]


def test_of_a_line_too_long_only_the_size_is_kept() -> None:
    """TRACE-65: a line without an end does not grow in memory, and its size is still known."""
    assembler = LineAssembler(10)
    for _ in range(1000):
        assert assembler.feed(b"x" * 100) == []
        assert sum(map(len, assembler._carry)) <= 10

    assert sizes(assembler.feed(b"x\nnext\n")) == [100_001, b"next"]


def test_an_unfinished_line_too_long_is_no_text() -> None:
    """The rest may be too long as well."""
    assembler = LineAssembler(3)
    assembler.feed(b"ok\nabcdef")
    rest = assembler.finish()

    assert isinstance(rest, OversizedLine)
    assert rest.size == 6


def test_a_long_line_inside_a_piece_is_measured() -> None:
    """A piece longer than the limit may hold both kinds of lines, the first one carried over."""
    assembler = LineAssembler(3)

    assert sizes(assembler.feed(b"ab")) == []
    assert sizes(assembler.feed(b"cdefg\nxyz\nlonger\nz\n")) == [7, b"xyz", 6, b"z"]


def test_whole_lines_come_as_one_text() -> None:
    """Pieces give the lines that end in them as one text; the rest of the last one comes first next time."""
    assembler = LineAssembler(100)

    assert assembler.feed_text([b"one\ntw"]) == b"one\n"
    assert assembler.feed_text([b"o\n", b"\nth", b"ree\n", b"four\nfi"]) == b"two\n\nthree\nfour\n"
    assert assembler.feed(b"ve\n") == [b"five"]
    assert assembler.finish() is None


def test_pieces_that_may_hold_a_line_too_long_are_not_taken() -> None:
    """Where a line may be beyond the limit, or none ends, the pieces are left for being cut one by one."""
    assembler = LineAssembler(6)
    assembler.feed(b"abc")

    assert assembler.feed_text([b"d\n", b"ef\n"]) is None
    assert assembler.feed_text([b"d"]) is None
    assert assembler.feed_text([b"d\n"]) == b"abcd\n"
    assert assembler.finish() is None
