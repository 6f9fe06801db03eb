"""Builds the configuration of one engine after the other, each to be measured, and says what became of it.

    python bench_refusals.py MODEL FOLDER CASE.json …

A case is ``{"name", "mode", "options", "environment"}``. Each prints
``RESULT {"name", "refused", "outcome", …}``; no engine is started.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.engine_config import from_engine, to_engine
from forwardpass.bench.handover import Handover, Order
from forwardpass.config.handover import BENCH_FOLDER


def build(model: str, folder: Path, case: dict[str, Any]) -> dict[str, Any]:
    """Build one configuration as a server does."""
    from vllm import AsyncEngineArgs

    folder.mkdir()
    os.environ[BENCH_FOLDER] = str(folder)
    os.environ.pop("DYN_FPM_GC_POLICY", None)
    os.environ.update(case.get("environment", {}))
    handover = Handover(folder)
    handover.give(Order(to_engine(BenchConfig(BenchMode(case["mode"])))))
    try:
        args = AsyncEngineArgs(model=model, enforce_eager=True, max_model_len=512, **case["options"])
        config = args.create_engine_config()
    except SystemExit as end:
        outcome = handover.outcome()
        return {"refused": str(end), "outcome": None if outcome is None else outcome.verdict.value}
    order = handover.order()
    assert order is not None
    told = from_engine(order.benchmark)
    return {
        "refused": None,
        "scheduler": config.scheduler_config.scheduler_cls,
        "extension": config.parallel_config.worker_extension_cls,
        "cudagraph_metrics": config.observability_config.cudagraph_metrics,
        "additional_config": config.additional_config,
        "key": config.compute_hash(),
        "auto_enabled": told.cudagraph_metrics_auto_enabled,
        "installed": told.worker_extension_installed,
        "user_extension": told.user_worker_extension_cls,
    }


def main() -> None:
    """Build every case in turn, and first one that is not to be measured."""
    model, folder, *cases = sys.argv[1:]
    os.environ[BENCH_FOLDER] = folder  # the plugin looks when it is loaded, by the first arguments
    from vllm import AsyncEngineArgs

    args = AsyncEngineArgs(model=model, enforce_eager=True, max_model_len=512)
    del os.environ[BENCH_FOLDER]
    plain = args.create_engine_config()
    print("\nRESULT " + json.dumps({"name": "plain", "key": plain.compute_hash()}), flush=True)
    for text in cases:
        case = json.loads(text)
        said = build(model, Path(folder) / case["name"], case)
        print("\nRESULT " + json.dumps({"name": case["name"]} | said), flush=True)


if __name__ == "__main__":
    main()
