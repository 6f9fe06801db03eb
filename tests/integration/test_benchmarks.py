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


@pytest.mark.parametrize(
    "name", ["bench_handover", "bench_merge", "bench_scale", "bench_session", "bench_sync"]
)
def test_a_benchmark_runs(name: str) -> None:
    """In quick mode a benchmark compares at least two ways, ours last."""
    done = run(f"{name}.py", "--quick", "--json", "-")

    assert done.returncode == 0, done.stderr
    for result in json.loads(done.stdout):
        assert len(result["sides"]) >= 2
        assert all(side["median"] > 0 for side in result["sides"])


def test_without_vllm_its_benchmarks_measure_nothing() -> None:
    """Where vLLM is not installed, they say that they were skipped and succeed."""
    for name in ("bench_vllm_scheduler", "bench_vllm_throughput", "bench_vllm_after_benchmark"):
        done = run("-c", f"import sys; sys.modules['vllm'] = None; import {name}; print({name}.main())")

        assert done.stdout.strip() == "[]", done.stderr
        assert "skipped: no vllm" in done.stderr


def test_without_dynamo_its_recorder_is_not_measured() -> None:
    """Where Dynamo is not installed, the comparison of recorders says so and succeeds."""
    done = run(
        "-c",
        "import sys; sys.modules['dynamo'] = None; import bench_reference_recorder as b; print(b.main())",
    )

    assert done.stdout.strip() == "[]", done.stderr
    assert "skipped: no dynamo" in done.stderr


def test_without_dynamo_its_plane_is_not_measured() -> None:
    """Where Dynamo is not installed, the comparison of planes says so and succeeds."""
    done = run("-c", "import sys; sys.modules['dynamo'] = None; import bench_plane as b; print(b.main())")

    assert done.stdout.strip() == "[]", done.stderr
    assert "skipped: no dynamo" in done.stderr


def test_the_ends_of_a_plane_are_measured() -> None:
    """A relay and a subscriber, Dynamo's and ours, take their turn, and none loses a message of a few."""
    pytest.importorskip("dynamo._core")
    done = run("bench_plane.py", "--quick", "--json", "-")

    assert done.returncode == 0, done.stderr
    found = {result["name"]: result["sides"] for result in json.loads(done.stdout)}
    for name in ("plane relay, quick: CPU", "plane recv, from ours, quick: CPU"):
        assert all(side["median"] > 0 for side in found[name])
    for name in ("plane relay, quick: lost", "plane recv, from ours, quick: lost"):
        assert [side["median"] for side in found[name]] == [0, 0]


def test_a_recorder_is_measured_from_outside() -> None:
    """The CPU of a recorder in a process of its own is found, and each of the rows that it was sent."""
    done = run(
        "-c",
        "from harness import set_quick\n"
        "from recorders import OURS, Load, record_once, sending\n"
        "set_quick()\n"
        "with sending() as sender:\n"
        "    outcome = record_once(OURS, sender, Load(3000, 0))\n"
        "print(outcome.rows, outcome.lost_percent, 0 < outcome.cpu_seconds < 60, outcome.gzip_bytes > 3000)",
    )

    assert done.stdout.strip() == "3000 0.0 True True", done.stderr
