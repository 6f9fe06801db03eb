"""Knows how each kind of point is run: generators that ask for one operation at a time and remember the rest.

A procedure reads as the sequence that it is. What it waits for is a loop, what it gives up on is a result,
and what it began is undone on every path. It ends with a :class:`Finished`; whoever asked for it settles that
with the other ranks and writes it down.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.bench import ops
from forwardpass.bench.content.identity import real_prefix_salts
from forwardpass.bench.content.prompts import prompt_evidence
from forwardpass.bench.context import RunContext
from forwardpass.bench.digest import point_key, record
from forwardpass.bench.driver import Batch, Refused, SyntheticRequest
from forwardpass.bench.evidence import NO_PROMPTS, Prompts, ValidationStatus, WarmupKind, WarmupValidation
from forwardpass.bench.footprint import footprint
from forwardpass.bench.judge import FAKE_FALLBACK
from forwardpass.bench.outcome import KvRegime, SkipReason
from forwardpass.bench.partition import values
from forwardpass.bench.points import Phase, Point
from forwardpass.bench.warmups import Warmup

__all__ = ["Finished", "Procedure", "measure", "warm_up"]

WARMUP_PROMPT_TOKENS = 256
FAKE_PREFIX = "prefill_fake_prefix"
REAL_SEED = "prefill_real_seed"
CLAMPED = "context_clamped"


class Finished(Struct, frozen=True):
    """How a point's run ended. Its samples are still the context's."""

    point: Point
    """With the reasons of its execution, at the coordinate that was really run."""
    regime: KvRegime
    skip: SkipReason | None = None
    """Why there is nothing to exchange with the other ranks."""
    ids: tuple[str, ...] = ()
    """Requests that may still be in the engine."""
    prompts: Prompts = NO_PROMPTS
    why: str = ""


Procedure = Generator[ops.Op, Any, Finished]
Steps = Generator[ops.Op, Any, Any]


def measure(context: RunContext, point: Point) -> Procedure:
    """Run ``point`` to the end of its passes."""
    return _decode(context, point) if point.point_type is Phase.DECODE else _prefill(context, point)


# --- before the first point ----------------------------------------------------------------------------


def warm_up(context: RunContext) -> Steps:
    """Run one ordinary request of some steps. A failure is written down and nothing else."""
    iterations = context.settings.warmup_iterations
    capacity = context.log.capacity
    if not iterations or capacity is None:
        return
    length = min(WARMUP_PROMPT_TOKENS, capacity.max_model_len - iterations)
    managers, room = context.layout.managers, capacity.usable_blocks_without_watermark
    while length > 0 and footprint(length + iterations, managers) > room:
        length -= 1
    prompts = [max(0, length)]
    shape = {"prompt_lengths": prompts, "max_tokens": iterations}
    if length < 1:
        entry = _begin(context, WarmupKind.GLOBAL, shape)
        _end(context, entry, failed="no prompt fits this engine")
        return
    batch = _batch(context.prompts.fresh(prompts), max_tokens=iterations)
    yield from _unbooked(context, WarmupKind.GLOBAL, shape, batch)


# --- prefill -------------------------------------------------------------------------------------------


def _prefill(context: RunContext, point: Point) -> Procedure:
    new = list(values(point.new_tokens()))
    reads = list(values(point.kv_tokens(context.layout.hash_block_size)))
    if not point.total_kv_read_tokens:
        batch = _batch(context.prompts.fresh(new))
        return (yield from _booked_prefill(context, point, KvRegime.NOT_APPLICABLE, batch))
    if context.settings.real_seed:
        return (yield from _real_prefix(context, _with_reason(point, REAL_SEED), new, reads))
    return (yield from _fake_prefix(context, _with_reason(point, FAKE_PREFIX), new, reads))


def _fake_prefix(context: RunContext, point: Point, new: Sequence[int], reads: Sequence[int]) -> Procedure:
    """Let the cache hold prefixes that nobody computed, then read them."""
    own, dropped = context.unique_salt(), context.layout.dropped_tokens
    seeds, prompts = context.prompts.fake_prefix(point_key(record(point)), reads, new, dropped=dropped)
    salts = [f"{own}_slot{slot}" for slot in range(len(new))]
    seed_requests = tuple(
        SyntheticRequest(slot, tuple(seed), cache_salt=salts[slot]) for slot, seed in enumerate(seeds) if seed
    )
    requests = tuple(
        SyntheticRequest(slot, tuple(prompt), cache_salt=salts[slot], cached_tokens=reads[slot])
        for slot, prompt in enumerate(prompts)
    )
    refused = yield ops.Seed(Batch(Phase.PREFILL, seed_requests))
    if isinstance(refused, Refused):
        yield ops.ResetCache()
        return Finished(point, KvRegime.FAKE_PREFIX, SkipReason.FAKE_PREFIX_ALLOCATION, why=refused.why)
    batch = Batch(Phase.PREFILL, requests)
    return (yield from _booked_prefill(context, point, KvRegime.FAKE_PREFIX, batch))


def _real_prefix(context: RunContext, point: Point, new: Sequence[int], reads: Sequence[int]) -> Procedure:
    """Compute the prefixes for real, run the shape once unbooked, then measure; a lost prefix is computed
    again once.
    """
    shots = _RealPrefixShots(context, point, new, reads)
    for _ in range(2):
        for shot in (shots.stage, shots.warm):
            skip = yield from shot()
            if skip is not None:
                return Finished(point, KvRegime.REAL_PREFIX, skip)
        finished = yield from _booked_prefill(context, point, KvRegime.REAL_PREFIX, shots.measured())
        if finished.skip is not SkipReason.FAKE_PREFIX_VALIDATION:
            return finished
        shots.forget()
    return msgspec.structs.replace(finished, skip=SkipReason.REAL_SEED_VALIDATION)


class _RealPrefixShots:
    """The three shots of one point whose prefixes are computed for real."""

    def __init__(self, context: RunContext, point: Point, new: Sequence[int], reads: Sequence[int]) -> None:
        self._context = context
        self._point = point
        self._new, self._reads = new, reads
        self._needs = [read + context.layout.dropped_tokens if read else 0 for read in reads]
        self._salts = real_prefix_salts(point.batch_size)

    @property
    def _depths(self) -> list[int]:
        """How much of each slot's prefix is in the cache; slots of a batch size keep it for later points."""
        return self._context.seeded.setdefault(self._point.batch_size, [0] * self._point.batch_size)

    def stage(self) -> Generator[ops.Op, Any, SkipReason | None]:
        """Compute what is missing of the prefixes."""
        short = [slot for slot, need in enumerate(self._needs) if need > self._depths[slot]]
        if not short:
            return None
        prefixes = self._context.prompts.real_prefix(self._needs)
        requests = tuple(
            SyntheticRequest(slot, tuple(prefixes[slot]), cache_salt=self._salts[slot]) for slot in short
        )
        ok = yield from self._unbooked(WarmupKind.REAL_PREFIX_SEED, requests)
        if not ok:
            return SkipReason.REAL_SEED_INJECTION
        for slot in short:
            self._depths[slot] = self._needs[slot]
        return None

    def warm(self) -> Generator[ops.Op, Any, SkipReason | None]:
        """Run the shape with tails that are thrown away."""
        ok = yield from self._unbooked(WarmupKind.REAL_PREFIX_SHAPE, self._requests(measured=False))
        return None if ok else SkipReason.REAL_SEED_WARM_INJECTION

    def measured(self) -> Batch:
        """Return the batch that is measured: computed prefixes, fresh tails."""
        return Batch(Phase.PREFILL, self._requests(measured=True))

    def forget(self) -> None:
        """Compute every prefix of this batch size again."""
        self._depths[:] = [0] * len(self._depths)

    def _requests(self, *, measured: bool) -> tuple[SyntheticRequest, ...]:
        prompts = self._context.prompts.after_real_prefix(
            point_key(record(self._point)),
            self._reads,
            self._new,
            measured=measured,
            replica=self._point.is_replica,
            dropped=self._context.layout.dropped_tokens,
        )
        return tuple(
            SyntheticRequest(
                slot,
                tuple(prompt),
                cache_salt=self._salts[slot] if self._reads[slot] else "",
                cached_tokens=self._reads[slot] if measured else 0,
            )
            for slot, prompt in enumerate(prompts)
        )

    def _unbooked(
        self, kind: WarmupKind, requests: tuple[SyntheticRequest, ...]
    ) -> Generator[ops.Op, Any, bool]:
        lengths = [len(request.token_ids) for request in requests]
        shape = {"point": record(self._point), "prompt_lengths": lengths}
        return (yield from _unbooked(self._context, kind, shape, Batch(Phase.PREFILL, requests)))


