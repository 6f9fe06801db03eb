"""KV from elsewhere, on vLLM's real scheduler: loads that arrive or fail, blocks that others read."""

from __future__ import annotations

from typing import Any

import pytest
from bare_engine import BLOCK_TOKENS, BareEngine, build_scheduler, make_request

from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.usefixtures("vllm")]


def numbers(length: int, start: int = 0) -> list[int]:
    return [(start + index) % 1000 for index in range(length)]


def planned(name: str, prompt: list[int], tokens: int, *, load: int, hold: bool = False, **more: Any) -> Any:
    """Return a request of which ``load`` tokens are elsewhere."""
    plan = {"tokens": load, "is_async": more.pop("is_async", False), "unknown": 0, "hold": hold}
    request = make_request(name, prompt, tokens, **more)
    request.kv_transfer_params = plan
    return request


def connected(model: str, **more: Any) -> Any:
    from vllm.config import KVTransferConfig

    transfer = KVTransferConfig(
        kv_connector="AsPlanned",
        kv_connector_module_path="kv_connector_stub",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
    )
    return build_scheduler(model, kv_transfer=transfer, **more)


class Engine(BareEngine):
    """An engine whose next output brings a report on KV with it."""

    report: Any = None

    def _model_output(self, output: Any, expected: Any) -> Any:
        model_output = super()._model_output(output, expected)
        if self.report is not None:
            model_output.kv_connector_output, self.report = self.report, None
        return model_output


def passes(engine: BareEngine) -> list[ScheduledRequestMetrics]:
    return [metrics.scheduled_requests for metrics in engine.publisher.messages]


def lose_block(engine: Engine, name: str, index: int) -> None:
    """Let the next output say that one block of a request could not be loaded."""
    from vllm.v1.outputs import KVConnectorOutput

    (blocks,) = engine.scheduler.kv_cache_manager.get_block_ids(name)
    engine.report = KVConnectorOutput(invalid_block_ids={blocks[index]})


def settle(engine: Engine, output: Any, token: int = 7) -> None:
    """Give one output back: a token for each request that has computed all it knows."""
    from vllm.v1.outputs import ModelRunnerOutput

    engine.clock.advance(0.01)
    ids = list(output.num_scheduled_tokens)
    samples = [not engine.scheduler.requests[each].is_prefill_chunk for each in ids]
    report, engine.report = engine.report, None
    result = ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: index for index, each in enumerate(ids)},
        sampled_token_ids=[[token] if sampled else [] for sampled in samples],
        kv_connector_output=report,
    )
    engine.scheduler.update_from_output(output, result)
    assert engine.scheduler.recorder.failures == 0


def test_part_of_a_prompt_that_is_loading_is_a_queued_decode(tiny_model: str) -> None:
    """CASE-04: In an aggregated engine, too, a request that waits for KV is a queued decode of what is being
    loaded; the rest of its prompt is a prefill that reads it.
    """
    engine = Engine(connected(tiny_model))
    request = planned("r", numbers(100), 2, load=3 * BLOCK_TOKENS, is_async=True)
    engine.scheduler.add_request(request)
    engine.step()
    assert engine.publisher.waiting_now() == QueuedRequestMetrics(0, 0, 0.0, 1, 96, 0.0)
    engine.received = {"r"}
    engine.run(20)

    assert engine.publisher.waiting_now() == QueuedRequestMetrics()
    assert passes(engine)[0] == ScheduledRequestMetrics(1, 4, 0.0, 96, 0, 0, 0.0)


def test_a_prompt_whose_kv_failed_to_load_is_computed(tiny_model: str) -> None:
    """CASE-15: A synchronous load that turns out bad sets a request back while it runs, still without output:
    what is computed after all is a prefill with the length of the prompt.
    """
    engine = Engine(connected(tiny_model))
    engine.scheduler.add_request(planned("r", numbers(100), 2, load=3 * BLOCK_TOKENS))
    output = engine.scheduler.schedule()
    assert dict(output.num_scheduled_tokens) == {"r": 4}
    lose_block(engine, "r", 1)
    settle(engine, output)
    again = engine.scheduler.schedule()
    settle(engine, again)

    first, second = passes(engine)
    assert first == ScheduledRequestMetrics(1, 4, 0.0, 96, 0, 0, 0.0)
    assert second == ScheduledRequestMetrics(1, 68, 0.0, 32, 0, 0, 0.0)


def test_a_context_whose_kv_failed_to_load_is_computed_again(tiny_model: str) -> None:
    """CASE-15: After a preemption a request may get its context from a store; if that fails, what is computed
    again is a prefill of all that is known (D-2), beside decodes that stay decodes.
    """
    scheduler = connected(tiny_model, max_batched_tokens=64)
    engine = Engine(scheduler)
    request = planned("r", numbers(100), 40, load=0)
    scheduler.add_request(request)
    while engine.generated < 20:
        engine.step()
    scheduler.reset_prefix_cache(reset_running_requests=True)
    known = request.num_tokens
    request.kv_transfer_params["tokens"] = 3 * BLOCK_TOKENS
    before = len(engine.publisher.messages)

    output = scheduler.schedule()
    assert dict(output.num_scheduled_tokens) == {"r": known - 96}
    lose_block(engine, "r", 0)
    request.kv_transfer_params["tokens"] = 0
    settle(engine, output)
    scheduler.add_request(make_request("new", numbers(8, start=500), 5))
    for _ in range(4):
        settle(engine, scheduler.schedule())

    resumed, chunk, mixed, *decodes = passes(engine)[before:]
    assert resumed == ScheduledRequestMetrics(1, known - 96, 0.0, 96, 0, 0, 0.0)
    assert chunk == ScheduledRequestMetrics(1, 64, 0.0, 0, 0, 0, 0.0)
    assert (mixed.num_prefill_requests, mixed.sum_prefill_tokens) == (2, known - 64 + 8)
    assert mixed.sum_prefill_kv_tokens == 64
    assert mixed.var_prefill_length == ((known - 8) / 2) ** 2
    assert [each.num_decode_requests for each in decodes] == [2, 2]
    assert decodes[0].sum_decode_kv_tokens == known + 8


def test_blocks_that_others_still_read_are_nobodys_work(tiny_model: str) -> None:
    """CASE-18: On a prefill instance a request is finished when its KV is there for others to read: it is
    neither queued nor running while they do, and the steps until then are no passes.
    """
    from vllm.v1.outputs import KVConnectorOutput

    engine = Engine(connected(tiny_model))
    engine.scheduler.add_request(planned("r", numbers(50), 1, load=0, hold=True))
    for _ in range(5):
        engine.step()
        assert engine.publisher.waiting_now() == QueuedRequestMetrics()
    assert engine.scheduler.connector.held == ["r"]
    assert engine.passes == 1
    assert engine.empty_steps >= 2

    engine.report = KVConnectorOutput(finished_sending={"r"})
    engine.run(5)
    assert engine.scheduler.requests == {}
