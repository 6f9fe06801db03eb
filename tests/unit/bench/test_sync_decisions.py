"""What the seven agreements compare, decide and accept."""

from __future__ import annotations

from typing import Any

import pytest
from engines import capacity
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.sync import decisions
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.rounds import Own, RoundSpec
from forwardpass.errors import OutOfLockstep

ALICE = "a" * 64
BOB = "b" * 64
RUN_ID = "0f" * 16
ZERO = Own(0, 3, RUN_ID)
ONE = Own(1, 3, None)


def envelopes(*changes: dict[str, Any]) -> dict[int, m.Capacity]:
    return {
        rank: m.Capacity(
            benchmark_id=0, dp_rank=rank, capacity=capacity(**{"grid_invariants_digest": ALICE, **change})
        )
        for rank, change in enumerate(changes)
    }


def ready(rank: int, **change: Any) -> m.Ready:
    fields = {"point_digest": ALICE, "output_summary": {"n": 4}, "validation_error": None, **change}
    return m.Ready(benchmark_id=1, dp_rank=rank, **fields)


def result(rank: int, *, stop: bool = False, digest: str = ALICE) -> m.Result:
    fpms = ({"wall_time": float(rank)},)
    return m.Result(benchmark_id=1, dp_rank=rank, point_digest=digest, fpms=fpms, stop_requested=stop)


def refused(spec: RoundSpec[Any, Any], reports: dict[int, Any]) -> OutOfLockstep:
    with pytest.raises(OutOfLockstep) as caught:
        spec.check(reports)
    assert caught.value.round == spec.kind
    return caught.value


# --- capacity ----------------------------------------------------------------------------------------


@given(st.lists(st.tuples(*[st.integers(0, 9)] * 5, st.booleans()), min_size=1, max_size=5))
def test_what_all_can_hold_is_the_least_of_each(limits: list[tuple[Any, ...]]) -> None:
    """SYNC-20: The group's capacity has the smallest of every limit, and warm-up only if all are eligible."""
    reports = {
        rank: m.Capacity(benchmark_id=0, dp_rank=rank, capacity=CapacityEnvelope(*some[:5], ALICE, some[5]))
        for rank, some in enumerate(limits)
    }
    decisions.CAPACITY.check(reports)

    common = decisions.CAPACITY.decide(reports, Own(0, len(limits), RUN_ID)).capacity

    assert structs.astuple(common)[:5] == tuple(min(column) for column in zip(*limits, strict=True))[:5]
    assert common.kvwarm_eligible is all(some[5] for some in limits)
    for rank, report in reports.items():
        decisions.CAPACITY.accept(
            report, m.CapacityResult(benchmark_id=0, capacity=common), Own(rank, 5, None)
        )


def test_ranks_that_are_set_up_differently_do_not_go_on() -> None:
    """SYNC-20: Every rank whose invariants differ from rank 0's is named."""
    error = refused(
        decisions.CAPACITY, envelopes({}, {"grid_invariants_digest": BOB}, {"grid_invariants_digest": BOB})
    )

    assert (error.rank, error.actual) == (1, BOB)
    assert ALICE in error.expected
    assert len(error.others) == 1
    assert "rank 2" in error.others[0]


@pytest.mark.parametrize("change", [{"max_model_len": -1}, {"grid_invariants_digest": ""}, {"blocks": -3}])
def test_an_impossible_capacity_is_refused(change: dict[str, Any]) -> None:
    """SYNC-20: A negative limit and a digest that is none are refused from any rank, rank 0 too."""
    assert refused(decisions.CAPACITY, envelopes({}, {}, change)).rank == 2
    assert refused(decisions.CAPACITY, envelopes(change)).rank == 0


@pytest.mark.parametrize(
    "change", [{"max_model_len": 4096}, {"grid_invariants_digest": BOB}, {"kvwarm_eligible": True}]
)
def test_more_than_a_rank_can_hold_is_not_accepted(change: dict[str, Any]) -> None:
    """SYNC-20: A rank does not accept a capacity beyond its own, or of another set-up."""
    mine = envelopes({})[0]
    answer = m.CapacityResult(benchmark_id=0, capacity=structs.replace(mine.capacity, **change))

    with pytest.raises(OutOfLockstep) as caught:
        decisions.CAPACITY.accept(mine, answer, ONE)

    assert caught.value.rank == 0


