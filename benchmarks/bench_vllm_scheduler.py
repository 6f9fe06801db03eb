"""What a pass costs inside vLLM's real scheduler, without a model: our hooks against plain ones.

Needs an environment with vLLM; says so and measures nothing without. The scheduler really schedules and
takes in made-up tokens; the figure is the time spent in the hooks, per pass. The plain hooks are those of
``bench_extract.py``: a running variance, request by request, and a ``queue.Queue`` to a waiting thread.

Here the requests have not been touched since the step before, so what counts is memory that is not in the
processor's caches: reading 100 waiting requests took 7 us at once again and 74 after a step (2026-11, two
busy cores). ``bench_extract.py`` shows the hot side.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_extract import plain_pass, waiting_thread
from forwardpass.config.settings import PublisherSettings, SourceSettings
from forwardpass.publish.publisher import FpmPublisher
from forwardpass.wire.schema import ForwardPassMetrics
from harness import Result, from_rounds, rounds_for, run_script

ROOT = Path(__file__).resolve().parent.parent
SIZES = ((32, 0), (256, 100), (1024, 1000))
PASSES = 80


class PlainRecorder:
    """Counts a pass the plain way."""

    def __init__(self, scheduler: Any, hand_over: Callable[[ForwardPassMetrics], None]) -> None:
        self._scheduler = scheduler
        self._hand_over = hand_over
        self._lengths: dict[str, int] = {}

    def scheduled(self, output: Any) -> None:
        """Stamp the pass."""
        time.monotonic()

    def arrived(self) -> None:
        """Note the time."""
        time.monotonic()

    def finished(self, output: Any) -> None:
        """Count and hand over."""
        queues = (self._scheduler.waiting, self._scheduler.kv_holding_waiting)
        self._hand_over(plain_pass(output, queues, self._lengths, 0.001))


class TimedRecorder:
    """Passes calls on and adds up how long they took."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.seconds: list[float] = []
        self._now = 0.0

    def scheduled(self, output: Any) -> None:
        """Take a scheduled pass."""
        begin = time.perf_counter()
        self._recorder.scheduled(output)
        self._now = time.perf_counter() - begin

    def arrived(self) -> None:
        """Take an arrival."""
        begin = time.perf_counter()
        self._recorder.arrived()
        self._now += time.perf_counter() - begin

    def finished(self, output: Any) -> None:
        """Take a finished pass."""
        begin = time.perf_counter()
        self._recorder.finished(output)
        self.seconds.append(self._now + time.perf_counter() - begin)


def model_folder() -> str:
    """Return the tiny model, made if need be."""
    out = ROOT / "build" / "tiny-qwen3"
    script = ROOT / "scripts" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=120)
    return str(out)


def drive(model: str, scheduled: int, waiting: int, recorder_for: Callable[[Any], Any]) -> float:
    """Return the median seconds per pass in the hooks of a scheduler under that load."""
    from bare_engine import build_scheduler, make_request
    from vllm.v1.outputs import ModelRunnerOutput

    from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

    class Scheduler(ForwardPassScheduler):
        def open_recorder(self) -> Any:
            self.timed = TimedRecorder(recorder_for(self))
            return self.timed

    scheduler = build_scheduler(
        model, cls=Scheduler, blocks=60_000, max_seqs=scheduled, max_batched_tokens=8192
    )  # fmt: skip
    for number in range(scheduled + waiting):
        prompt = [(number * 7 + index) % 1000 for index in range(40 + 31 * number % 200)]
        scheduler.add_request(make_request(f"r{number}", prompt, 40 + number % 400))
    skipped = PASSES // 4  # prefills of the first batch
    for _ in range(PASSES + skipped):
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        sampled = [[] if scheduler.requests[each].is_prefill_chunk else [5] for each in ids]
        index = {each: place for place, each in enumerate(ids)}
        result = ModelRunnerOutput(req_ids=ids, req_id_to_index=index, sampled_token_ids=sampled)
        scheduler.update_from_output(output, result)
    return statistics.median(scheduler.timed.seconds[skipped:])


def main() -> list[Result]:
    """Compare both kinds of hooks at every size."""
    os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
    try:
        import vllm.v1.core.sched.async_scheduler  # noqa: F401
    except ImportError:
        print("bench_vllm_scheduler: skipped: no vllm", file=sys.stderr)
        return []
    from forwardpass.engines.vllm.attach import record_to

    sys.path.insert(0, str(ROOT / "tests" / "engine"))
    model, results = model_folder(), []
    publisher = FpmPublisher(PublisherSettings(base_port=0, worker_id="1"), dp_rank=0)
    with waiting_thread() as hand_over:
        ways: dict[str, Callable[[Any], Any]] = {
            "running variance": lambda scheduler: PlainRecorder(scheduler, hand_over),
            "forwardpass": lambda scheduler: record_to(publisher, scheduler, SourceSettings()),
        }
        for size in SIZES:
            figures: dict[str, list[float]] = {label: [] for label in ways}
            for number in range(rounds_for(5)):
                order = list(ways.items())
                for label, recorder_for in order if number % 2 == 0 else reversed(order):
                    figures[label].append(drive(model, *size, recorder_for) * 1e6)
            name = f"inside vllm, {size[0]} scheduled + {size[1]} waiting"
            results.append(from_rounds(name, figures))
    publisher.shutdown()
    return results


if __name__ == "__main__":
    run_script(main, __doc__)
