"""Where points lie on the maps of a run."""

from __future__ import annotations

from typing import Any

from bench_files import Document, read

from forwardpass.analyze.benchmark.run import BenchRun
from forwardpass.analyze.benchmark.surface import Band, Surface, surfaces, warmth
from forwardpass.bench.points import Phase
from forwardpass.testing.artifacts import made_run

Shape = tuple[str, int, int, int, float]
"""Phase, tokens to compute, tokens to read, requests, seconds."""


def run_with(shapes: list[Shape], **graphs: Any) -> BenchRun:
    """Return a run of these points, with captured graphs."""
    (document,) = made_run(ranks=1, points=len(shapes), protocol=False, contract=False)
    for at, (phase, tokens, reads, requests, seconds) in enumerate(shapes):
        group: Document = document["iteration_groups"][at]
        group["wall_time"] = seconds
        group["rank_results"][0]["fpms"][0]["wall_time"] = seconds
        group["point"].update(
            point_type=phase, total_prefill_tokens=tokens, total_kv_read_tokens=reads, batch_size=requests
        )
    document["cudagraph"].update(graphs)
    return read(document)


def maps_of(run: BenchRun) -> dict[Phase, Surface]:
    """Return the maps of times."""
    return {one.phase: one for one in surfaces(run.points, run.graphs, lambda point: point.wall_time)}


def test_prefills_lie_by_tokens_and_requests_for_each_prefix() -> None:
    """SHOW-06: Rows are tokens, columns requests, and each band of tokens that are read has a map."""
    run = run_with(
        [
            ("prefill", 64, 0, 1, 0.1),
            ("prefill", 64, 0, 2, 0.2),
            ("prefill", 128, 512, 2, 0.4),
            ("prefill", 64, 512, 1, 0.3),
        ]
    )
    found = maps_of(run)[Phase.PREFILL]

    assert found.rows == (64, 128)
    assert [panel.reads for panel in found.panels] == [Band(0, 0), Band(512, 512)]
    assert found.panels[0].columns == (Band(1, 1), Band(2, 2))
    values = [[cell and cell.value for cell in row] for row in found.panels[1].cells]
    assert values == [[0.3, None], [None, 0.4]]
    assert (found.least, found.most) == (0.1, 0.4)


def test_decodes_lie_by_requests_and_mean_context() -> None:
    """SHOW-06: A decode's column is what each request reads, not what all of them do."""
    run = run_with([("decode", 0, 800, 8, 0.1), ("decode", 0, 100, 1, 0.2)])
    found = maps_of(run)[Phase.DECODE]

    assert found.rows == (1, 8)
    assert found.panels[0].columns == (Band(100, 100),)
    assert found.panels[0].reads is None


def test_too_many_columns_become_powers_of_two() -> None:
    """SHOW-06: A band then reaches to the next power of two, and no point is lost."""
    run = run_with([("decode", 0, context, 1, 0.001 * context) for context in range(1, 31)])
    (panel,) = maps_of(run)[Phase.DECODE].panels
    cells = [cell for cell in panel.cells[0] if cell]

    assert panel.columns == (Band(1, 1), Band(2, 3), Band(4, 7), Band(8, 15), Band(16, 31))
    assert sorted(number for cell in cells for number in cell.points) == list(range(1, 31))


def test_the_slowest_of_several_counts() -> None:
    """SHOW-07: Where points share a place, the slowest one stands there with the ids of all."""
    run = run_with([("decode", 0, 64, 4, 0.1), ("decode", 0, 64, 4, 0.3), ("decode", 0, 65, 4, 0.2)])
    (panel,) = maps_of(run)[Phase.DECODE].panels
    cell = panel.cells[0][0]

    assert cell is not None
    assert (cell.value, cell.points) == (0.3, (1, 2, 3))


def test_unequal_requests_have_maps_of_their_own() -> None:
    """SHOW-06: A point whose requests differ on purpose does not stand among the others."""
    shapes: list[Shape] = [("prefill", 64, 0, 2, 0.1), ("prefill", 64, 0, 2, 0.9)]
    (document,) = made_run(ranks=1, points=2, protocol=False, contract=False)
    for at, (phase, tokens, reads, requests, seconds) in enumerate(shapes):
        group = document["iteration_groups"][at]
        group["wall_time"] = seconds
        group["point"].update(
            point_type=phase, total_prefill_tokens=tokens, total_kv_read_tokens=reads, batch_size=requests
        )
    document["iteration_groups"][1]["point"]["rows"] = [[1, 0], [63, 0]]
    panels = maps_of(read(document))[Phase.PREFILL].panels

    assert [panel.imbalanced for panel in panels] == [False, True]


def test_rows_say_which_graph_holds_them() -> None:
    """SHOW-08: A row names the smallest graph that holds it, exact sizes are marked, and so is the end."""
    run = run_with(
        [("decode", 0, 64 * requests, requests, 0.1) for requests in (1, 3, 4, 5, 9)],
        decode_mode="FULL",
        decode_capture_sizes=[1, 4],
    )
    marks = maps_of(run)[Phase.DECODE].marks

    assert marks is not None
    assert [mark.graph for mark in marks] == ["FULL 1", "FULL 4", "FULL 4", None, None]
    assert [mark.is_captured for mark in marks] == [True, False, True, False, False]
    assert [mark.is_first_beyond for mark in marks] == [False, False, False, True, False]


def test_without_graphs_there_is_no_end_of_them() -> None:
    """SHOW-08: An engine that captured nothing has no boundary, and a file that does not say has no marks."""
    nothing = run_with([("decode", 0, 64, 1, 0.1)], decode_mode="NONE", decode_capture_sizes=[])
    marks = maps_of(nothing)[Phase.DECODE].marks
    silent = run_with([("decode", 0, 64, 1, 0.1)], decode_capture_sizes="many")

    assert marks is not None
    assert (marks[0].graph, marks[0].is_first_beyond) == (None, False)
    assert maps_of(silent)[Phase.DECODE].marks is None


def test_warmth_goes_by_factors() -> None:
    """SHOW-07: Each step of warmth is the same factor; one value, or a time of 0, is no division by zero."""
    assert [warmth(value, 1.0, 100.0) for value in (1.0, 10.0, 100.0)] == [0.0, 0.5, 1.0]
    assert warmth(3.0, 3.0, 3.0) == 0.0
    assert warmth(0.5, 0.0, 1.0) == 0.5
