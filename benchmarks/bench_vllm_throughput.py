"""What tracing costs a real vLLM on CPU: throughput with it against without, in pairs, in one engine.

Needs an environment with vLLM; measures nothing without. One engine serves the same batch of requests over
and over. Between two batches, when nothing runs, its scheduler is exchanged: vLLM's own (off), or ours with
its stream and a ``forwardpass record`` process that writes every pass to disk (on); while it is off the
recorder is stopped (``SIGSTOP``). So worker, weights and memory are the same. Pairs go off on, on off, …

The engine core and the model run in one process and one after the other (synchronous scheduling), so that
whatever is done on the engine's thread delays the next pass: nothing is hidden behind a device. The model
computes on every core, and its threads wait for each other: whatever else runs delays all of them. Three
models with dummy weights: a tiny one whose passes take two or three milliseconds, which no real model does, a
wider one, and one of the shape of the smallest model that is in common use (Qwen3-0.6B, but for the size of
its vocabulary).

The prefix cache is off; two pairs warm up. The interval is a bootstrap over pairs (``intervals.py``).
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from forwardpass.testing.ports import free_port
from harness import Result, from_rounds, is_quick, run_script
from intervals import ratio_interval
from scheduler_load import model_folder
from scheduler_ways import prepare_environment

OFF, ON = "tracing off", "tracing on"
PAIRS = {"tiny model": 60, "wider model": 40, "small real model": 40}
QUICK_PAIRS = 2
WARMUP_PAIRS = 2
REQUESTS = {"tiny model": 96, "wider model": 96, "small real model": 32}
QUICK_SHARE = 4  # a quarter of the requests
RUNNING = 32
GOAL = 1 / 0.99
MODELS: dict[str, dict[str, Any]] = {
    "tiny model": {},
    "wider model": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 64,
    },
    "small real model": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "dtype": "bfloat16",
    },
}
OUTPUT_TOKENS = {"tiny model": (40, 120), "wider model": (15, 45), "small real model": (6, 12)}
PROMPT_TOKENS = {"tiny model": (20, 200), "wider model": (20, 200), "small real model": (20, 60)}
TIMEOUT_SECONDS = 1500


class Engine:
    """A vLLM engine in this process whose scheduler can be exchanged."""

    def __init__(self, kind: str, requests: int, port: int) -> None:
        from vllm import LLM
        from vllm.v1.core.sched.scheduler import Scheduler

        built: dict[str, Any] = {}

        class KeptScheduler(Scheduler):  # type: ignore[misc]
            """vLLM's own; remembers what it was made of."""

            def __init__(self, **arguments: Any) -> None:
                built.update(arguments)
                super().__init__(**arguments)

        self._llm = LLM(
            model_folder(),
            load_format="dummy",
            hf_overrides=MODELS[kind],
            enforce_eager=True,
            enable_prefix_caching=False,
            max_model_len=1024,
            max_num_seqs=RUNNING,
            scheduler_cls=KeptScheduler,
            disable_log_stats=True,
        )
        self._core = self._llm.llm_engine.engine_core.engine_core
        os.environ["DYN_FORWARDPASS_METRIC_PORT"] = str(port)
        from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

        self._schedulers = {OFF: self._core.scheduler, ON: ForwardPassScheduler(**built)}
        self._batch = self._requests(kind, requests)

    def _requests(self, kind: str, requests: int) -> tuple[list[Any], list[Any]]:
        from vllm import SamplingParams

        rng = random.Random(7)
        low, high = OUTPUT_TOKENS[kind]
        prompts = [
            {"prompt_token_ids": [rng.randrange(3, 1000) for _ in range(rng.randrange(*PROMPT_TOKENS[kind]))]}
            for _ in range(requests)
        ]
        params = [
            SamplingParams(
                max_tokens=rng.randrange(low, high), ignore_eos=True, temperature=0, detokenize=False
            )
            for _ in prompts
        ]
        return prompts, params

    @property
    def tokens(self) -> int:
        """Tokens that one batch generates."""
        return sum(each.max_tokens for each in self._batch[1])

    def serve(self, way: str) -> float:
        """Serve the batch with one of the schedulers; return the seconds it took."""
        core, scheduler = self._core, self._schedulers[way]
        core.scheduler = scheduler
        gc.collect()
        begin = time.perf_counter()
        results = self._llm.generate(*self._batch, use_tqdm=False)
        took = time.perf_counter() - begin
        while core.scheduler.has_requests():  # the worker forgets what has finished
            core.step_fn()
        if sum(len(result.outputs[0].token_ids) for result in results) != self.tokens:
            raise RuntimeError("not every request was served whole")
        return took

    def close(self) -> int:
        """Stop; return how many passes ours has seen go out."""
        ours = self._schedulers[ON]
        ours.shutdown()
        if ours._forwardpass.failures:
            raise RuntimeError("the recorder failed")
        self._core.scheduler = self._schedulers[OFF]
        self._core.shutdown()
        return int(ours._forwardpass._publisher.counts().delivered)


