"""Tables and pictures of grids."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from forwardpass.bench.grid import SampleLimits, build_grid
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphMode, GraphSettings, KvGroup
from forwardpass.bench.points import Phase, Point
from forwardpass.cli.bench_options import RUN_ROWS, bench_options
from forwardpass.cli.bench_picture import (
    MAX_ROWS,
    decode_picture,
    every_point,
    prefill_picture,
    shape_tables,
)

BOTH = (Phase.PREFILL, Phase.DECODE)


def grid(captures: tuple[int, ...], requests: int = 16, samples: int = 9) -> tuple[Point, ...]:
    """Return the points of an engine that captured those sizes."""
    graph = GraphSettings("FULL", GraphMode.FULL, GraphMode.FULL, captures)
    engine = EngineLayout((KvGroup(16),), 16, 16, graph=graph)
    capacity = CapacityEnvelope(256, 64, requests, 500, 500)
    limits = SampleLimits(samples, samples, samples, samples, samples)
    return build_grid(BOTH, engine, capacity, samples=limits).points


def test_captured_sizes_and_the_end_of_graphs_are_marked() -> None:
    """GRID-10, GRID-30: Each captured size has its mark, and the first shape without a graph another."""
    points = grid((1, 2, 4))
    decode = decode_picture(points)
    marks = {
        line.split("|")[0].strip(): line.split("|")[2].strip() for line in decode if line.count("|") == 2
    }

    assert marks == {
        "1": "= FULL 1",
        "2": "= FULL 2",
        "3": "",
        "4": "= FULL 4",
        "5": "no graph from here on",
        "8": "",
        "16": "",
    }
    assert sum("no graph from here on" in line for line in prefill_picture(points)) == 1


def test_without_graphs_nothing_is_marked() -> None:
    """GRID-30: Where no size is captured there is no end of graphs."""
    points = grid(())

    assert not [line for line in prefill_picture(points) + decode_picture(points) if "graph" in line]


def test_every_point_of_decode_has_its_place() -> None:
    """GRID-13: The shortest and the longest context stand at the two ends; what falls together is another
    letter.
    """
    points = [Point(Phase.DECODE, 1, 0, total, 1) for total in (2, 64, 65, 4096)]
    picture = decode_picture(points, width=12)

    assert picture[1] == "  1 |o    #     o|"
    assert picture[2].split() == ["2", "4,096"]
    assert decode_picture(points[:1], width=4)[1] == "  1 |o   |"


def test_a_picture_is_never_longer_than_a_screen() -> None:
    """GRID-11: Of many shapes some are shown, both ends among them, and that is said; the table has all."""
    points = [Point(Phase.DECODE, batch, 0, 2 * batch, batch) for batch in range(1, 101)]
    picture = decode_picture(points)

    assert sum(line.count("|") == 2 for line in picture) == MAX_ROWS
    assert picture[1].split()[0] == "1"
    assert picture[-1] == f"  {MAX_ROWS} of 100 rows are shown; the table has all"
    assert len(shape_tables(points)) == 102


def test_prefixes_are_counted_for_each_place() -> None:
    """GRID-12: A place without a point is a dot; one without a prefix counts as one."""
    points = [
        Point(Phase.PREFILL, 1, 8, 0, 1),
        Point(Phase.PREFILL, 2, 8, 16, 1),
        Point(Phase.PREFILL, 3, 8, 0, 2),
        Point(Phase.PREFILL, 4, 1, 0, 1),
    ]

    assert [line.split() for line in prefill_picture(points)[2:]] == [["1", "1", "."], ["8", "2", "1"]]


def test_no_points_have_no_picture() -> None:
    """GRID-34: A phase that is not there is left out."""
    assert (shape_tables([]), prefill_picture([]), decode_picture([])) == ([], [], [])
    assert [line.split()[0] for line in every_point(grid((1, 2)))][:1] == ["id"]
    assert len(every_point(grid((1, 2)))) == len(grid((1, 2))) + 1


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ([], {}),
        (["--benchmark-collect-imbalanced"], {"DYN_BENCHMARK_COLLECT_IMBALANCED": "true"}),
        (["--no-benchmark-collect-imbalanced"], {"DYN_BENCHMARK_COLLECT_IMBALANCED": "false"}),
        (["--benchmark-timeout", "0.5", "--benchmark-mode", ""],
         {"DYN_BENCHMARK_MODE": "", "DYN_BENCHMARK_TIMEOUT": "0.5"}),
    ],
)  # fmt: skip
def test_options_are_texts_under_the_names_of_their_variables(
    arguments: list[str], flags: dict[str, str]
) -> None:
    """BCONF-01: What was given is known, booleans that were turned off too; what was not is absent."""
    found: list[dict[str, str]] = []

    @click.command()
    @bench_options(RUN_ROWS)
    def command(flags: dict[str, str]) -> None:
        found.append(flags)

    assert CliRunner().invoke(command, arguments).exit_code == 0
    assert found == [flags]
