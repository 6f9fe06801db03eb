"""Each special case of vLLM's scheduler, alone, in numbers that a reader can follow."""

from __future__ import annotations

from typing import Any

import pytest
from bare_engine import BLOCK_TOKENS, BareEngine, build_scheduler, make_request

from forwardpass.config.settings import SourceSettings
from forwardpass.engines.vllm.waiting import snapshot_metrics
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]


def numbers(length: int, start: int = 0) -> list[int]:
    return [(start + index) % 1000 for index in range(length)]


def passes(engine: BareEngine) -> list[ScheduledRequestMetrics]:
    return [metrics.scheduled_requests for metrics in engine.publisher.messages]


def waiting_now(engine: BareEngine) -> QueuedRequestMetrics | None:
    """Return what a heartbeat would say now."""
    return engine.publisher.waiting_now()


def queues(engine: BareEngine) -> list[QueuedRequestMetrics]:
    return [metrics.queued_requests for metrics in engine.publisher.messages]


def test_a_chunked_prompt_reports_chunks_but_the_whole_length(tiny_model: str) -> None:
    """ENG-05, CASE-17, TRAP-13, WIRE-10: Tokens of a pass are its chunk's, earlier chunks are read, and the
    variance is that of whole prompts in every chunk.
    """
    engine = BareEngine(build_scheduler(tiny_model, max_batched_tokens=128))
    engine.scheduler.add_request(make_request("long", numbers(300), 3))
    engine.scheduler.add_request(make_request("short", numbers(20, start=500), 3))
    engine.run()

    first, second, third, *decodes = passes(engine)
    assert first == ScheduledRequestMetrics(1, 128, 0.0, 0, 0, 0, 0.0)
    assert second == ScheduledRequestMetrics(1, 128, 0.0, 128, 0, 0, 0.0)
    assert third == ScheduledRequestMetrics(2, 44 + 20, 140.0**2, 256, 0, 0, 0.0)
    assert decodes == [ScheduledRequestMetrics(0, 0, 0.0, 0, 2, total, 140.0**2) for total in (320, 322)]


def test_a_prefix_hit_is_read_and_not_computed(tiny_model: str) -> None:
    """ENG-04, CASE-01, WIRE-10: The cached part of a prompt counts as KV read; a prompt that is cached whole
    still computes its last block or token.
    """
    engine = BareEngine(build_scheduler(tiny_model))
    prompt = numbers(4 * BLOCK_TOKENS + 10)
    engine.scheduler.add_request(make_request("a", prompt, 1))
    engine.run()
    engine.scheduler.add_request(make_request("b", prompt, 1))
    engine.run()

    assert passes(engine) == [
        ScheduledRequestMetrics(1, len(prompt), 0.0, 0, 0, 0, 0.0),
        ScheduledRequestMetrics(1, 10, 0.0, 4 * BLOCK_TOKENS, 0, 0, 0.0),
    ]


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("depth", [1, 2], ids=["sync", "async"])
def test_a_preempted_request_waits_with_its_context_and_returns_as_prefill(
    tiny_model: str, depth: int, runner_v2: bool
) -> None:
    """ENG-06, ENG-09, CASE-05, CASE-06, TRAP-16: A preempted request waits as a decode of all its tokens
    (D-1). Back again, it is a prefill of what must be computed anew, in chunks, whose length is all its known
    tokens, until it is where it was (D-2); both model runners, which list it differently, give the same
    messages.
    """
    scheduler = build_scheduler(
        tiny_model, async_scheduling=depth > 1, runner_v2=runner_v2, max_batched_tokens=64
    )
    engine = BareEngine(scheduler, depth)
    scheduler.add_request(make_request("a", numbers(100), 40))
    while engine.generated < 30:
        engine.step()
    known = scheduler.requests["a"].num_tokens
    before = len(engine.publisher.messages)
    assert scheduler.reset_prefix_cache(reset_running_requests=True)
    waiting = QueuedRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=known)
    assert waiting_now(engine) == waiting
    engine.run()

    back = [each for each in passes(engine)[before:] if each.num_prefill_requests]
    assert [each.sum_prefill_tokens for each in back] == [64, 64, known - 128]
    assert [each.sum_prefill_kv_tokens for each in back] == [0, 64, 128]
    after = passes(engine)[passes(engine).index(back[-1]) + 1 :]
    assert [each.sum_decode_kv_tokens for each in after] == list(range(known, 139))
    assert all(each.num_decode_requests == 1 for each in after)