def _booked_prefill(context: RunContext, point: Point, regime: KvRegime, batch: Batch) -> Procedure:
    """Inject ``batch``, and wait until the engine is through with it."""
    admitted = yield ops.Inject(batch)
    if isinstance(admitted, Refused):
        skip = SkipReason.FAKE_PREFIX_VALIDATION if admitted.cache_missed else SkipReason.PREFILL_INJECTION
        if regime is KvRegime.FAKE_PREFIX:
            yield ops.ResetCache()
        return Finished(point, regime, skip, why=admitted.why)
    yield ops.Arm(point, 1)
    finished = Finished(point, regime, ids=admitted.ids, prompts=_evidence(batch))
    while (yield ops.Alive(admitted.ids)):
        if not context.started and context.stuck():
            return msgspec.structs.replace(
                finished, skip=SkipReason.PREFILL_INJECTION, why="the engine did not start it in time"
            )
        if not context.samples and context.expired():
            break  # what comes later is nobody's
        yield ops.Turn()
    return finished


def _unbooked(
    context: RunContext, kind: WarmupKind, shape: Mapping[str, Any], batch: Batch
) -> Generator[ops.Op, Any, bool]:
    """Run ``batch`` without a result; say whether it ran. It is drained before this ends."""
    entry = _begin(context, kind, shape)
    admitted = yield ops.Inject(batch)
    if isinstance(admitted, Refused):
        _end(context, entry, failed=admitted.why)
        return False
    while (yield ops.Alive(admitted.ids)):
        if context.stuck():
            yield ops.Release(admitted.ids)
            _end(context, entry, failed="the engine did not run it in time")
            return False
        yield ops.Turn()
    _end(context, entry)
    yield ops.Turn()
    return True


