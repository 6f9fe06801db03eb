"""Knows how to drive vLLM's real scheduler without a worker or a model, in sync and in async order.

The driver stands where vLLM's engine core stands: it schedules, "runs" the batch by making up a token for
every request whose known tokens are all computed, and gives the output back. Every message that our
scheduler emits on the way is compared with what ``fpm_oracle`` counted on its own.
"""

from __future__ import annotations

from collections import deque
from functools import cache
from typing import Any

from fpm_oracle import Expected, Oracle

from forwardpass.config.settings import SourceSettings
from forwardpass.testing.clock import ManualClock
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

BLOCK_TOKENS = 32


@cache
def scheduler_class() -> type:
    """Return our scheduler with a publisher that a test can read."""
    from forwardpass.engines.vllm import compat
    from forwardpass.engines.vllm.attach import record_to
    from forwardpass.engines.vllm.recorder import Recorder
    from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

    class ListedScheduler(ForwardPassScheduler):
        count_paused_sessions = False

        def open_recorder(self) -> Recorder:
            self.publisher = ListPublisher(compat.rank_facts(self).dp_rank, worker_id="")
            self.clock = ManualClock()
            settings = SourceSettings(count_paused_sessions=self.count_paused_sessions)
            self.recorder = record_to(self.publisher, self, settings, self.clock)
            return self.recorder

    return ListedScheduler


def build_scheduler(
    model: str,
    *,
    cls: type | None = None,
    async_scheduling: bool = False,
    runner_v2: bool = False,
    blocks: int = 200,
    max_seqs: int = 16,
    max_batched_tokens: int = 256,
    max_model_len: int = 2048,
    policy: str = "fcfs",
    kv_transfer: Any = None,
    chunked: bool = True,
    caching: bool = True,
    long_prefill_tokens: int = 0,
    drafts: int = 0,
    tokenizer: bool = False,
    dp_index: int = 0,
    pipeline_stages: int = 1,
    loras: int = 0,
    recurrent: bool = False,
) -> Any:
    """Return a scheduler as vLLM's engine core would build it.

    ``drafts`` is the number of speculative tokens. With ``tokenizer`` there may be structured output.
    ``loras`` is how many adapters may run at once; 0 is a model without adapters. A ``recurrent`` model has,
    beside its attention, a state that is kept at block boundaries.
    """
    import torch
    from vllm.config import (
        CacheConfig,
        DeviceConfig,
        LoRAConfig,
        ModelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.v1.core.kv_cache_utils import init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, MambaSpec
    from vllm.v1.structured_output import StructuredOutputManager

    init_none_hash(_hash())
    cache_config = CacheConfig(block_size=BLOCK_TOKENS, enable_prefix_caching=caching)
    cache_config.num_gpu_blocks = blocks
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_seqs,
            max_num_batched_tokens=max_batched_tokens,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=long_prefill_tokens,
            async_scheduling=async_scheduling,
            policy=policy,
        ),
        model_config=ModelConfig(
            model=model,
            skip_tokenizer_init=not tokenizer,
            dtype="bfloat16",
            max_model_len=max_model_len,
            enforce_eager=True,
        ),
        cache_config=cache_config,
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=kv_transfer,
    )
    config.scheduler_config.async_scheduling = async_scheduling  # the CPU platform forces it off
    # Set late, because vLLM would look for as many devices, drop the index of a dense rank, refuse
    # n-gram drafts in async order (it is the drafter that cannot, not the scheduler) and load adapters.
    config.parallel_config.pipeline_parallel_size = pipeline_stages
    config.parallel_config.data_parallel_index = dp_index
    if drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=drafts, prompt_lookup_max=3, prompt_lookup_min=1
        )
    if loras:
        config.lora_config = LoRAConfig(max_loras=loras)
    spec = FullAttentionSpec(block_size=BLOCK_TOKENS, num_kv_heads=2, head_size=32, dtype=torch.bfloat16)
    groups = [KVCacheGroupSpec(["layer"], spec)]
    if recurrent:
        cache_config.mamba_cache_mode = "align"
        state = MambaSpec(
            block_size=BLOCK_TOKENS, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align"
        )
        groups.append(KVCacheGroupSpec(["state"], state))
    scheduler = (cls or scheduler_class())(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
        structured_output_manager=StructuredOutputManager(config),
        block_size=BLOCK_TOKENS,
        log_stats=True,
    )
    scheduler.use_v2_model_runner = runner_v2
    return scheduler


@cache
def _hash() -> Any:
    from vllm.utils.hashing import sha256

    return sha256


@cache
def _hasher() -> Any:
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher

    return get_request_block_hasher(BLOCK_TOKENS, _hash())