def test_scarce_blocks_preempt_and_nothing_is_lost(tiny_model: str) -> None:
    """When decodes outgrow the cache the victim's whole context is queued while it waits (D-1)."""
    engine = BareEngine(build_scheduler(tiny_model, blocks=12))
    for name in range(3):
        engine.scheduler.add_request(make_request(f"r{name}", numbers(90, start=97 * name), 60))
    engine.run()

    waiting = [queue for queue in queues(engine) if queue.num_decode_requests]
    assert waiting
    assert all(queue.sum_decode_kv_tokens >= 90 * queue.num_decode_requests for queue in waiting)
    assert engine.generated == 180


def test_waiting_prompts_count_with_their_whole_length(tiny_model: str) -> None:
    """Prompts that wait count whole, since cache effects are unknown before they are scheduled."""
    engine = BareEngine(build_scheduler(tiny_model, max_seqs=1))
    for name, length in (("a", 50), ("b", 30), ("c", 70)):
        engine.scheduler.add_request(make_request(name, numbers(length), 2))
    engine.run()

    assert queues(engine)[0] == QueuedRequestMetrics(2, 100, 400.0, 0, 0, 0.0)
    assert queues(engine)[-1] == QueuedRequestMetrics()


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_the_real_queues_count_themselves(tiny_model: str, policy: str) -> None:
    """ENG-08: vLLM's own queues of both policies take to counting: no pass reads what waits, and the count
    is what a recount finds.
    """
    scheduler = build_scheduler(tiny_model, max_seqs=2, policy=policy)
    for index in range(30):
        scheduler.add_request(make_request(f"r{index}", [1] * (40 + index), 3))
    count = scheduler.recorder.queues
    engine = BareEngine(scheduler)

    while engine.step():
        counted = snapshot_metrics(count.read(engine.clock.monotonic()))
        assert counted == count.recount() == waiting_now(engine)
    assert engine.passes > 30
    assert count.differences == 0


def test_a_paused_engine_knows_what_waits(tiny_model: str) -> None:
    """CASE-13, TRAP-15: A paused engine makes no step; what comes and what is aborted meanwhile is in the
    queue that its heartbeats carry all the same (D-3).
    """
    from vllm.v1.core.sched.interface import PauseState
    from vllm.v1.request import RequestStatus

    engine = BareEngine(build_scheduler(tiny_model))
    scheduler = engine.scheduler
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    for name, length in (("a", 50), ("b", 30)):
        scheduler.add_request(make_request(name, numbers(length), 2))
    assert not scheduler.has_requests()
    assert waiting_now(engine) == QueuedRequestMetrics(2, 80, 100.0, 0, 0, 0.0)
    scheduler.finish_requests("b", RequestStatus.FINISHED_ABORTED)
    assert waiting_now(engine) == QueuedRequestMetrics(1, 50, 0.0, 0, 0, 0.0)
    assert engine.publisher.messages == []

    scheduler.set_pause_state(PauseState.UNPAUSED)
    engine.run()
    assert [each.sum_prefill_tokens for each in passes(engine)] == [50, 0]


def test_a_request_aborted_in_flight_still_counts(tiny_model: str) -> None:
    """CASE-12: What ran is what the output says, also for a request that was gone when its output came."""
    from vllm.v1.request import RequestStatus

    engine = BareEngine(build_scheduler(tiny_model, async_scheduling=True), depth=2)
    engine.scheduler.add_request(make_request("a", numbers(100), 20))
    engine.step()
    assert not engine.publisher.messages
    engine.scheduler.finish_requests("a", RequestStatus.FINISHED_ABORTED)
    engine.run()

    assert passes(engine)[0] == ScheduledRequestMetrics(1, 100, 0.0, 0, 0, 0, 0.0)


def test_idle_time_is_not_part_of_the_first_pass_after_it(tiny_model: str) -> None:
    """ENG-03, TRAP-02: The first pass after an empty step spans schedule to output, however long nothing
    happened; it is never 0.0, which only heartbeats carry.
    """
    engine = BareEngine(build_scheduler(tiny_model))
    for name in "ab":
        engine.scheduler.add_request(make_request(name, numbers(10), 1))
        engine.run()
        engine.clock.advance(3600)

    first, second = (metrics.wall_time for metrics in engine.publisher.messages)
    assert 0 < first < 0.01
    assert 0 < second < 0.01
    assert engine.empty_steps == 2


def test_a_paused_session_is_not_queued(tiny_model: str) -> None:
    """ENG-08, CASE-08: A streaming session that waits for input has nothing to run and is not counted (D-4);
    with the parity switch it is a queued prefill of all its tokens, as the reference has it.
    """
    from forwardpass.engines.vllm.attach import record_to

    engine = BareEngine(build_scheduler(tiny_model))
    engine.scheduler.add_request(make_request("s", numbers(40), 5, resumable=True))
    engine.run()
    assert engine.scheduler.requests["s"].status.name == "WAITING_FOR_STREAMING_REQ"

    strict, parity = (
        record_to(ListPublisher(), engine.scheduler, SourceSettings(count_paused_sessions=count))
        for count in (False, True)
    )
    assert strict.queues.read(0.0) == QueuedRequestMetrics()
    assert parity.queues.read(0.0) == QueuedRequestMetrics(1, 45, 0.0, 0, 0, 0.0)


