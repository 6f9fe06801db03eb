"""Laws of the simulated engine, over random limits and loads: nothing is lost, nothing is counted twice."""

from collections import Counter
from math import inf, isfinite

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.load import Arrival
from forwardpass.engines.mock.request import Request
from forwardpass.engines.mock.scheduler import Scheduler
from forwardpass.engines.mock.step import Step
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.codec import encode
from forwardpass.wire.tally import sum_and_variance
from forwardpass.wire.validate import validate_payload

MAX_LEN = 48
MAX_TURNS = 20_000

configs = st.builds(
    MockConfig,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 64),
    max_model_len=st.just(MAX_LEN),
    block_tokens=st.sampled_from([1, 3, 4, 16]),
    num_blocks=st.integers(MAX_LEN, MAX_LEN + 8),
    prefix_caching=st.booleans(),
    async_scheduling=st.booleans(),
    noise=st.sampled_from([0.0, 0.05]),
)
"""With one-token blocks two long requests already fight for room; with 16 there is plenty."""


@st.composite
def loads(draw):
    count = draw(st.integers(1, 12))
    gaps = draw(st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.5]), min_size=count, max_size=count))
    at, requests = 0.0, []
    for gap in gaps:
        at += gap
        prompt = draw(st.integers(1, MAX_LEN - 1))
        output = draw(st.integers(1, MAX_LEN - prompt))
        prefix = draw(st.one_of(st.just(0), st.integers(0, prompt)))
        requests.append(Arrival(at, prompt, output, draw(st.integers(0, 2)), prefix))
    return requests


class Run:
    """A whole run with every step looked at on the way."""

    def __init__(self, config: MockConfig, requests: list[Arrival]) -> None:
        self.publisher = ListPublisher()
        self.engine = MockEngine(config, lambda rank: self.publisher, requests)
        self.scheduler = self.engine.scheduler
        self.steps: list[Step] = []
        self._watch()
        moment, turns = 0.0, 0
        while moment != inf:
            moment = self.engine.turn(moment)
            turns += 1
            self.check_pool()
            self.check_queue()
            assert turns < MAX_TURNS, "the engine makes no progress"

    def _watch(self) -> None:
        schedule = self.scheduler.schedule

        def watched() -> Step:
            step = schedule()
            if not step.empty:
                self.steps.append(step)
            return step

        self.scheduler.schedule = watched

    def check_pool(self) -> None:
        kv, running = self.scheduler.kv, self.scheduler.running
        held = Counter(block for request in running for block in request.blocks)

        assert kv.used_blocks == len(held) <= kv.num_blocks
        assert kv.holders == held.total()
        assert all(kv.blocks_for(request.computed) == len(request.blocks) for request in running)

    def check_queue(self) -> None:
        totals, queued = self.scheduler.totals, self.scheduler.waiting.snapshot()
        waiting = queued.num_prefill_requests + queued.num_decode_requests

        assert waiting == totals.submitted - totals.finished - len(self.scheduler.running)


@given(configs, loads())
@settings(deadline=None)
def test_no_request_starves_and_no_block_leaks(config, requests):
    """Every request finishes with exactly its output, and at the end nobody holds a block.

    On the way the pool is never over-used, holds are exactly the running requests', and the queue is what
    was submitted minus what runs and what finished.
    """
    run = Run(config, requests)
    totals = run.engine.totals

    assert totals.submitted == totals.finished == len(requests)
    assert totals.output_tokens == sum(request.output_tokens for request in requests)
    assert run.scheduler.unfinished == 0
    assert (run.scheduler.kv.used_blocks, run.scheduler.kv.holders) == (0, 0)


@given(configs, loads())
@settings(deadline=None)
def test_every_token_is_accounted_for(config, requests):
    """Prefill + cached + decode tokens are the positions that are needed plus those computed again."""
    totals = Run(config, requests).engine.totals
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)

    assert totals.prefill_tokens + totals.cached_tokens + totals.decode_tokens == (
        needed + totals.recomputed_tokens
    )
    if not totals.preemptions:
        assert totals.recomputed_tokens == 0
        assert totals.prefill_tokens + totals.cached_tokens == sum(r.prompt_tokens for r in requests)
    if not config.prefix_caching:
        assert totals.cached_tokens == 0


