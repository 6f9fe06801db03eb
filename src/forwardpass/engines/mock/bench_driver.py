"""Knows the benchmark's verbs on the simulated engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import Struct

from forwardpass.bench.driver import Admitted, Batch, Refused, SyntheticRequest
from forwardpass.bench.footprint import footprint
from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphSettings, KvGroup
from forwardpass.bench.points import Phase
from forwardpass.engines.mock.bench_request import FOREVER, ContentRequest, block_keys
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.request import Request, Status
from forwardpass.engines.mock.scheduler import Scheduler
from forwardpass.engines.mock.step import Step

__all__ = ["MockBenchConfig", "MockDriver"]


class MockBenchConfig(Struct, frozen=True):
    """A simulated engine as a benchmark sees it."""

    engine: MockConfig = MockConfig(max_model_len=4096, num_blocks=8192)
    graph: GraphSettings = GraphSettings()
    more_groups: tuple[KvGroup, ...] = ()
    """Kinds of KV besides full attention; their blocks come out of the same pool."""
    watermark_blocks: int = 0
    """Blocks that a batch leaves free."""


class MockDriver:
    """A :class:`~forwardpass.bench.driver.BenchDriver` on one scheduler. Outputs are its steps."""

    def __init__(self, config: MockBenchConfig, scheduler: Scheduler) -> None:
        self.config = config
        self.scheduler = scheduler
        self.in_flight: Callable[[], int] = lambda: 0
        """Says how many steps have been scheduled whose output has not arrived."""
        self.on_batch: Callable[[Batch], Refused | None] = lambda batch: None
        """Asked before a batch is taken; says why it is not, as an engine without room would."""
        self._requests: dict[str, Request] = {}
        self._extra: dict[str, list[int]] = {}
        self._number = 0

    # --- what it is --------------------------------------------------------------------------------------

    def layout(self) -> EngineLayout:
        """Return what is the same on every rank of this engine."""
        engine = self.config.engine
        return EngineLayout(
            groups=(KvGroup(engine.block_tokens), *self.config.more_groups),
            block_size=engine.block_tokens,
            hash_block_size=engine.block_tokens,
            prefix_caching=engine.prefix_caching,
            graph=self.config.graph,
            eagle=engine.drop_last_hit,
        )

    def capacity(self) -> CapacityEnvelope:
        """Return what this rank can hold now."""
        engine, free = self.config.engine, self.scheduler.kv.free_blocks
        return CapacityEnvelope(
            max_model_len=engine.max_model_len,
            max_num_scheduled_tokens=engine.max_num_batched_tokens,
            max_num_running_reqs=engine.max_num_seqs,
            usable_blocks_without_watermark=free,
            usable_blocks_with_watermark=max(0, free - self.config.watermark_blocks),
        )

    def first_chunk(self, prompt_tokens: int, cached_tokens: int) -> int:
        """Return how many tokens of a prompt are scheduled at once: all, within the budget."""
        return min(prompt_tokens - cached_tokens, self.config.engine.max_num_batched_tokens)

    # --- requests ----------------------------------------------------------------------------------------

    def seed_prefixes(self, batch: Batch) -> Refused | None:
        """Let blocks with the keys of these prompts be found, and hold none of them."""
        kv, taken = self.scheduler.kv, []
        refused: Refused | None = None
        for request in batch.requests:
            need = kv.blocks_for(len(request.token_ids))
            if need > kv.free_blocks - self.config.watermark_blocks:
                refused = Refused(f"{need} blocks for a prefix, {kv.free_blocks} are free")
                break
            blocks = kv.take(need)
            taken.append(blocks)
            for block, key in zip(blocks, self._keys(request), strict=False):
                kv.remember(block, key)
        for blocks in reversed(taken):
            kv.release(blocks)
        return refused

    def inject(self, batch: Batch) -> Admitted | Refused:
        """Take a batch, or nothing of it."""
        refused = self.on_batch(batch)
        if refused is not None:
            return refused
        return self._decodes(batch) if batch.phase is Phase.DECODE else self._prefills(batch)

    def _prefills(self, batch: Batch) -> Admitted | Refused:
        found: dict[str, ContentRequest] = {}
        for synthetic in batch.requests:
            request = self._new(synthetic)
            cached = len(self.scheduler.cached_blocks(request)) * self.scheduler.kv.block_tokens
            if synthetic.cached_tokens and cached != synthetic.cached_tokens:
                why = f"slot {synthetic.slot}: {cached} tokens are cached, expected {synthetic.cached_tokens}"
                return Refused(why, cache_missed=True)
            found[self._id()] = request
        for request in found.values():
            self.scheduler.submit(request)
        self._requests |= found
        return Admitted(tuple(found))

    def _decodes(self, batch: Batch) -> Admitted | Refused:
        scheduler, kv = self.scheduler, self.scheduler.kv
        contexts = [len(request.token_ids) - 1 for request in batch.requests]
        room = kv.free_blocks - self.config.watermark_blocks
        need = sum(footprint(context + 1, self.layout().managers) for context in contexts)
        if need > room or len(scheduler.running) + len(contexts) > self.config.engine.max_num_seqs:
            return Refused(f"{len(contexts)} requests need {need} blocks, {room} are free")
        found: dict[str, Request] = {}
        for synthetic, context in zip(batch.requests, contexts, strict=True):
            request = self._new(synthetic, FOREVER)
            blocks = kv.take(kv.blocks_for(context + 1))
            scheduler.admit_decoding(request, context, blocks)
            identity = self._id()
            found[identity] = request
            extra = footprint(context + 1, self.config.more_groups)
            self._extra[identity] = kv.take(extra) if extra else []
        self._requests |= found
        return Admitted(tuple(found), scheduler.decode_step(found.values()))

    def steady(self, ids: tuple[str, ...]) -> Step | None:
        """Return the step that decodes each of ``ids`` once more, or ``None`` if a block is missing."""
        return self.scheduler.decode_step(self._alive(ids))

    def empty(self) -> Step:
        """Return a step that runs nothing."""
        return Step()

    def alive(self, ids: tuple[str, ...]) -> int:
        """Return how many of ``ids`` wait or run."""
        return sum(1 for _ in self._alive(ids))

    def release(self, ids: tuple[str, ...]) -> None:
        """Abort those of ``ids`` that are left."""
        for identity in ids:
            request = self._requests.pop(identity, None)
            if request is not None and request.status is not Status.FINISHED:
                self.scheduler.abort(request)
            self.scheduler.kv.release(self._extra.pop(identity, []))

    def settled(self) -> bool:
        """Return whether nothing is on its way that could still touch a released block."""
        return not self.in_flight()

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; ``False`` if blocks are in use."""
        return self.scheduler.kv.forget()

    def _alive(self, ids: Iterable[str]) -> Iterable[Request]:
        for identity in ids:
            request = self._requests.get(identity)
            if request is not None and request.status is not Status.FINISHED:
                yield request

    def _new(self, synthetic: SyntheticRequest, output_tokens: int | None = None) -> ContentRequest:
        self._number += 1
        return ContentRequest(-self._number, synthetic, self.scheduler.kv.block_tokens, output_tokens)

    def _id(self) -> str:
        return f"__bench_{self._number}"

    def _keys(self, synthetic: SyntheticRequest) -> list[int]:
        return block_keys(synthetic.cache_salt, synthetic.token_ids, self.scheduler.kv.block_tokens)
