"""Runs in which something goes wrong: what is skipped, what ends the run, and what is left behind."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rig import GRAPH, Rig, decode, prefill

from forwardpass.bench.context import RunSettings
from forwardpass.bench.driver import Refused
from forwardpass.bench.judge import judge
from forwardpass.bench.outcome import SkipReason
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.sync.messages import RankResult
from forwardpass.errors import BenchError, EngineError
from forwardpass.wire.schema import ForwardPassMetrics

CAPTURED = msgspec.structs.replace(GRAPH, capture_sizes=(1, 2, 4, 8, 16, 32, 64, 128))
"""Every shape has a graph: no replicas."""
BARE = RunSettings(warmup_iterations=0)


def reasons(log: RunLog) -> list[tuple[int, str]]:
    return [(skip.point.benchmark_id, skip.reason.value) for skip in log.skipped]


def scheduled(metrics: ForwardPassMetrics, **changes: int) -> ForwardPassMetrics:
    changed = msgspec.structs.replace(metrics.scheduled_requests, **changes)
    return msgspec.structs.replace(metrics, scheduled_requests=changed)


def rig(*points: Point, settings: RunSettings = BARE, **more: Any) -> Rig:
    return Rig(points=points, settings=settings, graph=CAPTURED, **more)


SHAPES = [
    (prefill(64, 2), {"num_prefill_requests": 1}, SkipReason.BATCH_SIZE),
    (prefill(64, 2), {"num_decode_requests": 1}, SkipReason.BATCH_SIZE),
    (prefill(64, 2), {"sum_prefill_tokens": 63}, SkipReason.PREFILL_TOKENS),
    (prefill(64, 2), {"sum_prefill_kv_tokens": 16}, SkipReason.KV_READ),
    (decode(64, 2), {"num_decode_requests": 1}, SkipReason.BATCH_SIZE),
    (decode(64, 2), {"num_prefill_requests": 1}, SkipReason.BATCH_SIZE),
    (decode(64, 2), {"sum_prefill_tokens": 1}, SkipReason.PREFILL_TOKENS),
    (decode(64, 2), {"sum_decode_kv_tokens": 60}, SkipReason.DECODE_CONTEXT),
]


@pytest.mark.parametrize(("point", "changes", "reason"), SHAPES)
def test_what_was_measured_has_to_be_what_was_asked(
    point: Point, changes: dict[str, int], reason: SkipReason
) -> None:
    """RUN-40: A pass with other requests or tokens than the point's is no result; the difference is the
    reason.
    """
    log = rig(point, tamper=lambda metrics: scheduled(metrics, **changes)).run()

    assert reasons(log) == [(1, reason.value)]
    assert log.measured == []


def test_a_difference_on_another_rank_is_a_skip_on_all() -> None:
    """RUN-40: One rank whose pass differs, or has none, makes every rank skip the point."""
    for passes, reason in (((), "no_fpm_before_deadline"), (None, "measured_prefill_tokens_mismatch")):
        bench = rig(prefill(64))

        def others(own: tuple[dict[str, Any], ...], passes: Any = passes) -> tuple[RankResult, ...]:
            wrong = {**own[0], "dp_rank": 1}
            wrong["scheduled_requests"] = {**wrong["scheduled_requests"], "sum_prefill_tokens": 1}
            return (RankResult(1, (wrong,) if passes is None else passes),)

        bench.group.others = others
        assert reasons(bench.run()) == [(1, reason)]


@pytest.mark.parametrize("field", ["counter_id", "dp_rank"])
def test_a_pass_of_another_point_or_rank_ends_the_run(field: str) -> None:
    """RUN-40, RUN-47: Passes that cannot be this point's are a fault between ranks, not a skip."""
    bench = rig(prefill(64))
    bench.group.others = lambda own: (RankResult(1, ({**own[0], "dp_rank": 1, field: 17},)),)

    with pytest.raises(BenchError, match=f"rank 1 has {field} 17, expected 1"):
        bench.run()
    assert bench.log.error is not None
    assert bench.log.error.startswith("BenchError: point 1")


def test_a_prefill_in_two_passes_ends_the_run() -> None:
    """RUN-10, RUN-47: An engine that cuts a point's prompt into chunks spoils every later point; the run
    ends, and what was injected is aborted.
    """
    bench = rig(prefill(64), prefill(128))
    bench.engine.scheduler.token_budget = 80

    with pytest.raises(BenchError, match="was scheduled with sum_prefill_tokens 80, expected 128"):
        bench.run()
    assert [row.point.benchmark_id for row in bench.log.measured] == [1]
    assert bench.engine.scheduler.unfinished == 0
    assert not bench.session.active