# --- decode --------------------------------------------------------------------------------------------


def _decode(context: RunContext, point: Point) -> Procedure:
    """Admit requests one token short of their contexts, and measure the step, or steps, right after that."""
    contexts = [max(1, context_tokens - 1) for context_tokens in values(point.contexts())]
    total = sum(contexts) + point.batch_size
    if total != point.total_kv_read_tokens:
        point = _with_reason(msgspec.structs.replace(point, total_kv_read_tokens=total), CLAMPED)
    regime = KvRegime.FAKE_FALLBACK if context.settings.kv_warmup else KvRegime.LEGACY
    if regime is KvRegime.FAKE_FALLBACK:
        point = _with_reason(point, FAKE_FALLBACK)
    steps = _steady_steps(context, point, contexts)
    while not (yield ops.Settled()):
        yield ops.Turn()
    batch = _batch(context.prompts.decode(contexts), phase=Phase.DECODE)
    admitted = yield ops.Inject(batch)
    if isinstance(admitted, Refused):
        return Finished(point, regime, SkipReason.DECODE_INJECTION, why=admitted.why)
    yield ops.Arm(point, 1 + steps)
    yield ops.Turn(admitted.output)
    for _ in range(steps):  # the very next steps: nothing may run in between
        if context.expired():
            break
        output = yield ops.Steady(admitted.ids)
        if output is None:
            # A step of nothing comes now, and takes the requests out of the batch of vLLM's runner, which
            # would have to take them up again in the step that is measured; in async order it cannot.
            break
        yield ops.Turn(output)
    while len(context.samples) < 1 + steps and not context.expired():
        yield ops.Turn((yield ops.Empty()))
    return Finished(point, regime, ids=admitted.ids, prompts=_evidence(batch))


def _steady_steps(context: RunContext, point: Point, contexts: Sequence[int]) -> int:
    """Return how often the steady step is repeated; one unless the point is so large that a stray step of it
    would mislead.
    """
    settings, capacity = context.settings, context.log.capacity
    if not settings.kv_warmup or point.total_kv_read_tokens < settings.giant_threshold or capacity is None:
        return 1
    steps = max(1, settings.giant_repeats)
    steps = min(steps, max(1, capacity.max_model_len - 1 - (max(contexts) + 1)))
    need = sum(footprint(max(each, 2) + steps, context.layout.managers) for each in contexts)
    return steps if need <= context.usable_blocks else 1


# --- what they share -----------------------------------------------------------------------------------


def _with_reason(point: Point, reason: str) -> Point:
    return msgspec.structs.replace(point, sample_reasons=(*point.sample_reasons, reason))


def _batch(prompts: Sequence[Sequence[int]], *, phase: Phase = Phase.PREFILL, max_tokens: int = 1) -> Batch:
    requests = [
        SyntheticRequest(slot, tuple(prompt), max_tokens=max_tokens) for slot, prompt in enumerate(prompts)
    ]
    return Batch(phase, tuple(requests))


def _evidence(batch: Batch) -> Prompts:
    return prompt_evidence([request.token_ids for request in batch.requests])


def _begin(context: RunContext, kind: WarmupKind, shape: Mapping[str, Any]) -> Warmup:
    log = context.log
    return log.warmups.begin(kind, shape, next_forward=log.next_forward, completed_points=len(log.measured))


def _end(context: RunContext, entry: Warmup, *, failed: str | None = None) -> None:
    validation = WarmupValidation(ValidationStatus.NOT_PERFORMED, failed) if failed is not None else None
    context.log.warmups.finish(
        entry, next_forward=context.log.next_forward, failed=failed is not None, validation=validation
    )
