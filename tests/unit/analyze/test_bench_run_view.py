"""A benchmark's file as a run to look at: what is taken from it, and what is left out and named."""

from __future__ import annotations

from typing import Any

import pytest
from bench_files import fpm, made, read, set_samples

from forwardpass.analyze.benchmark.overview import overview
from forwardpass.analyze.benchmark.run import run_of
from forwardpass.artifact.read import ArtifactFile, Kind
from forwardpass.errors import UnknownSchema
from forwardpass.testing.artifacts import made_run


def test_samples_are_those_of_the_estimate() -> None:
    """SHOW-03: The admission step is no sample; without a protocol it is not known how many there were."""
    run = made(lambda document: set_samples(document, 1, [0.3, 0.1, 0.2]))
    old = made(protocol=False, contract=False)

    assert run.points[1].ranks[0].samples == (0.3, 0.1, 0.2)
    assert run.points[1].ranks[0].wall_time == 0.2
    assert (old.points[1].ranks[0].samples, old.points[1].ranks[0].method) == ((), None)


def test_noise_tells_one_sample_from_none_recorded() -> None:
    """SHOW-03, SHOW-04: Points with a spread, with one sample and without a record are counted apart."""
    run = made(lambda document: set_samples(document, 1, [0.1, 0.1, 0.13]))
    noise = overview(run).noise
    old = overview(made(protocol=False, contract=False)).noise

    assert (noise.several_samples, noise.one_sample, noise.not_recorded) == (1, 2, 0)
    assert noise.widest[0].benchmark_id == 2
    assert noise.widest[0].spread.cv == pytest.approx(0.1575, abs=1e-3)
    assert (old.several_samples, old.one_sample, old.not_recorded, old.median_cv) == (0, 0, 3, None)


def test_ranks_that_differ_are_no_noise() -> None:
    """SHOW-04: What ranks differ by in one pass stands apart from the spread of samples."""
    view = overview(read(made_run(ranks=2)[0]))

    assert view.ranks_apart is not None
    assert view.ranks_apart.most_ratio == pytest.approx(1.5)
    assert view.ranks_apart.most_at == 1
    assert overview(made()).ranks_apart is None


def test_every_rank_has_the_same_passes_in_every_file() -> None:
    """SHOW-01: A rank's file shows the passes of all ranks, its own regimes where the file names them."""
    first, second = (read(document) for document in made_run(ranks=2))

    assert first.ranks == second.ranks == (0, 1)
    assert first.points == second.points
    assert first.size == 2


def break_wall(document: dict[str, Any]) -> None:
    """Make a time negative."""
    document["iteration_groups"][1]["wall_time"] = -1.0


def break_shape(document: dict[str, Any]) -> None:
    """Leave out what a point is."""
    del document["iteration_groups"][1]["point"]["batch_size"]


def break_index(document: dict[str, Any]) -> None:
    """Name a sample that is not there."""
    fpm(document, 1)["benchmark_measurement"]["estimate"]["raw_sample_indices"] = [9]


def break_count(document: dict[str, Any]) -> None:
    """Name a count that cannot be printed."""
    document["iteration_groups"][1]["point"]["total_kv_read_tokens"] = 10**5000


def break_time(document: dict[str, Any]) -> None:
    """Name a time of 30 million years."""
    document["iteration_groups"][1]["wall_time"] = 1e15


def break_ranks(document: dict[str, Any]) -> None:
    """Leave out all results."""
    document["iteration_groups"][1]["rank_results"] = []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (break_wall, "$.iteration_groups[1].wall_time"),
        (break_shape, "$.iteration_groups[1].point.batch_size"),
        (break_index, "$.iteration_groups[1]"),
        (break_time, "$.iteration_groups[1]"),
        (break_ranks, "$.iteration_groups[1]"),
    ],
)
def test_a_row_that_is_not_as_documented_is_left_out(change: Any, where: str) -> None:
    """SHOW-02: The row is named with its path, nothing stands in for it, and the others are there."""
    run = made(change)

    assert [point.point.benchmark_id for point in run.points] == [1, 3]
    assert [one.where for one in run.unread] == [where]
    assert not run.is_whole


def test_numbers_that_no_run_has_are_left_out() -> None:
    """SHOW-02: A count of thousands of digits is a damaged row and no crash."""
    text_limit_is_reached = 10**400
    run = made(
        lambda document: document["iteration_groups"][1]["point"].update(padding_tokens=text_limit_is_reached)
    )
    skips = made(
        lambda document: document.update(
            skipped_points=[
                {"point": {**document["iteration_groups"][0]["point"], "batch_size": 1 << 60}, "reason": "x"}
            ]
        )
    )

    assert len(run.points) == 2
    assert len(run.unread) == 1
    assert skips.skipped == ()
    assert skips.unread[0].where == "$.skipped_points"


@pytest.mark.parametrize("value", [None, {}, "no list", 7])
def test_a_file_without_a_list_of_points_has_none(value: object) -> None:
    """SHOW-02: What stands where the points should be is named."""
    run = made(lambda document: document.update(iteration_groups=value))

    assert run.points == ()
    assert run.unread[0].where == "$.iteration_groups"


def test_parts_of_the_head_may_be_anything() -> None:
    """SHOW-02: Blocks of another type are named, and everything else is shown."""

    def change(document: dict[str, Any]) -> None:
        document.update(
            cudagraph=[1], dp="x", coverage=None, timing=5, warmup_evidence={"status": 3}, engine=7
        )

    run = made(change)
    view = overview(run)

    assert len(run.points) == 3
    assert run.graphs is None
    assert view.points.expected is None
    assert {one.where for one in run.unread} >= {"$.cudagraph"}


def test_warmups_known_to_be_none_are_no_unknown_ones() -> None:
    """SHOW-05: A ledger without records is known; an unavailable one and a missing one are not."""
    none = made(lambda document: document.update(warmup_evidence={"status": "recorded", "records": []}))
    unknown = made(lambda document: document.update(warmup_evidence={"status": "unavailable", "records": []}))
    missing = made(lambda document: document.pop("warmup_evidence"))

    assert [(one.recorded, one.attempts) for one in overview(none).warmups] == [(True, 0)]
    assert [(one.recorded, one.attempts) for one in overview(unknown).warmups] == [(False, 0)]
    assert overview(missing).warmups == ()


def test_a_status_from_before_there_was_one_follows_from_valid() -> None:
    """SHOW-01: A file without a status is complete if it is valid, else failed."""
    old = made(lambda document: document.pop("status"))
    bad = made(lambda document: (document.pop("status"), document.update(valid=False)))

    assert (overview(old).status, old.is_whole) == ("complete", True)
    assert (overview(bad).status, bad.is_whole) == ("failed", False)


def test_a_sidecar_is_no_run() -> None:
    """SHOW-01: What workers replied is refused by what it is."""
    with pytest.raises(UnknownSchema) as caught:
        run_of(ArtifactFile("x.json", Kind.PROBE, {}))

    assert caught.value.path == "x.json"