def test_two_passes_of_a_prefill_are_no_result() -> None:
    """RUN-10: A second pass of the same point is an error that names the rank."""
    point = Point(Phase.PREFILL, 3, 8, 0, 1)
    passed = {"counter_id": 3, "dp_rank": 0}

    with pytest.raises(BenchError, match="point 3: rank 0 ran it as 2 passes, not one"):
        judge(point, [RankResult(0, (passed, passed))], 1)


def test_a_batch_that_is_refused_is_a_skip() -> None:
    """RUN-11, RUN-40: A refused batch, a seed without room and a prefix that is not found are skips with
    reasons of their own, and the run goes on with the next point.
    """
    bench = rig(prefill(64), decode(64, 2), prefill(32))
    bench.driver.refuse = lambda number, batch: Refused("no room") if number in (1, 3) else None
    assert reasons(bench.run()) == [(1, "prefill_injection_failed"), (3, "decode_injection_failed")]
    assert [row.point.benchmark_id for row in bench.log.measured] == [2]

    bench = rig(prefill(64, 1, 64), prefill(32))
    bench.driver.refuse_seed = Refused("no room")
    assert reasons(bench.run()) == [(1, "fake_prefix_cache_allocation_failed")]
    assert len(bench.log.measured) == 1

    bench = rig(prefill(64, 1, 64))
    bench.driver.refuse = lambda number, batch: Refused("0 tokens", cache_missed=True)
    assert reasons(bench.run()) == [(1, "fake_prefix_cache_validation_failed")]
    assert bench.driver.order.count("reset") == 2  # what was seeded goes, and at the end all


def test_a_lost_prefix_is_computed_again_once() -> None:
    """RUN-12: A real prefix that is not found is computed again, from nothing; found then, the point is
    measured, and skipped if it is lost again.
    """
    settings = RunSettings(real_seed=True, warmup_iterations=0)
    missed = Refused("lost", cache_missed=True)
    bench = rig(prefill(64, 1, 64), settings=settings)
    bench.driver.refuse = lambda number, batch: missed if number == 3 else None
    log = bench.run()
    kinds = [record.kind.value for record in log.warmups.ledger().records]
    assert kinds == ["real_prefix_seed", "real_prefix_shape"] * 2
    assert len(log.measured) == 1

    bench = rig(prefill(64, 1, 64), settings=settings)
    bench.driver.refuse = lambda number, batch: missed if number in (3, 6) else None
    assert reasons(bench.run()) == [(1, "real_seed_cache_validation_failed")]


@pytest.mark.parametrize(
    ("number", "reason", "status"),
    [
        (1, "real_seed_injection_failed", [("real_prefix_seed", "failed")]),
        (
            2,
            "real_seed_warm_injection_failed",
            [("real_prefix_seed", "completed"), ("real_prefix_shape", "failed")],
        ),
    ],
)
def test_a_shot_that_fails_is_a_skip_with_a_record(
    number: int, reason: str, status: list[tuple[str, str]]
) -> None:
    """RUN-12, RUN-50: Each of the unbooked shots that the engine refuses is a skip of its own, and its record
    says that it failed, and why.
    """
    bench = rig(prefill(64, 1, 64), settings=RunSettings(real_seed=True, warmup_iterations=0))
    bench.driver.refuse = lambda count, batch: Refused("full") if count == number else None
    log = bench.run()
    records = log.warmups.ledger().records

    assert reasons(log) == [(1, reason)]
    assert [(record.kind.value, record.status.value) for record in records] == status
    assert records[-1].validation.reason == "full"


