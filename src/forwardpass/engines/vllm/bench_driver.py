"""Knows the benchmark's verbs on vLLM's scheduler: requests come and go by the scheduler's own calls.

Two things are done past it. A prefix is put into the cache by allocating and freeing it, and decodes are put
among the requests that run, because the scheduler would compute their prompts first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from forwardpass.bench.driver import Admitted, Batch, Refused, SyntheticRequest
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout
from forwardpass.bench.points import Phase
from forwardpass.engines.vllm import compat
from forwardpass.engines.vllm.bench_layout import capacity_of, first_chunk_of, layout_of, looks_up_per_group
from forwardpass.engines.vllm.bench_steps import HandMade, Listed, continued, listed_anew

__all__ = ["VllmDriver"]

FOREVER = 100_000
"""Output tokens of a decode: it is aborted long before."""


class VllmDriver:
    """A :class:`~forwardpass.bench.driver.BenchDriver` on one scheduler. Outputs are
    :class:`~forwardpass.engines.vllm.bench_steps.HandMade`.
    """

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._kv = scheduler.kv_cache_manager
        self._names = compat.bench_names()
        self._hasher = compat.block_hasher(scheduler)
        self._number = 0

    # --- what it is --------------------------------------------------------------------------------------

    def layout(self) -> EngineLayout:
        """Return what is the same on every rank of this engine."""
        return layout_of(self._scheduler)

    def capacity(self) -> CapacityEnvelope:
        """Return what this rank can hold now."""
        return capacity_of(self._scheduler)

    def first_chunk(self, prompt_tokens: int, cached_tokens: int) -> int:
        """Return how many tokens of a prompt vLLM would schedule at once."""
        return first_chunk_of(self._scheduler, prompt_tokens, cached_tokens)

    # --- requests ----------------------------------------------------------------------------------------

    def seed_prefixes(self, batch: Batch) -> Refused | None:
        """Let blocks with the hashes of these prompts be found, and hold none of them."""
        taken: list[Any] = []
        refused = None
        for synthetic in batch.requests:
            request = self._request(synthetic, 1)
            blocks = self._kv.allocate_slots(
                request,
                len(synthetic.token_ids),
                full_sequence_must_fit=True,
                has_scheduled_reqs=bool(taken),  # the watermark counts from the second on
            )
            if blocks is None:
                refused = Refused(self._short(f"the prefix of slot {synthetic.slot}"))
                break
            taken.append(request)
        for request in reversed(taken):
            self._kv.free(request)
        self._kv.new_step_starts()  # what was cached in a step is not found in it
        return refused

    def inject(self, batch: Batch) -> Admitted | Refused:
        """Take a batch, or nothing of it."""
        return self._decodes(batch) if batch.phase is Phase.DECODE else self._prefills(batch)

    def _prefills(self, batch: Batch) -> Admitted | Refused:
        requests = []
        for synthetic in batch.requests:
            request = self._request(synthetic, synthetic.max_tokens)
            if synthetic.cached_tokens and (found := self._cached(request)) != synthetic.cached_tokens:
                why = f"slot {synthetic.slot}: {found} tokens are cached, expected {synthetic.cached_tokens}"
                return Refused(why, cache_missed=True)
            requests.append(request)
        for request in requests:
            self._scheduler.add_request(request)
        return Admitted(tuple(request.request_id for request in requests))

    def _decodes(self, batch: Batch) -> Admitted | Refused:
        scheduler = self._scheduler
        running, most = len(scheduler.running), scheduler.max_num_running_reqs
        if running + len(batch.requests) > most:
            return Refused(f"{len(batch.requests)} requests beside {running}, {most} may run")
        listed: list[Listed] = []
        for synthetic in batch.requests:
            request = self._request(synthetic, FOREVER)
            blocks = self._kv.allocate_slots(
                request,
                len(synthetic.token_ids),
                delay_cache_blocks=True,
                has_scheduled_reqs=True,
            )
            if blocks is None:
                for each in reversed(listed):
                    self._kv.free(each.request)
                return Refused(self._short(f"slot {synthetic.slot}"))
            listed.append(Listed(request, blocks.get_block_ids()))
        for each in listed:
            self._run(each.request)
        return Admitted(tuple(each.request.request_id for each in listed), listed_anew(listed))

    def _run(self, request: Any) -> None:
        """Put ``request`` among those that run, as if all of its prompt but the last token were computed."""
        request.num_computed_tokens = request.num_tokens - 1
        request.status = self._names.RequestStatus.RUNNING
        # Now, or vLLM would do it, in Python, in the step that is measured.
        self._kv.cache_blocks(request, request.num_computed_tokens)
        self._scheduler.requests[request.request_id] = request
        self._scheduler.running.append(request)

    def steady(self, ids: tuple[str, ...]) -> HandMade | None:
        """Return what decodes each of ``ids`` once more, or ``None`` if a block is missing."""
        listed: list[Listed] = []
        for request in self._alive(ids):
            blocks = self._kv.allocate_slots(
                request,
                1,
                num_lookahead_tokens=self._scheduler.num_lookahead_tokens,
                delay_cache_blocks=True,
            )
            if blocks is None:
                return None
            listed.append(Listed(request, blocks.get_block_ids(allow_none=True)))
        return continued(listed)

    def empty(self) -> HandMade:
        """Return what runs nothing."""
        return HandMade()

    def alive(self, ids: tuple[str, ...]) -> int:
        """Return how many of ``ids`` the scheduler still has."""
        return len(self._alive(ids))

    def release(self, ids: tuple[str, ...]) -> None:
        """Abort those of ``ids`` that are left: connectors and workers are told as of any other abort."""
        left = [request.request_id for request in self._alive(ids)]
        if left:
            self._scheduler.finish_requests(left, self._names.RequestStatus.FINISHED_ABORTED)

    def settled(self) -> bool:
        """Return whether no step that still runs can touch a released block."""
        return not self._scheduler.deferred_frees

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; ``False`` if blocks are in use."""
        return bool(self._scheduler.reset_prefix_cache())

    # --- how ---------------------------------------------------------------------------------------------

    def _alive(self, ids: Iterable[str]) -> Sequence[Any]:
        requests = self._scheduler.requests
        return [requests[each] for each in ids if each in requests]

    def _request(self, synthetic: SyntheticRequest, max_tokens: int) -> Any:
        self._number += 1
        request_id = f"__bench_{self._number}"
        return self._names.Request(
            request_id=request_id,
            prompt_token_ids=list(synthetic.token_ids),
            sampling_params=self._names.SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, temperature=0.0
            ),
            pooling_params=None,
            cache_salt=synthetic.cache_salt or request_id,
            block_hasher=self._hasher,
        )

    def _cached(self, request: Any) -> int:
        """Return how many tokens of a prompt would be found, without counting the look-up as one."""
        coordinator, longest = self._kv.coordinator, request.num_tokens - 1
        if looks_up_per_group(self._scheduler):
            return int(max(coordinator.find_longest_cache_hit_per_group(request.block_hashes, longest)[1]))
        return int(coordinator.find_longest_cache_hit(request.block_hashes, longest)[1])

    def _short(self, of: str) -> str:
        return f"{of}: {self._kv.block_pool.get_num_free_blocks()} blocks are free, which is not enough"
