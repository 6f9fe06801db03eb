"""The benchmark's verbs on vLLM: its real scheduler keeps every promise of the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench_rigs import BareRig

from forwardpass.bench.driver import Admitted, Batch, Refused, SyntheticRequest
from forwardpass.bench.like_groups import SaidEngine, SaidGroup, SaidKvCache, SaidScheduler, groups_of
from forwardpass.bench.points import Phase
from forwardpass.testing.conformance_driver import DRIVER_CHECKS

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]

KINDS: dict[str, dict[str, Any]] = {
    "sync": {"async_scheduling": False},
    "async": {"async_scheduling": True},
    "runner V2": {"async_scheduling": True, "runner_v2": True},
    "connector": {"async_scheduling": True, "connector": True},
    "recurrent": {"async_scheduling": True, "recurrent": True},
}


def build(model: str, *, connector: bool = False, **options: Any) -> BareRig:
    """Return a rig; with a connector another engine's KV may come in while steps run."""
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="AsPlanned", kv_connector_module_path="kv_connector_stub", kv_role="kv_both"
    )
    return BareRig(model, kv_transfer=transfer if connector else None, **options)


@pytest.fixture(scope="module")
def rig(tiny_model: str) -> Callable[[str], BareRig]:
    """Return one rig of each kind."""
    made: dict[str, BareRig] = {}

    def of(kind: str) -> BareRig:
        if kind not in made:
            made[kind] = build(tiny_model, **KINDS[kind])
        return made[kind]

    return of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", DRIVER_CHECKS, ids=lambda check: check.__name__)
def test_bare_scheduler(rig: Callable[[str], BareRig], check: Any, kind: str) -> None:
    """RUN-60, PIT-05, PIT-18, PIT-22: vLLM's own scheduler, driven by hand, keeps each promise, in either
    order, with each runner, and with a state beside the attention. Among them: decodes that vLLM's record
    lists as new are no prefills; a seeded prefix is found in the very next step; an equal prompt is not.
    """
    check(rig(kind))


def decodes(count: int = 2) -> Batch:
    requests = [SyntheticRequest(slot, tuple(range(1, 42))) for slot in range(count)]
    return Batch(Phase.DECODE, tuple(requests))


def test_workers_are_told_what_vllm_tells_them(rig: Callable[[str], BareRig]) -> None:
    """BVLLM-11, BVLLM-12, PIT-03, PIT-04: Every hand-made output has a connector's metadata, an empty one
    too; prompts and blocks come with the first, finished requests with the next.
    """
    engine = rig("connector")
    engine.step()  # tells of what finished in other tests
    admitted = engine.driver.inject(decodes())
    assert isinstance(admitted, Admitted)
    first = engine.schedule(admitted.output)
    known = [len(new.prefill_token_ids) for new in first.scheduled_new_reqs]  # the lists grow
    engine.update(first)
    second = engine.schedule(engine.driver.steady(admitted.ids))
    engine.update(second)
    engine.driver.release(admitted.ids)
    empty = engine.schedule(engine.driver.empty())
    engine.update(empty)

    assert all(each.kv_connector_metadata is not None for each in (first, second, empty))
    assert [new.num_computed_tokens for new in first.scheduled_new_reqs] == [40, 40]
    assert known == [41, 41]
    assert all(len(blocks) == 2 for new in first.scheduled_new_reqs for blocks in new.block_ids)
    assert second.scheduled_cached_reqs.num_computed_tokens == [41, 41]
    assert second.scheduled_cached_reqs.num_output_tokens == [1, 1]
    assert second.scheduled_cached_reqs.all_token_ids == {}
    assert (first.finished_req_ids, second.finished_req_ids) == (set(), set())
    assert empty.finished_req_ids == set(admitted.ids)