def test_a_replica_that_fails_spoils_nothing() -> None:
    """RUN-42, PIT-14: A replica whose shape is wrong has a failed validation; one that was never injected has
    none; and there is no skip in either case.
    """
    log = Rig(points=[prefill(40)], settings=BARE, tamper=lambda m: scheduled(m, sum_prefill_tokens=39)).run()
    (record,) = log.warmups.ledger().records
    assert (record.status.value, record.validation.status.value) == ("failed", "failed")
    assert record.validation.reason == "measured_prefill_tokens_mismatch"
    assert record.validation.failed_dp_rank == 0
    assert reasons(log) == [(1, "measured_prefill_tokens_mismatch")]

    bench = Rig(points=[prefill(40)], settings=BARE)
    bench.driver.refuse = lambda number, batch: Refused("full") if number == 1 else None
    log = bench.run()
    (record,) = log.warmups.ledger().records
    assert (record.status.value, record.validation.status.value) == ("failed", "not_performed")
    assert (record.forward_index_start, record.observed_forward_count) == (None, 0)
    assert log.skipped == []
    assert len(log.measured) == 1


def test_an_explicit_point_has_to_be_measured() -> None:
    """RUN-43: A point that a file asks for and that is skipped ends the run, and says which and why."""
    bench = rig(prefill(64), settings=RunSettings(warmup_iterations=0, explicit=True))
    bench.driver.refuse = lambda number, batch: Refused("full")

    with pytest.raises(BenchError, match="points file asks for, was not measured") as caught:
        bench.run()
    assert "prefill_injection_failed (full)" in str(caught.value)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_point_that_is_late_is_skipped_and_its_output_is_nobodys(asynchronous: bool) -> None:
    """RUN-01, RUN-44: A pass that takes longer than the deadline gives a skip; what comes of it later is not
    taken for the next point's, which is measured as always.
    """
    bench = rig(decode(64, 2), decode(32, 2), async_scheduling=asynchronous)
    original, slow = bench.engine.costs.of, [20.0]

    def of(step: Any) -> Any:
        seconds, dispatch = original(step)
        return seconds + (slow.pop() if slow else 0.0), dispatch

    bench.engine.costs.of = of  # type: ignore[method-assign]
    log = bench.run()

    assert reasons(log) == [(1, "measured_decode_context_mismatch")]  # its admission came, and nothing else
    assert [row.point.benchmark_id for row in log.measured] == [2]
    assert log.measured[0].wall_time < 0.1


def test_what_the_engine_never_starts_is_given_up() -> None:
    """RUN-45: A prefill that is not scheduled for ten seconds is skipped and aborted, a warm-up fails; the
    run ends in both cases.
    """
    bench = rig(prefill(64), settings=RunSettings(admission_seconds=10.0))
    bench.driver.hang = True
    log = bench.run()
    (record,) = log.warmups.ledger().records

    assert reasons(log) == [(1, "prefill_injection_failed")]
    assert (record.kind.value, record.status.value) == ("global", "failed")
    assert record.validation.reason == "the engine did not run it in time"
    assert sum(bench.driver.released, ()) == ("hanging-1", "hanging-2")
    assert log.elapsed_seconds == pytest.approx(20.0, abs=0.1)


def test_nothing_is_injected_while_blocks_are_fenced() -> None:
    """RUN-22, PIT-31: A decode waits until every released block is free."""
    bench = rig(decode(64, 2))
    bench.driver.unsettled = 3
    bench.run()

    assert bench.driver.order[:4] == ["unsettled", "unsettled", "unsettled", "inject"]


def test_time_is_up_between_points() -> None:
    """RUN-46: With no time at all the first point runs and no other begins; the ids are 1 … k and the run is
    stopped, not failed. Time that is up after the last point stops nothing.
    """
    settings = RunSettings(warmup_iterations=0, timeout_seconds=0.0)
    log = rig(prefill(64), prefill(32), decode(64), settings=settings).run()
    assert [row.point.benchmark_id for row in log.measured] == [1]
    assert (log.stopped, log.error) == (True, None)

    log = rig(prefill(64), settings=settings).run()
    assert (len(log.measured), log.stopped) == (1, False)


def test_a_run_may_be_asked_to_end() -> None:
    """RUN-48: Asked between two points it ends before the next one, with what it has; asked before the first
    result it says that there is nothing to keep.
    """
    bench = rig(prefill(64), prefill(32), decode(64))
    answers: list[bool] = []
    release = bench.driver.release

    def released(ids: tuple[str, ...]) -> None:
        answers.append(bench.session.stop())
        release(ids)

    assert bench.session.stop() is False
    bench.driver.release = released  # type: ignore[method-assign]
    log = bench.run()

    assert answers[-1] is True
    assert [row.point.benchmark_id for row in log.measured] == [1]
    assert (log.stopped, log.error) == (True, None)


