"""Knows what every benchmark driver must do, and checks it against the real thing.

``check_driver`` runs all checks; a test suite that wants one test per promise iterates over
``DRIVER_CHECKS``. A check raises ``AssertionError`` with what was broken. Each leaves the engine as it found
it, and checks that too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from forwardpass.bench.driver import Admitted, Batch, BenchDriver, Refused, SyntheticRequest
from forwardpass.bench.points import Phase
from forwardpass.wire.schema import ScheduledRequestMetrics

__all__ = [
    "DRIVER_CHECKS",
    "DriverRig",
    "a_batch_is_taken_whole_or_not_at_all",
    "a_cache_in_use_is_not_cleared",
    "an_empty_step_runs_nothing",
    "check_driver",
    "decodes_grow_by_one_token_a_step",
    "equal_prompts_do_not_find_each_other",
    "prompts_run_in_the_next_step",
    "seeded_prefixes_are_found_to_the_token",
    "strangers_are_not_alive",
    "what_does_not_fit_is_refused",
]

TURNS = 200
"""Steps within which an engine has to be through with what was asked of it."""
UNUSED_TOKEN = 5


class DriverRig(Protocol):
    """An engine under test: its driver, and a way to let it make one step."""

    driver: BenchDriver

    def step(self, output: Any = None) -> ScheduledRequestMetrics | None:
        """Run ``output``, or what the engine schedules by itself, to the end; return what ran, ``None`` for
        nothing.
        """
        ...


def check_driver(rig: DriverRig) -> None:
    """Run every check."""
    for check in DRIVER_CHECKS:
        check(rig)


def prompts_run_in_the_next_step(rig: DriverRig) -> None:
    """Prefills are waiting once they are injected, run whole in the next step, and are gone after it."""
    with _nothing_left(rig):
        ids = _admitted(rig, _prefills((24, 17)))
        assert rig.driver.alive(ids) == 2
        ran = rig.step()
        assert ran is not None, "nothing ran after prompts were injected"
        assert (ran.num_prefill_requests, ran.sum_prefill_tokens, ran.sum_prefill_kv_tokens) == (2, 41, 0)
        _until_gone(rig, ids)


def seeded_prefixes_are_found_to_the_token(rig: DriverRig) -> None:
    """A seeded prefix is found by prompts with its salt and tokens, exactly; by no other salt."""
    unit, drop = rig.driver.layout().hash_block_size, rig.driver.layout().dropped_tokens
    with _nothing_left(rig):
        prompt = tuple(range(1, 2 * unit + drop + 9))
        seed = SyntheticRequest(0, prompt[: 2 * unit + drop], cache_salt="seeded")
        assert rig.driver.seed_prefixes(Batch(Phase.PREFILL, (seed,))) is None
        wrong = SyntheticRequest(0, prompt, cache_salt="other", cached_tokens=2 * unit)
        _refused(rig, Batch(Phase.PREFILL, (wrong,)), cache_missed=True)
        right = SyntheticRequest(0, prompt, cache_salt="seeded", cached_tokens=2 * unit)
        ids = _admitted(rig, Batch(Phase.PREFILL, (right,)))
        ran = rig.step()
        assert ran is not None
        assert (ran.sum_prefill_tokens, ran.sum_prefill_kv_tokens) == (len(prompt) - 2 * unit, 2 * unit)
        _until_gone(rig, ids)


def equal_prompts_do_not_find_each_other(rig: DriverRig) -> None:
    """A prompt without a salt is computed whole, also after an equal one that was computed before it."""
    unit = rig.driver.layout().hash_block_size
    with _nothing_left(rig):
        for _ in range(2):
            ids = _admitted(rig, _prefills((2 * unit,)))
            computed = 0
            for _ in range(TURNS):
                ran = rig.step()
                computed += ran.sum_prefill_tokens if ran is not None else 0
                if not rig.driver.alive(ids):
                    break
            assert computed == 2 * unit, (
                f"{computed} of {2 * unit} tokens of a prompt of its own were computed"
            )


def a_batch_is_taken_whole_or_not_at_all(rig: DriverRig) -> None:
    """One prompt that misses its prefix makes the whole batch refused; none of it runs."""
    unit = rig.driver.layout().hash_block_size
    with _nothing_left(rig):
        good = SyntheticRequest(0, tuple(range(1, 20)))
        missing = SyntheticRequest(1, tuple(range(1, 2 * unit)), cache_salt="never", cached_tokens=unit)
        _refused(rig, Batch(Phase.PREFILL, (good, missing)), cache_missed=True)
        assert rig.step() is None, "a part of a refused batch ran"


def decodes_grow_by_one_token_a_step(rig: DriverRig) -> None:
    """Decodes are admitted one token short of their prompts; the admission reads that many tokens, and each
    steady step one more for each request, until they are released.
    """
    contexts = (33, 16, 40)
    with _nothing_left(rig):
        admitted = rig.driver.inject(_decodes(contexts))
        assert isinstance(admitted, Admitted), admitted
        assert rig.driver.alive(admitted.ids) == 3
        ran = rig.step(admitted.output)
        for steps in range(4):
            assert ran is not None
            assert (ran.num_decode_requests, ran.num_prefill_requests) == (3, 0)
            assert ran.sum_decode_kv_tokens == sum(contexts) + 3 * steps
            output = rig.driver.steady(admitted.ids)
            assert output is not None, "no block for a steady step"
            ran = rig.step(output)
        rig.driver.release(admitted.ids)
        rig.driver.release(admitted.ids)
        assert rig.driver.alive(admitted.ids) == 0


def what_does_not_fit_is_refused(rig: DriverRig) -> None:
    """More decodes than may run, and seeds beyond the pool, are refused with a reason; nothing is left of
    them.
    """
    capacity = rig.driver.capacity()
    with _nothing_left(rig):
        _refused(rig, _decodes((3,) * (capacity.max_num_running_reqs + 1)), cache_missed=False)
        block = rig.driver.layout().block_size
        long = tuple(UNUSED_TOKEN for _ in range(min(capacity.max_model_len - 2, 40 * block)))
        count = capacity.usable_blocks_with_watermark * block // len(long) + 2
        seeds = tuple(SyntheticRequest(slot, long, cache_salt=f"seed {slot}") for slot in range(count))
        refused = rig.driver.seed_prefixes(Batch(Phase.PREFILL, seeds))
        assert isinstance(refused, Refused), "more seeds than blocks were taken"
        assert refused.why


def an_empty_step_runs_nothing(rig: DriverRig) -> None:
    """An empty output runs no token, and keeps the requests that are there."""
    with _nothing_left(rig):
        admitted = rig.driver.inject(_decodes((8,)))
        assert isinstance(admitted, Admitted)
        rig.step(admitted.output)
        assert rig.step(rig.driver.empty()) is None
        assert rig.driver.alive(admitted.ids) == 1
        rig.driver.release(admitted.ids)


def a_cache_in_use_is_not_cleared(rig: DriverRig) -> None:
    """The prefix cache cannot be cleared while a request holds blocks, and can afterwards."""
    with _nothing_left(rig):
        admitted = rig.driver.inject(_decodes((8,)))
        assert isinstance(admitted, Admitted)
        assert not rig.driver.reset_prefix_cache()
        rig.step(admitted.output)
        rig.driver.release(admitted.ids)


def strangers_are_not_alive(rig: DriverRig) -> None:
    """Ids that were never given out are not alive, and releasing them does nothing."""
    with _nothing_left(rig):
        assert rig.driver.alive(("nobody",)) == 0
        rig.driver.release(("nobody",))


DRIVER_CHECKS: tuple[Callable[[DriverRig], None], ...] = (
    prompts_run_in_the_next_step,
    seeded_prefixes_are_found_to_the_token,
    equal_prompts_do_not_find_each_other,
    a_batch_is_taken_whole_or_not_at_all,
    decodes_grow_by_one_token_a_step,
    what_does_not_fit_is_refused,
    an_empty_step_runs_nothing,
    a_cache_in_use_is_not_cleared,
    strangers_are_not_alive,
)


@contextmanager
def _nothing_left(rig: DriverRig) -> Iterator[None]:
    before = rig.driver.capacity()
    yield
    for _ in range(TURNS):
        if rig.driver.settled():
            break
        rig.step()
    assert rig.driver.settled(), "released blocks are never free"
    assert rig.driver.reset_prefix_cache(), "the cache cannot be cleared at the end"
    after = rig.driver.capacity()
    assert after == before, f"found {before}, left {after}"


def _until_gone(rig: DriverRig, ids: tuple[str, ...]) -> None:
    for _ in range(TURNS):
        if not rig.driver.alive(ids):
            return
        rig.step()
    raise AssertionError(f"{rig.driver.alive(ids)} of {len(ids)} prefills never ended")


def _admitted(rig: DriverRig, batch: Batch) -> tuple[str, ...]:
    answer = rig.driver.inject(batch)
    assert isinstance(answer, Admitted), answer
    assert len(set(answer.ids)) == len(batch.requests)
    return answer.ids


def _refused(rig: DriverRig, batch: Batch, *, cache_missed: bool) -> None:
    answer = rig.driver.inject(batch)
    assert isinstance(answer, Refused), "what cannot run was taken"
    assert answer.cache_missed is cache_missed
    assert answer.why


def _prefills(lengths: Sequence[int]) -> Batch:
    requests = [SyntheticRequest(slot, tuple(range(1, length + 1))) for slot, length in enumerate(lengths)]
    return Batch(Phase.PREFILL, tuple(requests))


def _decodes(contexts: Sequence[int]) -> Batch:
    requests = [SyntheticRequest(slot, tuple(range(1, length + 2))) for slot, length in enumerate(contexts)]
    return Batch(Phase.DECODE, tuple(requests))
