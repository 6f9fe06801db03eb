"""Knows which requests run next: continuous batching over a bounded KV cache.

The rules are those of vLLM's scheduler: running requests first, in order of arrival; then waiting ones
while the token budget, the request limit and the free blocks last. When a running request needs a block
and none is free, the last-arrived one gives up all of its own and is computed again later.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.kv_cache import KvCache
from forwardpass.engines.mock.request import Request, Status
from forwardpass.engines.mock.step import Chunk, Step
from forwardpass.engines.mock.waiting import WaitingQueue
from forwardpass.errors import EngineError

__all__ = ["Scheduler", "Totals"]


class Totals(Struct):
    """What a rank did since its start.

    Every position that was ever needed is covered once, and again on each resumption::

        prefill_tokens + cached_tokens + decode_tokens = needed positions + recomputed_tokens
    """

    submitted: int = 0
    finished: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    """Computed for prefills, recomputation included."""
    cached_tokens: int = 0
    """Found in the prefix cache on admission."""
    decode_tokens: int = 0
    """Decode rows, one token each."""
    output_tokens: int = 0
    """Tokens that arrived."""
    recomputed_tokens: int = 0
    """Tokens that a preemption threw away and that were needed again on resumption."""


class Scheduler:
    """The queues and blocks of one rank. Calls to :meth:`schedule` may run one ahead of :meth:`update`."""

    def __init__(self, config: MockConfig, totals: Totals | None = None) -> None:
        self.waiting = WaitingQueue()
        self.running: list[Request] = []
        self.kv = KvCache(config.num_blocks, config.block_tokens, prefix_caching=config.prefix_caching)
        self.totals = totals or Totals()
        self._config = config
        self.token_budget = config.max_num_batched_tokens
        """Tokens of the next passes."""
        self._unreported = False

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.waiting) + len(self.running)

    @property
    def has_work(self) -> bool:
        """Whether a step is wanted: requests are unfinished, or some finished since the last one."""
        return bool(self.running or self.waiting or self._unreported)

    def submit(self, request: Request) -> None:
        """Queue a new request. Raises :class:`EngineError` if the engine could never finish it."""
        tokens = request.prompt_tokens + request.output_tokens
        if request.prompt_tokens < 1 or request.output_tokens < 1 or tokens > self._config.max_model_len:
            raise EngineError(
                f"request of {request.prompt_tokens} + {request.output_tokens} tokens; "
                f"the engine takes 1 + 1 to {self._config.max_model_len}"
            )
        self.totals.submitted += 1
        self.waiting.append(request)

    def schedule(self) -> Step:
        """Decide the next pass, and count its tokens as computed. Empty if nothing can run now."""
        step = Step()
        budget = self._continue_running(step, self.token_budget)
        if not step.preempted:  # who had to make room must not lose it to a newcomer
            self._admit_waiting(step, budget)
        self._unreported = False
        self.totals.decode_tokens += len(step.contexts)
        return step

    def cached_blocks(self, request: Request) -> list[int]:
        """Return the blocks of the longest prefix of ``request`` that is found again."""
        hits = self.kv.match(request.cacheable_keys(self.kv.block_tokens))
        return hits[:-1] if self._config.drop_last_hit else hits

    def admit_decoding(self, request: Request, context: int, blocks: list[int]) -> None:
        """Let ``request`` run as if ``context`` of its tokens had been computed, in ``blocks``."""
        request.blocks, request.computed, request.goal = blocks, context, context
        request.status = Status.RUNNING
        self.totals.submitted += 1
        self.running.append(request)

    def decode_step(self, requests: Iterable[Request]) -> Step | None:
        """Return the step that decodes each of ``requests`` once; ``None``, and nothing changed, if blocks
        for that are missing.
        """
        kv, members = self.kv, list(requests)
        short = [request for request in members if request.computed >= len(request.blocks) * kv.block_tokens]
        if len(short) > kv.free_blocks:
            return None
        for request in short:
            request.blocks += kv.take(1)
        step = Step()
        for request in members:
            self._add(step, request, 1)
        self.totals.decode_tokens += len(step.contexts)
        return step

    def abort(self, request: Request) -> None:
        """Drop an unfinished request; tokens that are still on their way to it are lost."""
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        self.kv.release(request.blocks)
        request.blocks, request.status = [], Status.FINISHED
        self._unreported = True

    def update(self, step: Step) -> None:
        """Let the outputs of a pass arrive; requests that are complete leave."""
        finished = False
        for request in step.sampling:
            request.pending -= 1
            if request.status is Status.FINISHED:  # aborted meanwhile
                continue
            if request.status is Status.PREEMPTED:
                self.waiting.grow(request)
            else:
                request.known += 1
            if request.known > request.final_tokens:
                self._finish(request)
                finished = True
        self.totals.output_tokens += len(step.sampling)
        if finished:
            self.running = [request for request in self.running if request.status is Status.RUNNING]

    def _continue_running(self, step: Step, budget: int) -> int:
        # The inner loop of a simulation: what the common case, a decode inside its block, does not need
        # is tested before it is called.
        running, block_tokens, index = self.running, self.kv.block_tokens, 0
        while budget > 0 and index < len(running):
            request = running[index]
            index += 1
            tokens = request.remaining
            if not tokens:
                continue
            tokens = min(tokens, budget)
            crowded = request.computed + tokens > len(request.blocks) * block_tokens
            if crowded and not self._make_room(request, tokens, step):
                break  # it was the last one and gave up its own blocks
            self._add(step, request, tokens)
            budget -= tokens
        return budget

    def _admit_waiting(self, step: Step, budget: int) -> None:
        kv, block_tokens = self.kv, self.kv.block_tokens
        while budget > 0 and self.waiting and len(self.running) < self._config.max_num_seqs:
            request = self.waiting.first()
            hits = self.cached_blocks(request)
            cached = len(hits) * block_tokens
            tokens = min(request.known - cached, budget)
            fresh = kv.blocks_for(cached + tokens) - len(hits)
            if fresh + kv.unheld(hits) > kv.free_blocks:
                break
            self.waiting.pop()
            kv.share(hits)
            request.blocks = hits + kv.take(fresh)
            request.computed, request.goal = cached, request.known
            request.status = Status.RUNNING
            self.running.append(request)
            self.totals.cached_tokens += cached
            self.totals.recomputed_tokens += request.lost
            self._add(step, request, tokens)
            budget -= tokens

    def _make_room(self, request: Request, tokens: int, step: Step) -> bool:
        """Give ``request`` the blocks for ``tokens`` more; say whether it is still running."""
        kv = self.kv
        fresh = kv.blocks_for(request.computed + tokens) - len(request.blocks)
        while fresh > kv.free_blocks:
            victim = self.running.pop()
            self._preempt(victim)
            step.preempted += 1
            if victim is request:
                return False
        if fresh > 0:
            request.blocks += kv.take(fresh)
        return True

    def _preempt(self, request: Request) -> None:
        self.kv.release(request.blocks)
        self.totals.preemptions += 1
        request.blocks, request.lost, request.computed = [], request.computed, 0
        request.status = Status.PREEMPTED
        self.waiting.put_back(request)

    def _add(self, step: Step, request: Request, tokens: int) -> None:
        before = request.computed
        after = request.computed = before + tokens
        if before < request.goal:
            step.chunks.append(Chunk(tokens, before, request.goal))
            self.totals.prefill_tokens += tokens
        else:
            step.contexts.append(before)
        if after >= request.goal:
            request.pending += 1
            step.sampling.append(request)
        block_tokens = self.kv.block_tokens
        for index in range(before // block_tokens, after // block_tokens):  # blocks that became full
            self.kv.remember(request.blocks[index], request.block_key(index, block_tokens))

    def _finish(self, request: Request) -> None:
        if request.status is Status.PREEMPTED:
            self.waiting.remove(request)
        self.kv.release(request.blocks)
        request.blocks = []
        request.status = Status.FINISHED
        self.totals.finished += 1
        self._unreported = True