def test_any_rank_may_stop_all() -> None:
    """RUN-46: A decision to stop before the second point stops this rank too."""
    bench = rig(prefill(64), prefill(32))
    bench.group.stop_at = 2
    log = bench.run()

    assert [row.point.benchmark_id for row in log.measured] == [1]
    assert log.stopped


def test_a_cache_that_cannot_be_cleared_is_a_leak() -> None:
    """RUN-02, RUN-47: Blocks that are still in use at the end are an error: serving would find them."""
    bench = rig(prefill(64))
    bench.driver.clear = False

    with pytest.raises(EngineError, match="cannot be cleared"):
        bench.run()
    assert len(bench.log.measured) == 1
    assert "EngineError" in (bench.log.error or "")


def test_an_error_leaves_nothing_behind() -> None:
    """RUN-04, RUN-47: A driver that fails in the middle of a point ends the run: its requests are aborted,
    the open record has failed, the clock has stopped, and the session takes part in nothing any more.
    """
    bench = Rig(points=[decode(64, 16)], settings=BARE, max_num_seqs=16)

    def broken(ids: tuple[str, ...]) -> Any:
        raise EngineError("lost the device")

    bench.driver.steady = broken  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="lost the device"):
        bench.run()
    (record,) = bench.log.warmups.ledger().records

    assert bench.log.error == "EngineError: lost the device"
    assert bench.engine.scheduler.unfinished == 0
    assert bench.engine.scheduler.kv.used_blocks == 0
    assert (record.kind.value, record.status.value) == ("eager_shape", "failed")
    assert record.forward_index_end is not None
    assert bench.log.elapsed_seconds is not None
    bench.session.abort(RuntimeError("again"))
    assert bench.log.error == "EngineError: lost the device"


def test_a_giant_made_up_context_may_be_one_short() -> None:
    """RUN-41, PIT-33, PIT-34: From the threshold on, a steady pass that read one token a request less is
    recorded at what it read; below it, without the mark of a steady step, or where ranks differ, it is not.
    """
    point = Point(Phase.DECODE, 1, 0, 1000, 4, sample_reasons=("kvwarm_fake_fallback",))
    read = {"num_decode_requests": 4, "num_prefill_requests": 0, "sum_prefill_tokens": 0}
    short = {
        "counter_id": 1,
        "dp_rank": 0,
        "kvwarm_steady_sample": True,
        "scheduled_requests": {**read, "sum_decode_kv_tokens": 996},
    }
    verdict = judge(point, [RankResult(0, (short,))], 1000)
    assert (verdict.skip, verdict.point.total_kv_read_tokens) == (None, 996)
    assert verdict.point.sample_reasons == ("kvwarm_fake_fallback", "giant_fake_off_by_batch")

    unmarked = {key: value for key, value in short.items() if key != "kvwarm_steady_sample"}
    assert judge(point, [RankResult(0, (short,))], 1001).skip is SkipReason.DECODE_CONTEXT
    assert judge(point, [RankResult(0, (unmarked,))], 1000).skip is SkipReason.DECODE_CONTEXT
    plain = msgspec.structs.replace(point, sample_reasons=())
    assert judge(plain, [RankResult(0, (short,))], 1000).skip is SkipReason.DECODE_CONTEXT
    whole = {**short, "dp_rank": 1, "scheduled_requests": {**read, "sum_decode_kv_tokens": 1000}}
    verdict = judge(point, [RankResult(0, (short,)), RankResult(1, (whole,))], 1000)
    assert verdict.skip is SkipReason.GIANT_COORDINATE


def test_a_warm_up_fits_the_engine() -> None:
    """RUN-03: A short model, or a small pool, gets a shorter prompt; one without room a failed record."""
    for limits, lengths in (
        ({"max_model_len": 100}, [95]),
        ({"num_blocks": 6, "max_model_len": 96}, [91]),
        ({}, [256]),
    ):
        log = rig(prefill(16), settings=RunSettings(), **limits).run()
        (record,) = log.warmups.ledger().records
        assert record.requested_shape == {"prompt_lengths": lengths, "max_tokens": 5}
        assert record.status.value == "completed"

    log = rig(prefill(2), settings=RunSettings(warmup_iterations=30), max_model_len=30).run()
    (record,) = log.warmups.ledger().records
    assert (record.status.value, record.validation.reason) == ("failed", "no prompt fits this engine")
    assert len(log.measured) == 1