@given(configs, loads())
@settings(deadline=None)
def test_every_message_is_valid_and_agrees_with_its_step(config, requests):
    """WIRE-13, WIRE-14, WIRE-15, ENG-20: the invariants hold, the trace's strict validation passes, and
    messages add up to the totals.
    """
    run = Run(config, requests)
    messages = run.publisher.messages

    assert len(messages) == len(run.steps) == run.engine.passes
    for message, step in zip(messages, run.steps, strict=True):
        scheduled, queued = message.scheduled_requests, message.queued_requests
        validate_payload(encode(message))

        assert message.wall_time > 0.0
        assert all(isfinite(v) and v < 2**32 for part in (scheduled, queued) for v in _values(part))
        assert scheduled.num_prefill_requests or not (
            scheduled.sum_prefill_tokens or scheduled.sum_prefill_kv_tokens
        )
        assert scheduled.num_decode_requests or not scheduled.sum_decode_kv_tokens
        assert queued.num_prefill_requests or not queued.sum_prefill_tokens
        assert queued.num_decode_requests or not queued.sum_decode_kv_tokens
        tokens = scheduled.sum_prefill_tokens + scheduled.num_decode_requests
        assert 0 < tokens <= config.max_num_batched_tokens
        requests_now = scheduled.num_prefill_requests + scheduled.num_decode_requests
        assert requests_now <= config.max_num_seqs
        assert scheduled.sum_decode_kv_tokens == sum(step.contexts)
        assert scheduled.var_decode_kv_tokens == sum_and_variance(step.contexts)[1]
    prefill = sum(message.scheduled_requests.sum_prefill_tokens for message in messages)
    decode = sum(message.scheduled_requests.num_decode_requests for message in messages)

    assert (prefill, decode) == (run.engine.totals.prefill_tokens, run.engine.totals.decode_tokens)


@given(configs, st.integers(1, MAX_LEN - 1), st.data())
@settings(deadline=None)
def test_a_lone_request_grows_by_one_token_a_step(config, prompt, data):
    """Chunks cover the prompt without gap or overlap, then the context of each decode is one longer."""
    output = data.draw(st.integers(1, MAX_LEN - prompt))
    run = Run(config, [Arrival(0.0, prompt, output)])
    chunks = [chunk for step in run.steps for chunk in step.chunks]
    contexts = [context for step in run.steps for context in step.contexts]

    assert [chunk.computed for chunk in chunks] == list(range(0, prompt, config.max_num_batched_tokens))
    assert sum(chunk.tokens for chunk in chunks) == prompt
    assert {chunk.length for chunk in chunks} == {prompt}
    assert contexts == list(range(prompt, prompt + output - 1))


@given(configs, loads())
@settings(deadline=None)
def test_both_orders_bring_the_same_tokens(config, requests):
    """Synchronous and asynchronous order differ in time, not in what is computed for whom."""
    totals = []
    for order in (False, True):
        chosen = msgspec.structs.replace(config, async_scheduling=order)
        totals.append(Run(chosen, requests).engine.totals)
    first, second = totals

    assert (first.finished, first.output_tokens) == (second.finished, second.output_tokens)
    assert _net(first) == _net(second)


@given(loads(), st.booleans())
@settings(deadline=None)
def test_a_scheduler_driven_out_of_step_still_conserves(requests, ahead):
    """The laws hold for the scheduler alone, with outputs arriving one call late or at once."""
    scheduler = Scheduler(MockConfig(max_model_len=MAX_LEN, num_blocks=MAX_LEN, block_tokens=1))
    for uid, (_, prompt, output, prefix_id, prefix) in enumerate(requests):
        scheduler.submit(Request(uid, prompt, output, prefix_id=prefix_id, prefix_tokens=prefix))
    flights = [scheduler.schedule()] if ahead else []
    for _ in range(MAX_TURNS):
        if not scheduler.unfinished:
            break
        flights.append(scheduler.schedule())
        scheduler.update(flights.pop(0))
    totals = scheduler.totals
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)

    assert totals.finished == len(requests)
    assert _net(totals) == needed


def _net(totals):
    computed = totals.prefill_tokens + totals.cached_tokens + totals.decode_tokens
    return computed - totals.recomputed_tokens


def _values(part):
    return [getattr(part, name) for name in part.__struct_fields__]
