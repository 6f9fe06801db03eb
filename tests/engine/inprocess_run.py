"""Runs a real vLLM engine in this process, once per case, and writes what came out as JSON lines.

    python inprocess_run.py MODEL CASE.json …

A case is ``{"name", "env", "scheduler", "async", "idle_seconds"}``; scheduler is one of ``stock``, ``ours``,
``failing``. Each prints ``{"name", "prompts", "outputs", "cached"}`` or ``{"name", "error"}``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from typing import Any

OURS = "forwardpass.engines.vllm.scheduler.ForwardPassScheduler"
ROUNDS = 3
"""Batches per case; the second repeats the first one's prompts, so that prefixes hit."""


def keep_async_scheduling() -> None:
    """Let vLLM's CPU platform keep what the user asked for; it forces synchronous scheduling otherwise."""
    from vllm.platforms.cpu import CpuPlatform

    checked = CpuPlatform.check_and_update_config.__func__

    def check(cls: Any, config: Any) -> None:
        wanted = config.scheduler_config.async_scheduling
        checked(cls, config)
        config.scheduler_config.async_scheduling = wanted

    CpuPlatform.check_and_update_config = classmethod(check)


def scheduler_class(name: str) -> Any:
    """Return what ``scheduler_cls`` gets."""
    if name != "failing":
        return OURS if name == "ours" else None
    from forwardpass.config.settings import SourceSettings
    from forwardpass.engines.vllm.attach import record_to
    from forwardpass.engines.vllm.scheduler import ForwardPassScheduler

    class Broken:
        def watch(self, engine: Any) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(f"no {name} today")

    class FailingScheduler(ForwardPassScheduler):
        def open_recorder(self) -> Any:
            return record_to(Broken(), self, SourceSettings())

    return FailingScheduler


def prompts() -> list[list[int]]:
    """Return token prompts of mixed lengths, some longer than a batch may be."""
    rng = random.Random(5)
    return [[rng.randrange(3, 1000) for _ in range(rng.randrange(5, 260))] for _ in range(12)]


def run(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """Serve every batch of one case and return what came out."""
    from vllm import LLM, SamplingParams

    os.environ.update(case.get("env", {}))
    llm = LLM(
        model,
        enforce_eager=True,
        max_model_len=1024,
        max_num_seqs=8,
        max_num_batched_tokens=96,
        scheduler_cls=scheduler_class(case["scheduler"]),
        async_scheduling=bool(case.get("async")),
        disable_log_stats=True,
    )
    core = llm.llm_engine.engine_core.engine_core
    time.sleep(case.get("settle_seconds", 0.0))
    batches = [prompts(), prompts(), [[7] * 40 for _ in range(3)]]
    lengths, outputs, cached = [], [], []
    for batch in batches[:ROUNDS]:
        params = [
            SamplingParams(max_tokens=4 + index * 3, ignore_eos=True, temperature=0)
            for index in range(len(batch))
        ]
        requests = [{"prompt_token_ids": tokens} for tokens in batch]
        results = llm.generate(requests, params, use_tqdm=False)
        lengths += [len(tokens) for tokens in batch]
        outputs += [list(result.outputs[0].token_ids) for result in results]
        cached += [result.num_cached_tokens for result in results]
    time.sleep(case.get("idle_seconds", 0.0))
    said = {
        "name": case["name"],
        "prompts": lengths,
        "outputs": outputs,
        "cached": cached,
        "async": core.batch_queue is not None,
        "scheduler": type(core.scheduler).__name__,
        "failures": getattr(getattr(core.scheduler, "_forwardpass", None), "failures", None),
    }
    if not case.get("leave_running"):
        core.shutdown()
    return said


def main() -> None:
    """Run every case in turn; a case that cannot start says why."""
    model, *cases = sys.argv[1:]
    wanted = [json.loads(case) for case in cases]
    if any(case.get("async") for case in wanted):
        keep_async_scheduling()
    for case in wanted:
        try:
            said = run(model, case)
        except Exception as error:  # noqa: BLE001  boundary: the test reads it
            said = {"name": case["name"], "error": f"{type(error).__name__}: {error}"}
        print("\nRESULT " + json.dumps(said), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