# --- grid --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [{"grid_digest": BOB}, {"expected_points": 8}, {"missing_phases": ()}, {"missing_phases": ("a", "b")}],
)
def test_grids_must_be_the_same(change: dict[str, Any]) -> None:
    """SYNC-21: Digest, number of points and missing phases are compared, and both sides shown."""
    same = {"grid_digest": ALICE, "expected_points": 7, "missing_phases": ("decode",)}
    reports = {rank: m.Grid(benchmark_id=0, dp_rank=rank, **same) for rank in (0, 1)}  # type: ignore[arg-type]
    decisions.GRID.check(reports)
    reports[2] = m.Grid(benchmark_id=0, dp_rank=2, **{**same, **change})

    error = refused(decisions.GRID, reports)

    assert error.rank == 2
    assert error.expected != error.actual
    assert ALICE in error.expected


# --- a point -----------------------------------------------------------------------------------------


def test_every_mismatch_before_a_point_is_told() -> None:
    """SYNC-22: What is wrong on any rank, rank 0 included, is in the one error that all get."""
    reports = {
        0: ready(0, validation_error="255 tokens"),
        1: ready(1, point_digest=BOB),
        2: ready(2, output_summary={"n": 5}),
    }

    error = refused(decisions.GO, reports)

    assert (error.rank, error.actual) == (0, "255 tokens")
    assert [other.split(":")[0] for other in error.others] == ["rank 1", "rank 2"]
    assert '{"n": 5}' in error.others[1]


def test_a_go_carries_the_run_id() -> None:
    """SYNC-22: All go under the id that rank 0 has drawn."""
    reports = {rank: ready(rank) for rank in range(3)}
    decisions.GO.check(reports)

    assert decisions.GO.decide(reports, ZERO) == m.Go(benchmark_id=1, run_id=RUN_ID)


@pytest.mark.parametrize(
    ("known", "told"), [(None, ""), (None, "A" * 32), (None, RUN_ID + "\n"), ("1" * 32, RUN_ID)]
)
def test_a_run_id_must_be_one_and_stay(known: str | None, told: str) -> None:
    """SYNC-22: A run id is 32 hexadecimal digits, and does not change during a run."""
    decisions.GO.accept(ready(1), m.Go(benchmark_id=1, run_id=RUN_ID), ONE)

    with pytest.raises(OutOfLockstep) as caught:
        decisions.GO.accept(ready(1), m.Go(benchmark_id=1, run_id=told), ONE._replace(run_id=known))

    assert caught.value.rank == 0


def test_results_are_of_the_same_point() -> None:
    """SYNC-23: A result of another point is refused."""
    assert refused(decisions.RESULT, {0: result(0), 1: result(1), 2: result(2, digest=BOB)}).rank == 2


@pytest.mark.parametrize("stops", [(), (0,), (2,), (0, 1, 2)])
def test_results_go_by_rank_and_any_stop_stops_all(stops: tuple[int, ...]) -> None:
    """SYNC-23, SYNC-24: All get the results sorted by rank, and stop if one asks for it."""
    reports = {rank: result(rank, stop=rank in stops) for rank in range(3)}
    group = decisions.RESULT.decide(reports, ZERO)

    assert [one.dp_rank for one in group.rank_results] == [0, 1, 2]
    assert group.stop_requested is bool(stops)
    assert decisions.RESULT.decide(reports, ZERO._replace(stop=True)).stop_requested
    decisions.RESULT.accept(reports[1], group, ONE)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda results: results[:2],
        lambda results: results[::-1],
        lambda results: (results[0], m.RankResult(1, ({"wall_time": 9.0},)), results[2]),
        lambda results: (results[0], m.RankResult(1, ()), results[2]),
        lambda results: (*results, m.RankResult(3, ())),
    ],
)
def test_wrong_results_are_not_accepted(spoil: Any) -> None:
    """SYNC-23: A rank accepts results only of all ranks, in order, with its own as it sent them."""
    group = decisions.RESULT.decide({rank: result(rank) for rank in range(3)}, ZERO)
    spoilt = structs.replace(group, rank_results=spoil(group.rank_results))

    with pytest.raises(OutOfLockstep):
        decisions.RESULT.accept(result(1), spoilt, ONE)


