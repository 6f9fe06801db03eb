"""Knows how to keep vLLM's real scheduler, without a worker or a model, under a load that does not change.

The engine is always full and the queue always as long as asked for: when a request finishes, the next one
is admitted and another joins the queue's end. In a *busy* load every request generates 256 tokens, so of N
running requests N/256 finish in each pass; in a *steady* one nothing finishes.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness import is_quick
from scheduler_ways import OURS, REFERENCE, Reader

__all__ = ["Lane", "Load", "Sample", "model_folder"]

ROOT = Path(__file__).resolve().parent.parent
OUTPUT_TOKENS = 256
STEADY_TOKENS = 1700
DEVICE_SECONDS = 0.001
"""Time for which the engine's thread waits for its device, in which publishing threads can run."""
MAX_WARMUP_PASSES = 400


class Load(NamedTuple):
    """How full the engine is."""

    scheduled: int
    waiting: int
    busy: bool = True

    def output_tokens(self, number: int) -> int:
        """Return how many tokens request ``number`` generates. Those that run first finish one by one."""
        if not self.busy:
            return STEADY_TOKENS
        return OUTPUT_TOKENS if number >= self.scheduled else 1 + number * OUTPUT_TOKENS // self.scheduled

    def __str__(self) -> str:
        return f"{self.scheduled} scheduled + {self.waiting} waiting" + ("" if self.busy else ", steady")


class Sample(NamedTuple):
    """What one pass cost the engine's thread, in microseconds."""

    added: float
    """Wall time in the overrides, vLLM's own methods taken off."""
    step_cpu: float
    """CPU time of schedule, update and of letting new requests in, vLLM's own part included."""
    admit_cpu: float | None
    """CPU time of one ``add_request``, where there was one."""


@cache
def model_folder() -> str:
    """Return the tiny model (its configuration is all that is read), made if need be."""
    out = ROOT / "build" / "tiny-qwen3"
    script = ROOT / "scripts" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=120)
    return str(out)


class Lane:
    """One scheduler under a load, with a reader at its stream if it has one."""

    def __init__(self, label: str, cls: type, load: Load, environment: dict[str, str]) -> None:
        """Build the scheduler; its stream's port is written to ``environment`` (the process's own)."""
        import bare_engine

        self._make_request = bare_engine.make_request
        self._load = load
        self._born = 0
        self._reader = Reader() if label in (REFERENCE, OURS) else None
        if self._reader is not None:
            environment["DYN_FORWARDPASS_METRIC_PORT"] = str(self._reader.port)
        before = set(threading.enumerate())
        self.scheduler = bare_engine.build_scheduler(
            model_folder(),
            cls=cls,
            async_scheduling=True,  # vLLM's default wherever there is a GPU
            blocks=60_000,
            max_seqs=load.scheduled,
            max_batched_tokens=8192,
        )
        others = set(threading.enumerate()) - before
        self._clocks = [time.pthread_getcpuclockid(thread.ident) for thread in others if thread.ident]
        self._refill()

    @property
    def behind_cpu(self) -> float:
        """CPU seconds so far of the threads that came with the scheduler: its publisher's."""
        return sum(map(time.clock_gettime, self._clocks))

    def fill(self) -> None:
        """Run until the engine is full of decoding requests."""
        for _ in range(MAX_WARMUP_PASSES):
            self.step()
            running = self.scheduler.running
            decoding = sum(request.num_output_tokens > 0 for request in running)
            if len(running) == self._load.scheduled and decoding >= 0.9 * len(running):
                return
        raise RuntimeError(f"{self._load} is not reached")

    def step(self) -> Sample:
        """Do one pass and let new requests in for those that finished."""
        scheduler = self.scheduler
        vllm_before = scheduler.vllm_seconds
        output, schedule_seconds, schedule_cpu = _timed(scheduler.schedule)
        if not is_quick():
            time.sleep(DEVICE_SECONDS)
        result = self._model_output(output)
        _, update_seconds, update_cpu = _timed(scheduler.update_from_output, output, result)
        added = schedule_seconds + update_seconds - (scheduler.vllm_seconds - vllm_before)
        admitted = self._refill()
        cpu = schedule_cpu + update_cpu + sum(admitted)
        one = min(admitted) * 1e6 if admitted else None
        return Sample(added * 1e6, cpu * 1e6, one)

    def _refill(self) -> list[float]:
        """Let requests in until as many are there as should be; return each one's CPU seconds."""
        took = []
        load, scheduler = self._load, self.scheduler
        for _ in range(load.scheduled + load.waiting - scheduler.get_num_unfinished_requests()):
            number, self._born = self._born, self._born + 1
            prompt = [(number * 7 + index) % 1000 for index in range(40 + 31 * number % 200)]
            request = self._make_request(f"r{number}", prompt, load.output_tokens(number))
            took.append(_timed(scheduler.add_request, request)[2])
        return took

    def _model_output(self, output: Any) -> Any:
        """Make up a token for every request whose known tokens are all computed."""
        from vllm.v1.outputs import ModelRunnerOutput

        ids = list(output.num_scheduled_tokens)
        requests = [self.scheduler.requests[each] for each in ids]
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={each: place for place, each in enumerate(ids)},
            sampled_token_ids=[[5] if r.num_computed_tokens >= r.num_tokens else [] for r in requests],
        )

    def close(self) -> None:
        """Stop the stream and its reader."""
        self.scheduler.shutdown()
        if self._reader is not None:
            self._reader.close()


def _timed(work: Any, *arguments: Any) -> tuple[Any, float, float]:
    """Return what ``work`` returns, with the seconds of wall time and of this thread's CPU it took."""
    cpu, begin = time.thread_time(), time.perf_counter()
    value = work(*arguments)
    end = time.perf_counter()
    return value, end - begin, time.thread_time() - cpu
