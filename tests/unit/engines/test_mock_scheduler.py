"""The scheduler's rules, one case each, with block size 4 so that the numbers stay small."""

import pytest

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.request import Request, Status
from forwardpass.engines.mock.scheduler import Scheduler
from forwardpass.engines.mock.step import Chunk, Step
from forwardpass.errors import ConfigError, EngineError


def scheduler(**limits) -> Scheduler:
    config = {"block_tokens": 4, "num_blocks": 16, "max_model_len": 60, "max_num_batched_tokens": 32}
    return Scheduler(MockConfig(**{**config, **limits}))


def run(engine: Scheduler) -> Step:
    step = engine.schedule()
    engine.update(step)
    return step


def test_a_new_request_is_prefilled_then_decodes_until_its_output_is_complete():
    """Ten prompt tokens and three output tokens: one prefill, then decodes at context 10 and 11."""
    engine = scheduler()
    engine.submit(Request(1, 10, 3))
    steps = [run(engine) for _ in range(3)]

    assert steps[0].chunks == [Chunk(tokens=10, computed=0, length=10)]
    assert [step.contexts for step in steps] == [[], [10], [11]]
    assert engine.unfinished == 0
    assert engine.kv.holders == 0


def test_one_output_token_needs_no_decode():
    """The prefill itself brings the first token; with a single one wanted the request is done."""
    engine = scheduler()
    engine.submit(Request(1, 10, 1))
    run(engine)

    assert engine.totals.finished == 1
    assert engine.totals.decode_tokens == 0


def test_a_long_prompt_is_cut_into_chunks_of_the_token_budget():
    """Chunks report what they compute, what was computed before, and the length of the whole prompt."""
    engine = scheduler(max_num_batched_tokens=8)
    engine.submit(Request(1, 18, 2))
    chunks = [chunk for _ in range(3) for chunk in run(engine).chunks]

    assert chunks == [Chunk(8, 0, 18), Chunk(8, 8, 18), Chunk(2, 16, 18)]


def test_running_requests_take_the_budget_before_waiting_ones():
    """A decode is never delayed by a newcomer's prefill: they share the pass, the decode first."""
    engine = scheduler(max_num_batched_tokens=8)
    engine.submit(Request(1, 4, 9))
    run(engine)
    engine.submit(Request(2, 20, 2))
    step = run(engine)

    assert step.contexts == [4]
    assert step.chunks == [Chunk(7, 0, 20)]


def test_no_more_requests_run_than_allowed():
    """The request limit leaves the rest waiting, in order."""
    engine = scheduler(max_num_seqs=2)
    for uid in (1, 2, 3):
        engine.submit(Request(uid, 4, 5))
    run(engine)

    assert [request.uid for request in engine.running] == [1, 2]
    assert engine.waiting.first().uid == 3


def test_a_prefix_hit_is_read_not_computed():
    """Cached blocks count as computed before the first pass; the rest of the prompt is the chunk."""
    engine = scheduler()
    engine.submit(Request(1, 12, 1, prefix_id=7, prefix_tokens=8))
    run(engine)
    engine.submit(Request(2, 14, 1, prefix_id=7, prefix_tokens=8))
    step = run(engine)

    assert step.chunks == [Chunk(tokens=6, computed=8, length=14)]
    assert engine.totals.cached_tokens == 8


def test_other_prefixes_and_private_parts_are_no_hits():
    """Only the shared part of the same prefix is the same content."""
    engine = scheduler()
    engine.submit(Request(1, 12, 1, prefix_id=7, prefix_tokens=8))
    run(engine)
    engine.submit(Request(2, 12, 1, prefix_id=8, prefix_tokens=8))
    engine.submit(Request(3, 12, 1))
    step = run(engine)

    assert [chunk.computed for chunk in step.chunks] == [0, 0]


def test_a_fully_cached_prompt_still_computes_its_last_block():
    """At least one token is computed, because its output is what is wanted."""
    engine = scheduler()
    engine.submit(Request(1, 9, 1, prefix_id=7, prefix_tokens=9))
    run(engine)
    engine.submit(Request(2, 8, 1, prefix_id=7, prefix_tokens=8))
    step = run(engine)

    assert step.chunks == [Chunk(tokens=4, computed=4, length=8)]


def pressed() -> Scheduler:
    """Two requests of 8 tokens on four blocks of 4: the next token of the first one needs a block."""
    engine = scheduler(num_blocks=4, max_model_len=16, prefix_caching=False)
    engine.submit(Request(1, 8, 6))
    engine.submit(Request(2, 8, 6))
    run(engine)
    return engine


