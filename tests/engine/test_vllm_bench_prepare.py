"""What a self-benchmark changes in a configuration that vLLM has built, and what it refuses there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(200)]

SCRIPT = Path(__file__).parent / "bench_refusals.py"
BENCH = "forwardpass.engines.vllm.bench_scheduler.BenchForwardPassScheduler"
EXTENSION = "forwardpass.engines.vllm.worker_extension.ForwardPassWorkerExtension"
GC_EXTENSION = "forwardpass.engines.vllm.worker_extension_gc.ForwardPassGcWorkerExtension"
DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 3}
TAKEN = {
    "usual": {},
    "prefill with drafts": {"speculative_config": DRAFTS},
    "own extension": {"worker_extension_cls": "somebody.Extension"},
    "own statistics": {"cudagraph_metrics": True},
    "ours already": {"scheduler_cls": "forwardpass.engines.vllm.scheduler.ForwardPassScheduler"},
    "derived": {"scheduler_cls": "derived_scheduler.DerivedBenchScheduler"},
    "own settings": {"additional_config": {"somebody": 1}},
    "frozen": {},
    "frozen already": {"worker_extension_cls": GC_EXTENSION},
}
REFUSED = {
    "drafts": ({"speculative_config": DRAFTS}, "speculative decoding"),
    "scheduler": ({"scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}, "--scheduler-cls"),
    "embedding": ({"runner": "pooling", "convert": "embed"}, "--benchmark-mode"),
    "frozen with own extension": ({"worker_extension_cls": "somebody.Extension"}, "DYN_FPM_GC_POLICY"),
    "stages": ({"pipeline_parallel_size": 2}, "pipeline-parallel"),
}


@pytest.fixture(scope="module")
def said(
    vllm: object,
    tiny_model: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, dict[str, Any]]:
    """Build all configurations in one process."""
    folder = tmp_path_factory.mktemp("prepared")
    cases = [
        {
            "name": name,
            "mode": "prefill" if "prefill" in name else "agg",
            "options": options,
            "environment": {"DYN_FPM_GC_POLICY": "freeze"} if "frozen" in name else {},
        }
        for name, options in {**TAKEN, **{name: row[0] for name, row in REFUSED.items()}}.items()
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), tiny_model, str(folder), *map(json.dumps, cases)],
        env=vllm_environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    lines = [line.removeprefix("RESULT ") for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = {each["name"]: each for each in map(json.loads, lines)}
    assert list(found) == ["plain", *(case["name"] for case in cases)], done.stderr[-3000:]
    return found


@pytest.mark.parametrize("name", list(TAKEN))
def test_a_configuration_is_made_ready(said: dict[str, dict[str, Any]], name: str) -> None:
    """BVLLM-40: Scheduler, worker extension and graph statistics; what the operator chose stays."""
    found, options = said[name], TAKEN[name]

    assert found["refused"] is None
    assert found["scheduler"] == (options["scheduler_cls"] if name == "derived" else BENCH)
    foreign = options["worker_extension_cls"] if name == "own extension" else None
    assert found["extension"] == (foreign or (GC_EXTENSION if "frozen" in name else EXTENSION))
    assert found["user_extension"] == foreign
    assert found["installed"] is (name != "own extension")
    assert found["cudagraph_metrics"] is True
    assert found["auto_enabled"] is (name != "own statistics")
    assert found["additional_config"] == options.get("additional_config", {})


def test_the_key_of_the_compile_cache_is_the_same(said: dict[str, dict[str, Any]]) -> None:
    """BVLLM-40, PIT-06: vLLM makes it from the whole configuration; ours is not in it."""
    assert said["usual"]["key"] == said["frozen"]["key"] == said["plain"]["key"]


@pytest.mark.parametrize("name", list(REFUSED))
def test_what_cannot_be_measured_is_refused(said: dict[str, dict[str, Any]], name: str) -> None:
    """BVLLM-41, BVLLM-02: In one line that names what is in the way; the launcher hears it too."""
    found = said[name]

    assert found["refused"].startswith("forwardpass: the engine cannot be measured: ")
    assert REFUSED[name][1] in found["refused"]
    assert "\n" not in found["refused"]
    assert found["outcome"] == "refused"
