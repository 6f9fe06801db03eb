"""The benchmarks work: each can be imported, and those for vLLM say so where there is none."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = sorted(path.stem for path in BENCHMARKS.glob("bench_*.py"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the folder of the benchmarks."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=BENCHMARKS, capture_output=True, text=True, timeout=100, check=False
    )


def test_every_benchmark_can_be_imported() -> None:
    """Whatever a benchmark uses of the package is there, and it has a ``main``."""
    done = run("-c", f"import importlib\nfor name in {FILES}: importlib.import_module(name).main")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["bench_handover"])
def test_a_benchmark_runs(name: str) -> None:
    """In quick mode a benchmark compares at least two ways, ours last."""
    done = run(f"{name}.py", "--quick", "--json", "-")

    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout):
        assert len(result["sides"]) >= 2
        assert all(side["median"] > 0 for side in result["sides"])


def test_without_vllm_its_benchmarks_measure_nothing() -> None:
    """Where vLLM is not installed, they say that they were skipped and succeed."""
    for name in ("bench_vllm_scheduler", "bench_vllm_throughput"):
        done = run("-c", f"import sys; sys.modules['vllm'] = None; import {name}; print({name}.main())")

        assert done.stdout.strip() == "[]", done.stderr
        assert "skipped: no vllm" in done.stderr