def test_the_last_arrived_request_makes_room():
    """Under pressure the newest request gives up all its blocks and goes back to the head of the queue."""
    engine = pressed()
    engine.submit(Request(3, 1, 1))
    step = run(engine)

    assert step.contexts == [8]
    assert step.preempted == 1
    assert [request.uid for request in engine.running] == [1]
    assert (engine.waiting.first().uid, engine.waiting.first().status) == (2, Status.PREEMPTED)


def test_a_preempted_request_waits_as_decode_with_all_it_knows():
    """D-1: its computed tokens are zero, so the queue reports prompt plus output, 8 + 1."""
    engine = pressed()
    run(engine)
    queued = engine.waiting.snapshot()

    assert (queued.num_decode_requests, queued.sum_decode_kv_tokens) == (1, 9)
    assert (queued.num_prefill_requests, queued.sum_prefill_tokens) == (0, 0)


def test_a_resumed_request_is_prefill_until_it_has_caught_up():
    """ENG-06, ENG-20, D-2: recomputation is visible as prefill of all known tokens, then the request decodes
    again.
    """
    engine = pressed()
    steps = [run(engine) for _ in range(12)]
    resumed = [chunk for step in steps for chunk in step.chunks]

    assert resumed == [Chunk(tokens=9, computed=0, length=9)]
    assert engine.totals.recomputed_tokens == 8
    assert engine.totals.finished == 2
    after = next(index for index, step in enumerate(steps) if step.chunks) + 1
    assert [step.contexts for step in steps[after : after + 4]] == [[9], [10], [11], [12]]


def test_resumption_may_hit_what_it_computed_before():
    """With prefix caching a resumed request finds those of its own blocks that nobody needed meanwhile."""
    engine = scheduler(num_blocks=4, max_model_len=16)
    engine.submit(Request(1, 8, 4))
    engine.submit(Request(2, 8, 6))
    steps = [run(engine) for _ in range(12)]
    resumed = [chunk for step in steps[1:] for chunk in step.chunks]

    assert resumed == [Chunk(tokens=5, computed=4, length=9)]


def test_with_two_passes_in_flight_decodes_go_on_before_the_output_is_known():
    """Asynchronous order: the second pass computes the token that the first one is still producing."""
    engine = scheduler()
    engine.submit(Request(1, 6, 3))
    first, second = engine.schedule(), engine.schedule()
    engine.update(first)
    third = engine.schedule()

    assert (second.contexts, third.contexts) == ([6], [7])

    engine.update(second)
    fourth = engine.schedule()

    assert fourth.empty
    engine.update(third)
    assert engine.totals.finished == 1


def test_a_token_in_flight_reaches_a_request_that_was_preempted_meanwhile():
    """Asynchronous order: the output of the pass before the preemption still counts."""
    engine = scheduler(num_blocks=4, max_model_len=16, prefix_caching=False)
    engine.submit(Request(1, 8, 6))
    engine.submit(Request(2, 8, 6))
    first = engine.schedule()
    second = engine.schedule()

    assert second.preempted == 1

    engine.update(first)

    assert engine.waiting.snapshot().sum_decode_kv_tokens == 9


def test_a_request_may_finish_while_it_is_preempted():
    """The last token in flight ends the request: it leaves the queue without running again."""
    engine = scheduler(num_blocks=4, max_model_len=16, prefix_caching=False)
    engine.submit(Request(1, 7, 6))
    engine.submit(Request(2, 7, 2))
    run(engine)
    last_of_second = engine.schedule()
    third = engine.schedule()

    assert (third.preempted, len(engine.waiting)) == (1, 1)

    engine.update(last_of_second)

    assert len(engine.waiting) == 0
    assert engine.totals.finished == 1


def test_work_includes_reporting_what_finished():
    """After the last request one empty step is wanted, then none: it is what ends a period of work."""
    engine = scheduler()
    engine.submit(Request(1, 4, 1))
    run(engine)

    assert engine.has_work
    assert run(engine).empty
    assert not engine.has_work


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (60, 1), (1, 60)])
def test_a_request_the_engine_can_never_finish_is_refused(prompt, output):
    """Prompt and output must be positive and fit the model length together."""
    with pytest.raises(EngineError):
        scheduler().submit(Request(1, prompt, output))


@pytest.mark.parametrize(
    "limits",
    [
        {"max_num_seqs": 0},
        {"max_num_batched_tokens": 0},
        {"block_tokens": 0},
        {"num_blocks": 0},
        {"max_model_len": 0},
        {"max_model_len": 16 * 2048 + 1},
        {"noise": -0.1},
        {"noise": float("nan")},
    ],
)
def test_limits_that_cannot_work_are_refused_by_name(limits):
    """A configuration in which a request could wait forever is an error that names the field."""
    with pytest.raises(ConfigError) as caught:
        MockConfig(**limits)

    assert caught.value.variable == f"MockConfig.{next(iter(limits))}"