def test_a_continued_session_is_a_prefill_of_its_new_input(tiny_model: str) -> None:
    """CASE-08: New input makes a session a prefill again: what it holds is read, its length is everything."""
    engine = BareEngine(build_scheduler(tiny_model))
    engine.scheduler.add_request(make_request("s", numbers(40), 5, resumable=True))
    engine.run()
    before = len(engine.publisher.messages)
    engine.scheduler.add_request(make_request("s", numbers(30, start=300), 2, resumable=True))
    engine.run()

    again = passes(engine)[before]
    assert again.num_prefill_requests == 1
    assert (again.sum_prefill_tokens, again.sum_prefill_kv_tokens) == (30, 44)


def test_a_prompt_of_embeddings_counts_its_rows(tiny_model: str) -> None:
    """ENG-07, CASE-10: A prompt without token ids has the length of its embeddings (D-5)."""
    import torch

    engine = BareEngine(build_scheduler(tiny_model))
    for name, length in (("a", 24), ("b", 8)):
        request = make_request(name, None, 1, prompt_embeds=torch.zeros(length, 64))  # type: ignore[arg-type]
        engine.scheduler.add_request(request)
    engine.run()

    assert passes(engine) == [ScheduledRequestMetrics(2, 32, 64.0, 0, 0, 0, 0.0)]


