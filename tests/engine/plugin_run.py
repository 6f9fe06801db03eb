"""A user's program with offline vLLM: nothing in it knows of this package. Writes JSON lines.

    python plugin_run.py MODEL JSON …

One engine per JSON object: ``{"env": …, "llm": …, "kill": bool, "end": bool}``. Each prints ``RESULT
{"prompt", "output", "cached", "scheduler", "worker_id"}``, tokens summed over its requests.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from typing import Any


def run(model: str, case: dict[str, Any]) -> dict[str, Any]:
    """Serve a few prompts, some of them twice."""
    from vllm import LLM, SamplingParams

    os.environ.update(case.get("env", {}))
    llm = LLM(model, enforce_eager=True, max_model_len=1024, **case.get("llm", {}))
    said: dict[str, Any] = {"worker_id": os.environ.get("DYN_FPM_WORKER_ID")}
    said["scheduler"] = str(llm.llm_engine.vllm_config.scheduler_config.scheduler_cls)
    if case.get("llm", {}).get("runner") == "pooling":
        return said | {"vectors": len(llm.embed(["a b c", "d"], use_tqdm=False))}
    results = []
    for length in (200, 40, 200):
        prompts = [{"prompt_token_ids": [3 + length + index] * length} for index in range(4)]
        params = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0)
        results += llm.generate(prompts, params, use_tqdm=False)
    if case.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if case.get("end"):  # vLLM keeps an engine of this process, and its port, until it is told to let go
        llm.llm_engine.engine_core.shutdown()
    return said | {
        "prompt": sum(len(result.prompt_token_ids) for result in results),
        "output": sum(len(result.outputs[0].token_ids) for result in results),
        "cached": sum(result.num_cached_tokens for result in results),
    }


def main() -> None:
    """Run every engine in turn."""
    model, *cases = sys.argv[1:]
    for case in cases:
        print("\nRESULT " + json.dumps(run(model, json.loads(case))), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