def test_a_stop_is_not_forgotten() -> None:
    """SYNC-24: A rank that asked for a stop does not accept a decision to go on."""
    group = decisions.RESULT.decide({rank: result(rank) for rank in range(3)}, ZERO)
    on = m.BoundaryDecision(benchmark_id=1, stop_requested=False)

    with pytest.raises(OutOfLockstep):
        decisions.RESULT.accept(result(1), group, ONE._replace(stop=True))
    with pytest.raises(OutOfLockstep):
        decisions.BOUNDARY.accept(
            m.Boundary(benchmark_id=1, dp_rank=1, stop_requested=True), on, ONE._replace(stop=True)
        )


# --- warm-up chains ------------------------------------------------------------------------------------


def staged(
    rank: int, phase: m.StagePhase, ok: bool | None, seq: int = 4, batch: int | None = 8
) -> m.StageRound:
    return m.StageRound(benchmark_id=0, dp_rank=rank, seq=seq, batch=batch, phase=phase, ok=ok)


NONE, BUILDING, DONE = m.StagePhase.NONE, m.StagePhase.BUILDING, m.StagePhase.DONE


@pytest.mark.parametrize(
    ("one", "other", "verdict"),
    [
        ((NONE, None), (NONE, None), (False, None)),
        ((NONE, None), (DONE, False), (False, None)),
        ((BUILDING, None), (BUILDING, None), (False, None)),
        ((BUILDING, None), (DONE, True), (False, None)),
        ((BUILDING, None), (DONE, False), (False, None)),
        ((DONE, True), (DONE, True), (True, True)),
        ((DONE, True), (DONE, False), (True, False)),
        ((DONE, False), (DONE, False), (True, False)),
    ],
)
def test_the_verdict_on_chains(one: Any, other: Any, verdict: Any) -> None:
    """SYNC-25: All are done when each is, and then all were built if each was; Dynamo 1.6.1 says the same of
    every one of these.
    """
    for pair in ((one, other), (other, one)):
        reports = {rank: staged(rank, *told) for rank, told in enumerate(pair)}
        decisions.STAGE.check(reports)
        answer = decisions.STAGE.decide(reports, ZERO)

        assert (answer.seq, answer.all_done, answer.ok) == (4, *verdict)
        decisions.STAGE.accept(reports[1], answer, ONE)


@pytest.mark.parametrize(
    "report",
    [
        staged(1, DONE, True, seq=5),
        staged(1, DONE, True, batch=16),
        staged(1, NONE, None, batch=None),
        staged(1, DONE, None),
        staged(1, BUILDING, False),
    ],
)
def test_a_rank_in_another_idle_step_is_an_error(report: m.StageRound) -> None:
    """SYNC-25: Another count of idle steps, another batch, and an outcome before the end are refused."""
    error = refused(decisions.STAGE, {0: staged(0, DONE, True), 1: report})

    assert error.rank == 1
    assert error.expected != error.actual


@pytest.mark.parametrize(
    "verdict", [(5, False, None), (4, True, None), (4, False, True), (4, True, True), (4, False, False)]
)
def test_a_verdict_that_cannot_be_is_not_accepted(verdict: tuple[int, bool, bool | None]) -> None:
    """SYNC-25: A rank whose chains failed accepts neither success nor another step's verdict."""
    seq, all_done, ok = verdict
    answer = m.StageRoundResult(benchmark_id=0, seq=seq, all_done=all_done, ok=ok)

    with pytest.raises(OutOfLockstep):
        decisions.STAGE.accept(staged(1, DONE, False), answer, ONE)
