"""What Dynamo's own benchmark files show, and what may be said of two of them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from forwardpass.analyze.benchmark.comparison import compare
from forwardpass.analyze.benchmark.fields import Effect
from forwardpass.analyze.benchmark.overview import overview
from forwardpass.analyze.benchmark.run import load_run
from forwardpass.analyze.benchmark.surface import surfaces
from forwardpass.analyze.benchmark.timing import Verdict, Why

GOLDEN = Path(__file__).parent
FILES = sorted(GOLDEN.glob("*/benchmark_results*.json*"))
AGG = GOLDEN / "vllm-cpu-bench-agg" / "benchmark_results.json"
DEFAULTS = GOLDEN / "vllm-cpu-bench-defaultgrid" / "benchmark_results.json.gz"
MOE = GOLDEN / "vllm-cpu-moe-dp2-bench-agg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_point_of_the_reference_is_read(path: Path) -> None:
    """SHOW-01, SHOW-02: Every group of every file is there with its times, and nothing is left out."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    run = load_run(path)

    assert run.unread == ()
    assert [(point.point.benchmark_id, point.wall_time) for point in run.points] == [
        (group["benchmark_id"], group["wall_time"]) for group in document["iteration_groups"]
    ]
    assert all(len(point.ranks) == run.size for point in run.points)
    assert run.is_whole == (document["status"] == "complete")


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_point_stands_on_one_map(path: Path) -> None:
    """SHOW-06: Each point has exactly one place on the maps of its phase."""
    run = load_run(path)
    cells = [
        number
        for surface in surfaces(run.points, run.graphs, lambda point: point.wall_time)
        for panel in surface.panels
        for row in panel.cells
        for cell in row
        if cell
        for number in cell.points
    ]

    assert sorted(cells) == sorted(point.point.benchmark_id for point in run.points)


def test_merged_and_rank_files_show_the_same() -> None:
    """SHOW-01: A merged file and both ranks' files of a run have the same points and the same counts; where
    the KV came from each rank's file says of its own passes only.
    """
    names = ("benchmark_results.json", "benchmark_results_dp1.json", "benchmark_results_merged.json")
    views = [load_run(MOE / name) for name in names]

    walls = [[[time.wall_time for time in point.ranks] for point in view.points] for view in views]
    regimes = [{time.rank for time in view.points[0].ranks if time.kv_seed_regime} for view in views]

    assert walls[0] == walls[1] == walls[2]
    assert regimes == [{0}, {1}, {0, 1}]
    assert {overview(view).points.expected for view in views} == {19}


def test_files_without_a_protocol_claim_no_samples() -> None:
    """SHOW-03: ai-dynamo 1.6.1 recorded no samples: nothing is said of noise, and nothing is concluded."""
    found = compare([load_run(AGG)], [load_run(DEFAULTS)])

    assert overview(load_run(AGG)).noise.not_recorded == 19
    assert found.timing is not None
    assert found.timing.verdicts[Verdict.NOT_COMPARABLE.value] == 19
    assert found.timing.reasons == {Why.ONE_SAMPLE.value: 19}
    assert found.timing.prompts.unknown == 19


def test_a_small_grid_is_part_of_the_default_one() -> None:
    """DIFF-01: All 19 points of the small grid stand in the default one, under other ids."""
    grid = compare([load_run(AGG)], [load_run(DEFAULTS)]).grid

    assert (grid.common, grid.only_a, len(grid.only_b), grid.same_digest) == (19, (), 180, False)
    assert len(grid.moved) == 19


def test_another_model_on_two_ranks_is_refused() -> None:
    """DIFF-02: A dense model on one rank and a sparse one on two have one grid and no comparable times."""
    found = compare([load_run(AGG)], [load_run(MOE / "benchmark_results_merged.json")])
    refused = {field.path for field in found.fields if field.effect is Effect.REFUSED}

    assert found.grid.same_digest
    assert found.timing is None
    assert refused == {
        "engine.model.model",
        "engine.model.model_type",
        "engine.model.architectures",
        "engine.parallel.data_parallel_size",
        "dp.size",
    }


def test_a_run_whose_time_was_up_has_nothing_in_common() -> None:
    """DIFF-01: A run without a point was planned like the default grid, and its file says no more."""
    partial = load_run(GOLDEN / "vllm-cpu-bench-timeout" / "benchmark_results.json")
    found = compare([load_run(DEFAULTS)], [partial])

    assert (found.grid.common, len(found.grid.only_a), found.grid.same_digest) == (0, 199, True)
    assert any(caveat.startswith("B is partial") for caveat in found.caveats)