def run_engine(kind: str, pairs: int, requests: int) -> dict[str, Any]:
    """Measure one model in this process; return the seconds of each batch and what was recorded."""
    prepare_environment()
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", FORWARDPASS_STRICT="1")
    port = free_port()
    engine = Engine(kind, requests, port)
    with tempfile.TemporaryDirectory() as folder:
        recorder = start_recorder(port, f"{folder}/fpm")
        try:
            took = measure(engine, recorder, pairs)
            published = engine.close()
            time.sleep(1.0)
            recorder.send_signal(signal.SIGINT)
            said, _ = recorder.communicate(timeout=60)
        finally:
            recorder.kill()
            recorder.wait(10)
        return {"took": took, "tokens": engine.tokens, "published": published, "recorded": said}


def start_recorder(port: int, prefix: str) -> subprocess.Popen[str]:
    """Start ``forwardpass record`` for the stream at ``port``; every pass goes to disk."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    command = [sys.executable, "-m", "forwardpass", "record", f"tcp://127.0.0.1:{port}"]
    options = ["--output", prefix, "--mode", "full", "--quiet", "--json"]
    process = subprocess.Popen(command + options, stdout=subprocess.PIPE, text=True, env=environment)
    time.sleep(2.0)  # it has connected
    return process


def measure(engine: Engine, recorder: subprocess.Popen[str], pairs: int) -> dict[str, list[float]]:
    """Return the seconds per batch, pair by pair."""
    took: dict[str, list[float]] = {OFF: [], ON: []}
    for number in range(-WARMUP_PAIRS, pairs):
        for way in (OFF, ON) if number % 2 == 0 else (ON, OFF):
            recorder.send_signal(signal.SIGCONT if way == ON else signal.SIGSTOP)
            seconds = engine.serve(way)
            if number >= 0:  # the first ones warm up
                took[way].append(seconds)
            print(f"  pair {number}, {way}: {seconds:.3f} s", file=sys.stderr, flush=True)
    recorder.send_signal(signal.SIGCONT)
    return took


def rows_written(said: dict[str, Any]) -> int:
    """Return how many rows were recorded. Raises ``RuntimeError`` if a message was lost on its way."""
    recorded = json.loads(said["recorded"])
    rows = int(recorded["trace"]["written"])
    if recorded["trace"]["dropped"] or recorded["relays"][0]["lost"] or rows < said["published"]:
        raise RuntimeError(f"tracing lost passes: {said}")
    return rows


def compared(kind: str, said: dict[str, Any]) -> Result:
    """Return the comparison of one model; the interval of the ratio of throughputs is in its note."""
    took, tokens = said["took"], said["tokens"]
    interval = ratio_interval(took[OFF], took[ON])
    note = (
        f"throughput on/off {interval}; {len(took[OFF])} pairs of batches of {tokens} tokens; "
        f"{said['published']} passes published, {rows_written(said)} rows written, none lost"
    )
    figures = {way: [seconds / tokens * 1e6 for seconds in took[way]] for way in (OFF, ON)}
    return from_rounds(f"real vLLM, {kind}, time per token", figures, goal=GOAL, note=note)


def main() -> list[Result]:
    """Measure every model, each in a process of its own."""
    try:
        import vllm  # noqa: F401
    except ImportError:
        print("bench_vllm_throughput: skipped: no vllm", file=sys.stderr)
        return []
    results = []
    for kind in MODELS:
        requests = REQUESTS[kind]
        size = (QUICK_PAIRS, requests // QUICK_SHARE) if is_quick() else (PAIRS[kind], requests)
        done = subprocess.run(
            [sys.executable, __file__, "engine", kind, *map(str, size)],
            stdout=subprocess.PIPE, text=True, check=True, timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
        results.append(compared(kind, json.loads(done.stdout.rpartition("RESULT ")[2])))
    return results


if __name__ == "__main__":
    if sys.argv[1:2] == ["engine"]:
        print("\nRESULT " + json.dumps(run_engine(sys.argv[2], *map(int, sys.argv[3:5]))), flush=True)
    else:
        run_script(main, __doc__)
