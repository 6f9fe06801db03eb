"""The benchmark inside vLLM's scheduler works with the vLLM that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_vllm_scheduler.py"


def test_a_pass_is_measured_inside_the_real_scheduler(
    vllm: object, tiny_model: str, vllm_environment: dict[str, str]
) -> None:
    """Every scheduler is driven through the same passes; ours adds time to vLLM's, and its stream works."""
    done = subprocess.run(
        [sys.executable, str(BENCHMARK), "--quick", "--json", "-"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env=vllm_environment,
    )

    assert done.returncode == 0, done.stderr
    results = {result["name"]: result["sides"] for result in json.loads(done.stdout)}
    added = {side["label"]: side["median"] for side in results["added, 32 scheduled + 10 waiting"]}
    assert added["forwardpass"] > added["vllm alone"] > 0
