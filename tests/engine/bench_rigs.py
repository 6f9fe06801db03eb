"""Knows how a benchmark's driver is tried on vLLM: on its real scheduler alone, and in a real engine."""

from __future__ import annotations

from typing import Any

from bare_engine import build_scheduler

from forwardpass.wire.schema import ScheduledRequestMetrics

__all__ = ["BareRig", "EngineRig", "by_hand", "made_up_output"]


def by_hand(base: type) -> type:
    """Return a scheduler class derived from ``base`` whose next output may be given by hand."""
    from forwardpass.engines.vllm.bench_steps import carry_out

    class ByHand(base):  # type: ignore[misc]
        next_step: Any = None

        def schedule(self, *args: Any, **kwargs: Any) -> Any:
            step, self.next_step = self.next_step, None
            return super().schedule(*args, **kwargs) if step is None else carry_out(self, step)

        def has_requests(self) -> bool:
            return True

    return ByHand


class BareRig:
    """vLLM's scheduler without a model: every request whose known tokens are all computed gets a token."""

    def __init__(self, model: str, *, async_scheduling: bool, **options: Any) -> None:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler
        from vllm.v1.core.sched.scheduler import Scheduler

        from forwardpass.engines.vllm.bench_driver import VllmDriver
        from forwardpass.engines.vllm.bench_measure import StepCounter

        cls = by_hand(AsyncScheduler if async_scheduling else Scheduler)
        options = {"max_seqs": 8, "max_model_len": 256, "blocks": 120} | options
        self.scheduler = build_scheduler(model, cls=cls, async_scheduling=async_scheduling, **options)
        self.driver = VllmDriver(self.scheduler)
        self._counter = StepCounter()

    def step(self, output: Any = None) -> ScheduledRequestMetrics | None:
        """Run ``output``, or what vLLM schedules, to the end."""
        scheduled = self.schedule(output)
        counter = self._counter
        ran = counter.of_scheduler(scheduled) if output is None else counter.of_hand_made(output)
        self.update(scheduled)
        return ran

    def schedule(self, output: Any = None) -> Any:
        """Return vLLM's record of the next step."""
        self.scheduler.next_step = output
        return self.scheduler.schedule()

    def update(self, scheduled: Any) -> None:
        """Let the scheduler have what came of a step."""
        self.scheduler.update_from_output(scheduled, made_up_output(self.scheduler, scheduled))


def made_up_output(scheduler: Any, scheduled: Any) -> Any:
    """Return what a model would make of a step: a token for each request whose known tokens are computed."""
    from vllm.v1.outputs import ModelRunnerOutput

    ids = list(scheduled.num_scheduled_tokens)
    requests = [scheduler.requests.get(each) for each in ids]
    done = [each is not None and each.num_computed_tokens >= each.num_tokens for each in requests]
    return ModelRunnerOutput(
        req_ids=ids,
        req_id_to_index={each: at for at, each in enumerate(ids)},
        sampled_token_ids=[[5] if each else [] for each in done],
        logprobs=None,
        prompt_logprobs_dict={},
        pooler_output=[],
    )


class EngineRig:
    """A real engine core in this process, with a model that computes."""

    def __init__(self, core: Any) -> None:
        from forwardpass.engines.vllm.bench_driver import VllmDriver
        from forwardpass.engines.vllm.bench_measure import StepCounter

        self._core = core
        self.scheduler = core.scheduler
        self.driver = VllmDriver(self.scheduler)
        self._counter = StepCounter()

    def step(self, output: Any = None) -> ScheduledRequestMetrics | None:
        """Let the engine core run one step to the end."""
        self.scheduler.next_step = output
        seen: list[Any] = []
        plain = type(self.scheduler).schedule

        def schedule(*args: Any, **kwargs: Any) -> Any:
            scheduled = plain(self.scheduler, *args, **kwargs)
            seen.append(scheduled)
            return scheduled

        self.scheduler.schedule = schedule
        try:
            self._core.step()
        finally:
            del self.scheduler.schedule
        (scheduled,) = seen
        if output is None:
            return self._counter.of_scheduler(scheduled)
        return self._counter.of_hand_made(output)
