"""Laws of cutting text into lines."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.trace.line_assembler import LineAssembler, OversizedLine

pieces = st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\n"]), max_size=8).map(b"".join), max_size=12)


@given(pieces, st.integers(1, 6))
def test_lines_do_not_depend_on_the_cuts(parts: list[bytes], limit: int) -> None:
    """However text is cut into pieces, its lines and their sizes are those of the whole text."""
    assembler = LineAssembler(limit)
    found = [line for part in parts for line in assembler.feed(part)]
    rest = assembler.finish()

    whole = b"".join(parts).split(b"\n")
    expected = whole if whole[-1] else whole[:-1]
    actual = found if rest is None else [*found, rest]
    sizes = [line.size if isinstance(line, OversizedLine) else len(line) for line in actual]
    assert sizes == [len(line) for line in expected]
    kept = [line for line in actual if not isinstance(line, OversizedLine)]
    assert kept == [line for line in expected if len(line) <= limit]
