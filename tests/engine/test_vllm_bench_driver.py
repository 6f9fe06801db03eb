"""The benchmark's verbs on vLLM: its real scheduler keeps every promise of the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench_rigs import BareRig

from forwardpass.bench.driver import Admitted, Batch, SyntheticRequest
from forwardpass.bench.like_groups import SaidEngine, SaidGroup, SaidKvCache, SaidScheduler, groups_of
from forwardpass.bench.points import Phase
from forwardpass.testing.conformance_driver import DRIVER_CHECKS

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]

KINDS: dict[str, dict[str, Any]] = {
    "sync": {"async_scheduling": False},
    "async": {"async_scheduling": True},
    "runner V2": {"async_scheduling": True, "runner_v2": True},
    "connector": {"async_scheduling": True, "connector": True},
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
    """RUN-60: vLLM's own scheduler, driven by hand, keeps each promise, in either order, with each runner."""
    check(rig(kind))


def decodes(count: int = 2) -> Batch:
    requests = [SyntheticRequest(slot, tuple(range(1, 42))) for slot in range(count)]
    return Batch(Phase.DECODE, tuple(requests))


def test_workers_are_told_what_vllm_tells_them(rig: Callable[[str], BareRig]) -> None:
    """BVLLM-11, BVLLM-12: Every hand-made output has a connector's metadata, an empty one too; prompts and
    blocks come with the first, finished requests with the next.
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
    """RUN-22: Where vLLM frees late, the driver says so until the last step that was on its way has ended."""
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