def make_request(request_id: str, prompt: list[int], output_tokens: int, **more: Any) -> Any:
    """Return a request that generates exactly ``output_tokens`` tokens."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    sampling = more.pop("sampling", None) or SamplingParams(
        max_tokens=output_tokens, ignore_eos=True, temperature=0
    )
    return Request(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling_params=sampling,
        pooling_params=None,
        block_hasher=_hasher(),
        **more,
    )


class BareEngine:
    """vLLM's engine core without a model. ``depth`` is how many batches may be in flight."""

    def __init__(self, scheduler: Any, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.depth = depth
        self.publisher: ListPublisher = scheduler.publisher
        self.clock: ManualClock = scheduler.clock
        self.oracle = Oracle()
        self.in_flight: deque[tuple[Any, Expected, float]] = deque()
        self.received: set[str] = set()
        """Requests whose KV transfer is done, to be reported with the next output."""
        self.passes = 0
        self.empty_steps = 0
        self.expected: list[ForwardPassMetrics] = []
        """What was not compared yet."""
        self.compared = 0
        """Messages that were."""
        self.generated = 0
        self.cached_tokens: dict[str, int] = {}
        """Prefix hits by request, as vLLM reports them to its client."""
        self._last_output_at = 0.0

    def step(self) -> bool:
        """Do one step of the engine core; return whether there was anything to do."""
        scheduler = self.scheduler
        if len(self.in_flight) < self.depth and scheduler.has_requests():
            self.oracle.before_schedule(scheduler)
            output = scheduler.schedule()
            expected = self.oracle.scheduled(scheduler, output)
            self.in_flight.append((output, expected, self.clock.monotonic()))
            ran = output.total_num_scheduled_tokens > 0
            if len(self.in_flight) < self.depth and (ran or scheduler.has_requests()):
                return True
        if not self.in_flight:
            return False
        self._settle()
        return True

    def run(self, max_steps: int = 5000) -> None:
        """Step until nothing is left to do."""
        for _ in range(max_steps):
            if not self.step():
                return
        raise AssertionError(f"not done after {max_steps} steps")

    def _settle(self) -> None:
        output, expected, scheduled_at = self.in_flight.popleft()
        self.clock.advance(0.001 * (1 + self.passes % 7))
        results = self.scheduler.update_from_output(output, self._model_output(output, expected))
        self._count(results)
        self._check(output, expected.metrics(), self.oracle.queued(self.scheduler), scheduled_at)
        self.compare()

    def _check(
        self,
        output: Any,
        scheduled: ScheduledRequestMetrics,
        queue: QueuedRequestMetrics,
        scheduled_at: float,
    ) -> None:
        """Note what one pass should report; an empty step reports nothing, and heartbeats know what waits."""
        if output.total_num_scheduled_tokens == 0:
            self.empty_steps += 1
            self._last_output_at = 0.0
            assert self.publisher.waiting_now() == queue
            return
        self.passes += 1
        now = self.clock.monotonic()
        wall_time = now - (self._last_output_at or scheduled_at)
        self._last_output_at = now
        assert wall_time > 0
        self.expected.append(
            ForwardPassMetrics(wall_time=wall_time, scheduled_requests=scheduled, queued_requests=queue)
        )

    def compare(self) -> None:
        """Hold every message since the last time against what was expected: no more, no less."""
        messages = self.publisher.messages
        expected, self.expected = self.expected, []
        assert self.scheduler.recorder.failures == 0
        sent = messages[len(messages) - len(expected) :]
        assert len(messages) == self.compared + len(expected)
        self.compared = len(messages)
        for message, each in zip(sent, expected, strict=True):
            assert message.scheduled_requests == each.scheduled_requests
            assert message.queued_requests == each.queued_requests
            assert message.wall_time == each.wall_time

    def _model_output(self, output: Any, expected: Expected) -> Any:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        received, self.received = self.received, set()
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=[[7] if request_id in expected.samples else [] for request_id in ids],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
            kv_connector_output=KVConnectorOutput(finished_recving=received) if received else None,
        )

    def _count(self, results: dict[int, Any]) -> None:
        for outputs in results.values():
            for result in outputs.outputs:
                self.generated += len(result.new_token_ids)
                stats = getattr(result, "prefill_stats", None)
                if stats is not None:
                    self.cached_tokens[result.request_id] = stats.num_local_cached_tokens

    @property
    def scheduled_sums(self) -> dict[str, int]:
        """Sums over every emitted pass."""
        names = ("num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests")
        passes = [metrics.scheduled_requests for metrics in self.publisher.messages]
        return {name: sum(getattr(each, name) for each in passes) for name in names}
