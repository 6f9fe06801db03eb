"""Measures a real vLLM engine in this process, once per case, and tries the driver's verbs on it.

    python bench_inprocess.py MODEL CASE.json …

A case is ``{"name", "async", "runner_v2", "options", "benchmark", "env"}``. Without ``benchmark`` every check
of ``check_driver`` is run on the engine. Each prints ``RESULT {"name", …}``.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from bench_rigs import EngineRig, by_hand
from inprocess_run import keep_async_scheduling

BENCH = "forwardpass.engines.vllm.bench_scheduler.BenchForwardPassScheduler"


def make(model: str, case: dict[str, Any], scheduler: Any) -> Any:
    """Return an engine."""
    from vllm import LLM

    options = {"max_model_len": 512, "max_num_seqs": 8, "max_num_batched_tokens": 128} | case.get(
        "options", {}
    )
    extra = {"additional_config": {"benchmark": case["benchmark"]}} if "benchmark" in case else {}
    return LLM(
        model,
        enforce_eager=True,
        scheduler_cls=scheduler,
        async_scheduling=bool(case.get("async")),
        disable_log_stats=True,
        **options,
        **extra,
    )


def try_driver(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """Run every check on an engine that computes."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    from forwardpass.testing.conformance_driver import DRIVER_CHECKS

    llm = make(model, case, by_hand(AsyncScheduler if case.get("async") else Scheduler))
    core = llm.llm_engine.engine_core.engine_core
    rig = EngineRig(core)
    failed = {}
    for check in DRIVER_CHECKS:
        try:
            check(rig)
        except AssertionError as error:
            failed[check.__name__] = str(error)
    core.shutdown()
    return {"checks": len(DRIVER_CHECKS), "failed": failed}


def measure(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """Let the engine measure itself, then serve."""
    from vllm import SamplingParams

    llm = make(model, case, BENCH)
    core = llm.llm_engine.engine_core.engine_core
    steps, most = 0, case.get("stop_after", 20_000)
    while core.scheduler.has_requests() and steps < most:
        core.step_fn()
        steps += 1
    if "stop_after" in case:
        core.shutdown()
        return {"steps": steps}
    prompts = [{"prompt_token_ids": [7] * 100} for _ in range(3)]
    params = SamplingParams(max_tokens=5, ignore_eos=True, temperature=0)
    results = llm.generate(prompts, params, use_tqdm=False)
    said = {
        "steps": steps,
        "left": core.scheduler._bench is not None,
        "async": core.batch_queue is not None,
        "cached": [result.num_cached_tokens for result in results],
        "generated": [len(result.outputs[0].token_ids) for result in results],
    }
    core.shutdown()
    return said


def main() -> None:
    """Run every case in turn; a case that fails says why."""
    model, *cases = sys.argv[1:]
    wanted = [json.loads(case) for case in cases]
    if any(case.get("async") for case in wanted):
        keep_async_scheduling()
    for case in wanted:
        os.environ.update(case.get("env", {}))
        try:
            said = measure(model, case) if "benchmark" in case else try_driver(model, case)
        except Exception as error:  # noqa: BLE001  boundary: the test reads it
            import traceback

            traceback.print_exc()
            said = {"error": f"{type(error).__name__}: {error}"}
        print("\nRESULT " + json.dumps({"name": case["name"]} | said), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
