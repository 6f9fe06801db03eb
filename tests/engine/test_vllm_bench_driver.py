"""The benchmark's verbs on vLLM: its real scheduler keeps every promise of the seam."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from bench_rigs import BareRig

from forwardpass.bench.driver import Admitted, Batch, SyntheticRequest
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