def test_blocks_that_a_step_may_still_write_are_not_free(rig: Callable[[str], BareRig]) -> None:
    """RUN-22, PIT-31: Where vLLM frees late, the driver says so until the last step that was on its way has
    ended.
    """
    engine = rig("connector")
    free = engine.driver.capacity().usable_blocks_without_watermark
    admitted = engine.driver.inject(decodes())
    assert isinstance(admitted, Admitted)
    first = engine.schedule(admitted.output)
    second = engine.schedule(engine.driver.steady(admitted.ids))  # both are in flight
    engine.driver.release(admitted.ids)

    seen = [engine.driver.settled()]
    for output in (first, second):
        engine.update(output)
        seen.append(engine.driver.settled())
    assert seen == [False, False, True]
    engine.step(engine.driver.empty())
    assert engine.driver.reset_prefix_cache()
    assert engine.driver.capacity().usable_blocks_without_watermark == free


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("longest", [300, 8192])
def test_an_artifact_tells_how_many_blocks_a_window_holds(asynchronous: bool, longest: int) -> None:
    """GRID-33: What a planner makes of a window in an artifact is what vLLM itself does."""
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, SlidingWindowSpec

    common: Any = {"block_size": 16, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
    specs = [
        SlidingWindowSpec(**common, sliding_window=100),
        ChunkedLocalAttentionSpec(**common, attention_chunk_size=96),
    ]
    passes = 2 if asynchronous else 1
    ask = [spec.max_admission_blocks_per_request for spec in specs]
    said = (
        SaidGroup("SlidingWindowSpec", 16, sliding_window=100),
        SaidGroup("ChunkedLocalAttentionSpec", 16, attention_chunk_size=96),
    )
    engine = SaidEngine(SaidKvCache(groups=said), SaidScheduler(512, asynchronous))
    groups = groups_of(engine, block_size=16, max_model_len=longest, pass_tokens=1)

    assert [group.admission_cap for group in groups] == [each(passes * 512, longest) for each in ask]


def test_full_blocks_are_hashed_at_injection(rig: Callable[[str], BareRig]) -> None:
    """PIT-09: A decode's full blocks are in the cache before it first runs, so that the steps that are
    measured have none to hash.
    """
    engine = rig("async")
    (manager,) = engine.scheduler.kv_cache_manager.coordinator.single_type_managers
    admitted = engine.driver.inject(decodes())
    assert isinstance(admitted, Admitted)

    assert [manager.num_cached_block[each] for each in admitted.ids] == [40 // manager.block_size] * 2
    engine.step(admitted.output)
    engine.step(engine.driver.steady(admitted.ids))
    assert [manager.num_cached_block[each] for each in admitted.ids] == [40 // manager.block_size] * 2
    engine.driver.release(admitted.ids)
    assert engine.driver.reset_prefix_cache()


def test_a_look_up_of_ours_is_not_counted(rig: Callable[[str], BareRig]) -> None:
    """PIT-19: Whether a prefix is there is asked without an entry in vLLM's statistics; what is then really
    scheduled has its entry.
    """
    engine = rig("sync")
    statistics = engine.scheduler.kv_cache_manager.make_prefix_cache_stats
    unit = engine.driver.layout().hash_block_size
    prompt = tuple(range(1, 2 * unit + 9))
    seed = SyntheticRequest(0, prompt[: 2 * unit], cache_salt="seeded")
    found = SyntheticRequest(0, prompt, cache_salt="seeded", cached_tokens=2 * unit)
    statistics()

    assert engine.driver.seed_prefixes(Batch(Phase.PREFILL, (seed,))) is None
    wrong = SyntheticRequest(0, prompt, cache_salt="other", cached_tokens=2 * unit)
    assert isinstance(engine.driver.inject(Batch(Phase.PREFILL, (wrong,))), Refused)
    assert isinstance(engine.driver.inject(Batch(Phase.PREFILL, (found,))), Admitted)
    assert statistics().requests == 0
    scheduled = engine.schedule()
    assert statistics().requests == 1
    engine.update(scheduled)
    assert engine.driver.reset_prefix_cache()


@pytest.mark.parametrize(
    ("new", "at_once"), [(1, 1), (31, 31), (32, None), (33, 32), (64, None), (65, 64), (100, 96)]
)
@pytest.mark.parametrize("cached", [0, 64])
def test_a_prompt_is_cut_where_vllm_says(
    rig: Callable[[str], BareRig], new: int, at_once: int | None, cached: int
) -> None:
    """PIT-28, GRID-22: Of a prompt of a model with a recurrent state vLLM schedules at once what the driver
    said that it would: less than the whole where a state has to be kept in the middle. Where releases
    differ there is no number here.
    """
    engine, salt = rig("recurrent"), f"{cached} + {new}"
    prompt = tuple(range(1, cached + new + 1))
    if cached:
        seed = SyntheticRequest(0, prompt[:cached], cache_salt=salt)
        assert engine.driver.seed_prefixes(Batch(Phase.PREFILL, (seed,))) is None
    request = SyntheticRequest(0, prompt, cache_salt=salt, cached_tokens=cached)
    said = engine.driver.first_chunk(len(prompt), cached)
    admitted = engine.driver.inject(Batch(Phase.PREFILL, (request,)))
    assert isinstance(admitted, Admitted), admitted
    ran = engine.step()
    engine.driver.release(admitted.ids)
    engine.step()

    assert engine.driver.reset_prefix_cache()
    assert ran is not None
    assert (ran.sum_prefill_tokens, ran.sum_prefill_kv_tokens) == (said, cached)
    assert said == (at_once or said)