def test_a_request_that_waits_for_its_grammar_is_a_queued_prefill(tiny_model: str) -> None:
    """CASE-09: Compiling a grammar is part of waiting: the prompt is queued, whichever queue has it."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    sampling = SamplingParams(max_tokens=3, structured_outputs=StructuredOutputsParams(regex="a+"))
    engine = BareEngine(build_scheduler(tiny_model))
    engine.scheduler.add_request(make_request("g", numbers(33), 3, sampling=sampling))
    engine.scheduler.add_request(make_request("a", numbers(10), 4))
    for _ in range(3):
        engine.step()

    assert set(queues(engine)) == {QueuedRequestMetrics(1, 33, 0.0, 0, 0, 0.0)}


def remote_scheduler(model: str) -> Any:
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="RemoteEverything",
        kv_connector_module_path="kv_connector_stub",
        kv_role="kv_both",
    )
    return build_scheduler(model, kv_transfer=transfer)


def limit_running(scheduler: Any, requests: int) -> None:
    """Admit no more than ``requests`` at once; before vLLM 0.31 the limit was that of running ones."""
    active = hasattr(scheduler, "max_num_active_reqs")
    setattr(scheduler, "max_num_active_reqs" if active else "max_num_running_reqs", requests)


def test_kv_in_transit_is_a_queued_decode_and_arrives_as_a_prefill_of_one_token(tiny_model: str) -> None:
    """ENG-04, ENG-08, CASE-02, CASE-03, TRAP-15: On the decode side of a disaggregated pair a request whose
    KV is on its way waits, in the second queue, as a decode of the length in transit, also while only empty
    steps run (D-3).
    When it has arrived the request is one prefill of one token that reads the rest.
    """
    engine = BareEngine(remote_scheduler(tiny_model))
    engine.scheduler.add_request(make_request("r", numbers(100), 3))
    engine.step()
    engine.step()
    moving = QueuedRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=100)
    assert engine.publisher.messages == []
    assert waiting_now(engine) == moving
    engine.received = {"r"}
    engine.run(20)

    assert passes(engine)[0] == ScheduledRequestMetrics(1, 1, 0.0, 99, 0, 0, 0.0)
    assert passes(engine)[1] == ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=100)


def test_prompts_and_kv_in_transit_wait_in_two_queues(tiny_model: str) -> None:
    """ENG-08, TRAP-03: Both queues are scanned: transfers in one, prompts in the other."""
    engine = BareEngine(remote_scheduler(tiny_model))
    limit_running(engine.scheduler, 1)
    engine.scheduler.add_request(make_request("far", numbers(64), 9))
    engine.step()
    engine.received = {"far"}
    engine.step()
    engine.step()
    for name, length in (("b", 40), ("c", 44)):
        engine.scheduler.add_request(make_request(name, numbers(length, start=200), 2))
    engine.step()

    assert queues(engine)[-1] == QueuedRequestMetrics(2, 84, 4.0, 0, 0, 0.0)
    limit_running(engine.scheduler, 8)
    engine.step()
    assert queues(engine)[-1].num_decode_requests == 2
    assert queues(engine)[-1].sum_decode_kv_tokens == 84


def test_throttling_of_prefills_passes_through(tiny_model: str) -> None:
    """The optional argument of ``schedule`` reaches vLLM."""
    engine = BareEngine(build_scheduler(tiny_model))
    scheduler = engine.scheduler
    scheduler.add_request(make_request("a", numbers(10), 9))
    engine.step()
    scheduler.add_request(make_request("b", numbers(50, start=300), 9))

    assert set(scheduler.schedule(throttle_prefills=True).num_scheduled_tokens) == {"a"}


def test_a_worker_id_can_be_set_late(tiny_model: str) -> None:
    """WIRE-46, TRAP-05: The scheduler, and the engine core's utility call, rename the running publisher
    (D-15).
    """
    from vllm.v1.engine.core import EngineCore

    from forwardpass.engines.vllm import compat

    scheduler = build_scheduler(tiny_model)
    assert compat.offer_utility()

    core = EngineCore.__new__(EngineCore)  # the call touches nothing but the scheduler
    core.scheduler = scheduler
    assert getattr(core, compat.UTILITY)("777") is True
    assert scheduler.publisher.worker_id == "777"


def test_shutdown_stops_the_publisher_first(tiny_model: str) -> None:
    """``Scheduler.shutdown()`` sends what is queued; calling it again does no harm."""
    scheduler = build_scheduler(tiny_model)
    scheduler.shutdown()
    scheduler.shutdown()

    assert scheduler.publisher.shutdowns == 2


def schedule_trace(
    model: str, cls: type | None, depth: int, *, asynchronous: bool, **more: Any
) -> list[tuple[dict[str, int], list[list[int]]]]:
    """Return what a fixed workload schedules, step by step, and the tokens it sends to the model."""
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler = build_scheduler(
        model, cls=cls, async_scheduling=asynchronous, blocks=26, max_batched_tokens=96, **more
    )
    for name in range(20):
        scheduler.add_request(make_request(f"r{name}", numbers(30 + 23 * name % 200), 10 + name))
    trace, in_flight = [], []
    while scheduler.has_requests() or in_flight:
        while scheduler.has_requests() and len(in_flight) < depth:
            output = scheduler.schedule()
            ids = list(output.num_scheduled_tokens)
            final = [not scheduler.requests[each].is_prefill_chunk for each in ids]
            in_flight.append((output, ids, final))
            sent = output.scheduled_cached_reqs.new_token_ids
            trace.append((dict(output.num_scheduled_tokens), [list(tokens) for tokens in sent]))
        output, ids, final = in_flight.pop(0)
        result = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: index for index, each in enumerate(ids)},
            sampled_token_ids=[[3] if last else [] for last in final],
        )
        scheduler.update_from_output(output, result)
        assert len(trace) < 5000
    return trace


@pytest.mark.parametrize(
    ("asynchronous", "depth", "stages"),
    [(False, 1, 1), (True, 2, 1), (False, 3, 3)],
    ids=["sync", "async", "sync-pipeline"],
)
def test_we_schedule_exactly_as_vllm_does(
    tiny_model: str, asynchronous: bool, depth: int, stages: int
) -> None:
    """ENG-01, TRAP-01: Our subclass schedules the same tokens for the same requests in the same steps, and
    sends the same tokens, as vLLM's own scheduler of that mode, also where a synchronous engine has a batch
    in each of its pipeline stages: there the asynchronous class would run tokens that are not known yet.
    """
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    stock = AsyncScheduler if asynchronous else Scheduler
    ours, theirs = (
        schedule_trace(tiny_model, cls, depth, asynchronous=asynchronous, pipeline_stages=stages)
        for cls in (None, stock)
    )
    assert ours == theirs
    if stages > 1:
        other = schedule_trace(tiny_model, AsyncScheduler, depth, asynchronous=False, pipeline_stages=stages)
        assert [] in other[1][1], "the asynchronous class sends a request without its token"
        assert all(all(sent) for _, sent in ours)


def test_the_pass_ends_when_its_output_arrives(tiny_model: str) -> None:
    """Time that vLLM spends on taking in an output belongs to the next period, not to this pass."""
    engine = BareEngine(build_scheduler(tiny_model))
    scheduler, clock = engine.scheduler, engine.clock
    scheduler.add_request(make_request("a", numbers(10), 3))
    take_in = scheduler._update_request_with_output

    def slowly(*args: Any, **kwargs: Any) -> Any:
        clock.advance(5.0)
        return take_in(*args, **kwargs)

    scheduler._update_request_with_output = slowly
    output = scheduler.schedule()
    expected = engine.oracle.scheduled(scheduler, output)
    clock.advance(0.25)
    scheduler.update_from_output(output, engine._model_output(output, expected))

    assert engine.publisher.messages[-1].wall_time == pytest.approx(0.25)
