"""Runs real vLLM engines in this process and writes down, pass by pass, what ran and what was reported.

    python watched_run.py MODEL CASE.json …

Each case is one engine: ``{"name", "engine": arguments of LLM, "requests": […]}``, and perhaps ``"async"``,
``"streamed"`` (a real publisher; nothing is written down), ``"abort": {"at", "requests"}``, ``"stall":
{"at", "seconds"}`` (the next pass takes longer), ``"dummies_first"`` and ``"dummy_batches"`` (how many at
the start and the end) and seconds to wait at the start and the end. A request is ``{"prompt", "tokens"}``
and perhaps ``"at"`` (the engine step before which it is added), ``"regex"``, ``"temperature"``. One JSON line
per case is printed.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import traceback
from typing import Any

from inprocess_run import OURS, keep_async_scheduling

WATCHED = "watched_scheduler.WatchedScheduler"
MAX_STEPS = 4000


class Run:
    """One engine and its case."""

    def __init__(self, model: str, case: dict[str, Any]) -> None:
        from vllm import LLM

        self.case = case
        more = case.get("engine", {})
        arguments = {
            "enforce_eager": True,
            "max_model_len": 1024,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 96,
            "disable_log_stats": False,
            "async_scheduling": "async" in case,
            "scheduler_cls": OURS if "streamed" in case else WATCHED,
        }
        llm = LLM(model, **(arguments | more))
        self.decode = llm.get_tokenizer().decode
        self.engine = llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.outputs: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def add(self, name: str, request: dict[str, Any]) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        regex = request.get("regex")
        params = SamplingParams(
            max_tokens=request["tokens"],
            ignore_eos=not regex,
            temperature=request.get("temperature", 0),
            structured_outputs=StructuredOutputsParams(regex=regex) if regex else None,
        )
        self.engine.add_request(name, {"prompt_token_ids": request["prompt"]}, params)

    def events(self, step: int) -> None:
        case = self.case
        for number, request in enumerate(case["requests"]):
            if request.get("at", 0) == step:
                self.add(f"r{number}", request)
        if case.get("abort", {}).get("at") == step:
            self.engine.abort_request(case["abort"]["requests"])
        if case.get("stall", {}).get("at") == step:
            self.stall(case["stall"]["seconds"])

    def stall(self, seconds: float) -> None:
        """Let the next pass take ``seconds`` longer."""
        executor = self.core.model_executor
        execute = executor.execute_model

        def slowly(*args: Any, **kwargs: Any) -> Any:
            executor.execute_model = execute
            time.sleep(seconds)
            return execute(*args, **kwargs)

        executor.execute_model = slowly

    def serve(self) -> None:
        last = max(request.get("at", 0) for request in self.case["requests"])
        for step in range(MAX_STEPS):
            self.events(step)
            if step > last and not self.engine.has_unfinished_requests():
                return
            for output in self.engine.step():
                self.outputs[output.request_id] = list(output.outputs[0].token_ids)
                self.cached[output.request_id] = output.num_cached_tokens or 0
        raise AssertionError(f"not done after {MAX_STEPS} steps")

    def run_dummy_batches(self, count: int) -> int:
        """Do what a rank without work does so that the others can go on; return how much was reported."""
        if not count:
            return 0
        publisher = self.core.scheduler.publisher
        before = len(publisher.messages)
        for _ in range(count):
            self.core.execute_dummy_batch()
        return len(publisher.messages) - before

    def said(self) -> dict[str, Any]:
        scheduler = self.core.scheduler
        metrics = {metric.name: getattr(metric, "value", None) for metric in self.engine.get_metrics()}
        return {
            "name": self.case["name"],
            "outputs": self.outputs,
            "texts": {name: self.decode(tokens) for name, tokens in self.outputs.items()},
            "cached": self.cached,
            "async": self.core.batch_queue is not None,
            "synchronous": not scheduler.vllm_config.scheduler_config.async_scheduling,
            "scheduler": type(scheduler).__name__,
            "passes": getattr(scheduler, "passes", []),
            "failures": getattr(getattr(scheduler, "_forwardpass", None), "failures", None),
            "preemptions": metrics.get("vllm:num_preemptions"),
            "drafts": metrics.get("vllm:spec_decode_num_draft_tokens"),
            "accepted": metrics.get("vllm:spec_decode_num_accepted_tokens"),
        }


def run(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """Serve one case."""
    os.environ.update(case.get("env", {}))
    this = Run(model, case)
    time.sleep(case.get("settle_seconds", 0.0))
    this.run_dummy_batches(case.get("dummies_first", 0))
    this.serve()
    time.sleep(case.get("idle_seconds", 0.0))
    said = this.said()
    if "dummy_batches" in case:
        said["reported_of_dummies"] = this.run_dummy_batches(case["dummy_batches"])
    this.core.shutdown()
    return said


def main() -> None:
    """Run every case in turn; a case that cannot run says why."""
    model, *cases = sys.argv[1:]
    wanted = [json.loads(case) for case in cases]
    if any("async" in case for case in wanted):
        keep_async_scheduling()
    for case in wanted:
        try:
            said = run(model, case)
        except Exception as error:  # noqa: BLE001  boundary: the test reads it
            traceback.print_exc()
            said = {"name": case["name"], "error": f"{type(error).__name__}: {error}"}
        print("\nRESULT " + json.dumps(said), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
