"""Whole runs on the simulated engine: what is measured, how, and what is written down."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from rig import FEW, GRAPH, RUN_ID, Rig, decode, prefill

from forwardpass.bench.context import RunSettings
from forwardpass.bench.evidence import Basis, Observed
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.limits import GraphSettings, KvGroup
from forwardpass.bench.partition import values
from forwardpass.bench.points import Phase
from forwardpass.bench.runlog import Measured
from forwardpass.bench.samples import GIANT_MEDIAN_OF, STEADY_SAMPLE

MODES = [
    pytest.param(asynchronous, real, drop, id=f"{'async' if asynchronous else 'sync'}-{kind}{'-drop' * drop}")
    for asynchronous in (False, True)
    for real, kind in ((False, "fake"), (True, "real"))
    for drop in (False, True)
]


def captured(*sizes: int) -> GraphSettings:
    """Return the graphs of an engine that captured ``sizes``."""
    return msgspec.structs.replace(GRAPH, capture_sizes=sizes)


def evidence(row: Measured) -> Any:
    """Return the evidence of the pass that this rank retained."""
    return row.own(0)["benchmark_measurement"]


def estimate_of(row: Measured) -> Any:
    return evidence(row)["estimate"]


def expected(row: Measured) -> Any:
    return evidence(row)["expected_internal_samples"]


def prepared(row: Measured) -> Any:
    return evidence(row)["preparation"]


@pytest.mark.parametrize(("asynchronous", "real", "drop"), MODES)
def test_every_point_of_a_grid_is_measured(asynchronous: bool, real: bool, drop: bool) -> None:
    """RUN-02, RUN-10, RUN-11, RUN-12, RUN-20, RUN-31, RUN-33: With one step in flight or two, prefixes made
    up or computed, and a drafter that drops a block or none, every point of a grid is measured once, at its
    own coordinates, and nothing of it is left in the engine.
    """
    rig = Rig(
        settings=RunSettings(real_seed=real),
        async_scheduling=asynchronous,
        drop_last_hit=drop,
        samples=SampleLimits(12, 5, 3, 8, 8),
    )
    log = rig.run()

    assert log.grid is not None
    assert log.error is None
    assert log.skipped == []
    assert [row.point.benchmark_id for row in log.measured] == list(range(1, log.grid.expected_points + 1))
    assert log.grid.expected_points > 60
    planned = [point for point in log.grid.points if not point.is_replica]
    for row, point in zip(log.measured, planned, strict=True):
        (passed,) = row.ranks[0].fpms
        scheduled = passed["scheduled_requests"]
        assert passed["counter_id"] == point.benchmark_id
        assert passed["wall_time"] > 0
        if point.point_type is Phase.PREFILL:
            assert (
                scheduled["num_prefill_requests"],
                scheduled["sum_prefill_tokens"],
                scheduled["sum_prefill_kv_tokens"],
            ) == (point.batch_size, point.total_prefill_tokens, point.total_kv_read_tokens)
        else:
            assert (scheduled["num_decode_requests"], scheduled["sum_decode_kv_tokens"]) == (
                point.batch_size,
                row.point.total_kv_read_tokens,
            )
    assert rig.engine.scheduler.unfinished == 0
    assert rig.engine.scheduler.kv.used_blocks == 0
    assert log.next_forward == rig.engine.passes
    assert log.run_id == RUN_ID
    assert not rig.session.active


@pytest.mark.parametrize("asynchronous", [False, True])
def test_times_are_those_of_the_costs(asynchronous: bool) -> None:
    """RUN-30, RUN-32, PIT-01: A prefill's time runs from its schedule, a steady decode's from the output
    before it; ends and starts add up to the time; and the dispatch is what the engine did, padding and all.
    """
    log = Rig(points=[prefill(40), decode(600, 5)], async_scheduling=asynchronous).run()
    first, second = log.measured
    (alone,) = first.samples
    admission, steady = second.samples

    assert (alone.basis, admission.basis, steady.basis) == (
        Basis.SCHEDULE_TO_OUTPUT,
        Basis.SCHEDULE_TO_OUTPUT,
        Basis.INTER_OUTPUT,
    )
    assert steady.start == admission.end
    for sample in (alone, admission, steady):
        assert sample.start is not None
        assert sample.end - sample.start == pytest.approx(sample.metrics.wall_time, abs=1e-9)
        assert 0.0 < sample.metrics.wall_time < 0.1
    assert steady.dispatch == Observed("FULL", 5, 8, 3)
    assert alone.dispatch == Observed("NONE", 40, 40, 0)
    assert [sample.forward_index for sample in second.samples] == [
        log.next_forward - 2,
        log.next_forward - 1,
    ]


def test_a_decode_is_measured_right_after_its_admission() -> None:
    """RUN-20, RUN-33, PIT-04, PIT-08: The engine is asked for the steady step in the step after the
    admission, with nothing in between; prompts are one token longer than what is admitted, and the retained
    pass is the steady one.
    """
    rig = Rig(points=[decode(103, 4)])
    log = rig.run()
    row = log.measured[-1]
    contexts = list(values(row.point.contexts()))

    start = rig.driver.order.index("steady")
    assert rig.driver.order[start - 1] == "inject"
    batch = rig.driver.injected[-1]
    assert [len(request.token_ids) for request in batch.requests] == contexts == [26, 26, 26, 25]
    assert row.samples[0].metrics.scheduled_requests.sum_decode_kv_tokens == 103 - 4
    assert estimate_of(row)["method"] == "last_step"
    assert row.ranks[0].fpms[0][STEADY_SAMPLE] is True
    assert row.point.sample_reasons[-1] == "kvwarm_fake_fallback"
    assert row.kv_seed_regime == "fake_fallback"


def test_a_context_below_two_tokens_is_recorded_at_what_was_read() -> None:
    """RUN-20: Requests of one token are admitted with one and measured with two; the point says so."""
    settings = RunSettings(kv_warmup=False)
    row = Rig(points=[decode(5, 4)], settings=settings).run().measured[-1]

    assert row.point.total_kv_read_tokens == 8
    assert row.point.sample_reasons[-1] == "context_clamped"
    assert row.kv_seed_regime == "legacy"


def test_a_giant_point_repeats_its_steady_step() -> None:
    """RUN-21, RUN-33: From the threshold on the steady step runs as often as asked; the first is kept with
    the upper median of all as its time. Where the model is too short for that it runs less often.
    """
    settings = RunSettings(giant_threshold=100, giant_repeats=4)
    small, large, long = (
        Rig(points=[decode(99), decode(100), decode(509)], settings=settings, max_model_len=512)
        .run()
        .measured
    )

    assert (expected(small), expected(large)) == (2, 5)
    walls = sorted(sample.metrics.wall_time for sample in large.samples[1:])
    (passed,) = large.ranks[0].fpms
    assert estimate_of(large) == {
        "method": "adjacent_upper_median",
        "raw_sample_indices": [1, 2, 3, 4],
    }
    assert (passed["wall_time"], passed[GIANT_MEDIAN_OF]) == (walls[2], 4)
    assert passed["scheduled_requests"]["sum_decode_kv_tokens"] == 100
    assert expected(long) == 1 + 2


def test_repeats_need_room() -> None:
    """RUN-21: A made-up context whose repeats would not fit runs its steady step once."""
    settings = RunSettings(giant_threshold=10, giant_repeats=16)
    (row,) = (
        Rig(points=[decode(15 * 16, 16)], settings=settings, num_blocks=31, max_model_len=480).run().measured
    )

    assert expected(row) == 2


def test_prefixes_are_found_to_the_token() -> None:
    """RUN-11, PIT-22: The seeds are the prefixes that the prompts have to find, under salts that no other
    execution has.
    """
    rig = Rig(points=[prefill(20, 2, 96), prefill(20, 2, 96)], graph=captured(64))
    log = rig.run()
    (first, second) = rig.driver.seeds

    assert [len(request.token_ids) for request in first.requests] == [48, 48]
    measured = rig.driver.injected[-1].requests
    assert [request.cached_tokens for request in measured] == [48, 48]
    assert [request.token_ids[:48] for request in measured] == [each.token_ids for each in second.requests]
    salts = [request.cache_salt for seeds in (first, second) for request in seeds.requests]
    assert len(set(salts)) == 4
    assert [row.kv_seed_regime for row in log.measured] == ["fake_prefix", "fake_prefix"]
    assert log.measured[0].point.sample_reasons[-1] == "prefill_fake_prefix"


def test_real_prefixes_are_computed_once_and_used_again() -> None:
    """RUN-12, RUN-50: The first point computes its prefixes, a longer one what is missing, a shorter one
    nothing; each shape runs once before it is measured, and each of these has a record.
    """
    points = [prefill(16, 2, 64), prefill(16, 2, 96), prefill(16, 2, 32)]
    settings = RunSettings(real_seed=True, warmup_iterations=0)
    rig = Rig(points=points, settings=settings, graph=captured(16))
    log = rig.run()
    records = log.warmups.ledger().records

    assert [record.kind.value for record in records] == [
        *("real_prefix_seed", "real_prefix_shape", "real_prefix_seed", "real_prefix_shape"),
        "real_prefix_shape",
    ]
    assert [record.requested_shape["prompt_lengths"] for record in records] == [
        *([32, 32], [40, 40], [48, 48], [56, 56], [24, 24])
    ]
    assert [row.kv_seed_regime for row in log.measured] == ["real_prefix"] * 3
    assert [prepared(row)["warmup_records_before"] for row in log.measured] == [2, 4, 5]
    assert {record.status.value for record in records} == {"completed"}


def test_a_replica_leaves_a_record_and_no_result() -> None:
    """RUN-42, RUN-50, RUN-51, PIT-13: A shape without a graph runs once before its phase: a record with the
    pass that it covered and its validation, and no row. The first execution of the shape was its, and slow.
    """
    log = Rig(points=[prefill(40), prefill(40)], phases=[Phase.PREFILL]).run()
    warm_up, replica = log.warmups.ledger().records

    # two chunks, then four steps
    assert (warm_up.kind.value, warm_up.observed_forward_count) == ("global", 6)
    assert (replica.kind.value, replica.observed_forward_count) == ("eager_shape", 1)
    assert replica.requested_shape["sample_reasons"] == ("eager_warmup",)
    assert (replica.validation.status.value, replica.validation.scope) == ("passed", "attention_dp_group")
    assert replica.forward_index_start == warm_up.forward_index_end == 6
    assert replica.first_scheduled_requests == replica.last_scheduled_requests
    assert replica.first_scheduled_requests is not None
    assert replica.first_scheduled_requests["sum_prefill_tokens"] == 40
    assert len(log.measured) == 2
    assert max(row.wall_time for row in log.measured) < 0.1
    assert [prepared(row)["completed_points_before"] for row in log.measured] == [0, 1]


def test_the_order_of_a_run() -> None:
    """RUN-02, RUN-30: Each point is preceded by a decision to go on, started by all ranks together once it is
    scheduled, and ended together; cleaning up comes last.
    """
    rig = Rig(
        points=[prefill(64), decode(50)], graph=captured(1, 64), settings=RunSettings(warmup_iterations=0)
    )
    rig.run()

    assert [name for name, _ in rig.group.calls] == [
        *("boundary", "go", "exchange", "boundary", "go", "exchange", "cleanup")
    ]
    assert rig.driver.order[-1] == "reset"
    (_, first), (_, second) = [call for call in rig.group.calls if call[0] == "go"]
    assert first["sum_prefill_tokens"] == 64
    assert (second["num_decode_requests"], second["sum_decode_kv_tokens"]) == (1, 49)


def test_several_kinds_of_kv_come_out_of_one_pool() -> None:
    """RUN-04: With two more kinds of KV a grid still fits, and every block is free again at the end."""
    rig = Rig(samples=FEW)
    config = msgspec.structs.replace(
        rig.engine.driver.config, more_groups=(KvGroup(32), KvGroup(16, admission_cap=6))
    )
    rig.engine.driver.config = config
    rig.context.layout = rig.driver.layout()
    log = rig.run()

    assert log.skipped == []
    assert rig.engine.scheduler.kv.used_blocks == 0
