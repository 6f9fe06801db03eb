"""Maps of measured points in a terminal: width, colours, signs, and marks of graphs."""

from __future__ import annotations

import re

import pytest

from forwardpass.analyze.benchmark.surface import Band, Cell, Mark, Panel, Surface
from forwardpass.bench.points import Phase
from forwardpass.cli.heat_map import TIME_COLOURS, heat_lines, time_scale

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def surface(rows: int = 3, columns: int = 2, panels: int = 1, *, shared: bool = False) -> Surface:
    """Return maps whose values grow from place to place."""
    ids = (1, 2) if shared else (1,)
    cells = tuple(
        tuple(Cell(0.001 * (1 + row * columns + at), ids) for at in range(columns)) for row in range(rows)
    )
    bands = tuple(Band(1 << at, 1 << at) for at in range(columns))
    members = tuple(Panel(Band(64 * at, 64 * at), False, bands, cells) for at in range(panels))
    marks = tuple(Mark(f"FULL {row + 1}", row == 0, False) for row in range(rows - 1))
    end = Mark(None, False, True)
    return Surface(
        Phase.PREFILL, tuple(range(1, rows + 1)), (*marks, end), members, 0.001, 0.001 * rows * columns
    )


def lines(found: Surface, width: int = 110, *, colours: bool = False) -> list[str]:
    """Return the lines of maps of milliseconds."""
    scale = time_scale(found, TIME_COLOURS if colours else None, lambda value: f"{value * 1e3:.2f}")
    return heat_lines(found, scale, width)


def test_every_value_stands_at_its_place() -> None:
    """SHOW-06, SHOW-08: Columns, rows, values and marks are readable without any colour."""
    assert [line.split() for line in lines(surface())] == [
        ["nothing", "read"],
        ["tokens", "1", "2"],
        ["1", "1.00", "2.00", "-", "=", "FULL", "1"],
        ["2", "3.00", "*", "4.00", "#", "<", "FULL", "2"],
        ["------", "--", "no", "graph", "from", "here", "on"],
        ["3", "5.00", "%", "6.00", "@"],
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 110, 200])
@pytest.mark.parametrize("colours", [False, True])
def test_lines_keep_to_the_width(width: int, colours: bool) -> None:
    """SHOW-10: Columns that do not fit go on below; none is lost."""
    found = [ESCAPES.sub("", line) for line in lines(surface(4, 6, 5), width, colours=colours)]
    heads = [line for line in found if line.startswith("tokens")]

    assert max(map(len, found)) <= width
    assert sum(len(line.split()) - 1 for line in heads) == 30


def test_colours_change_nothing_but_colours() -> None:
    """SHOW-10: With colours the numbers are the same and no letters stand for warmth."""
    coloured = lines(surface(), colours=True)
    assert any("\x1b[48;5;" in line for line in coloured)
    assert all(line.count("\x1b[0m") == line.count("\x1b[48") for line in coloured)
    assert [ESCAPES.sub("", line).split() for line in coloured[2:4]] == [
        ["1", "1.00", "2.00", "=", "FULL", "1"],
        ["2", "3.00", "4.00", "<", "FULL", "2"],
    ]
    assert not any("\x1b" in line for line in lines(surface()))


def test_a_shared_place_says_so() -> None:
    """SHOW-07: A value of several points has a sign of its own."""
    assert "1.00+" in lines(surface(shared=True))[2]


def test_rows_beyond_forty_are_left_out_and_said_to_be() -> None:
    """SHOW-10: Of a hundred rows forty are shown, first and last among them."""
    found = lines(surface(100))

    assert found[-1] == "40 of 100 rows are shown; --points lists all"
    assert found[2].split()[0] == "1"
    assert found[-2].split()[0] == "100"


def test_a_title_that_is_wider_than_its_column_widens_it() -> None:
    """SHOW-10: Titles of neighbouring maps never run into each other."""
    title, head, first, *_ = lines(surface(2, 1, 3))

    assert title.split() == ["nothing", "read", "reads", "64", "reads", "128"]
    assert [match.start() + 4 for match in re.finditer(r"1\.00", first)] == [
        title.index(words) + len(words) - 2 for words in ("nothing read", "reads 64", "reads 128")
    ]
    assert len(head) == len(title)
