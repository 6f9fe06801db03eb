"""The soak in short: a real server under mixed load, recorders stopped and killed, and all counted twice."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
LIMIT_SECONDS = 330


def script_module(name: str) -> ModuleType:
    """Import one of the soak's modules that need nothing else of it."""
    spec = importlib.util.spec_from_file_location(f"soak_{name}", SCRIPTS / "soak" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.mark.vllm
@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_a_short_soak_finds_nothing(vllm: object, vllm_environment: dict[str, str], tmp_path: Path) -> None:
    """ENG-02 to ENG-09: Under chunks, bursts, preemptions and hang-ups, with recorders stopped and killed,
    each pass is counted as vLLM's live requests say, each token as the API and vLLM's metrics say, and
    every message is in the traces of the recorders that lived then.
    """
    done = subprocess.run(
        [
            sys.executable,
            str(SCRIPTS / "soak_vllm.py"),
            "--minutes",
            "0.2",
            "--output",
            str(tmp_path / "soak"),
        ],
        env=vllm_environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-6000:]
    for kind in ("stopped recorder", "killed recorder", "counted, field by field", "hang-up"):
        assert kind in done.stderr


@pytest.mark.parametrize(("kib_a_minute", "flat"), [(0.0, True), (30.0, True), (200.0, False)])
def test_what_counts_as_flat(kib_a_minute: float, flat: bool) -> None:
    """Half an hour of looks at a process that wobbles by a MiB is flat unless it grows beneath."""
    memory = script_module("memory")
    samples = [
        memory.MemorySample(
            at=seconds,
            rss=900_000,
            pss=800_000,
            uss=600_000 + round(kib_a_minute * seconds / 60) + 1024 * (seconds % 3),
            threads=20,
            files=40,
        )
        for seconds in range(0, 1800, 5)
    ]

    trend = memory.trend_of("it", samples)

    assert trend.judged
    assert trend.flat is flat
    assert trend.slope_kib == pytest.approx(kib_a_minute, abs=1.0)


def test_a_step_and_a_lost_thread_pool_are_not_flat() -> None:
    """Growth that came at once has no slope but a step; threads and files that stay open count too."""
    memory = script_module("memory")

    def look(seconds: int, uss: int, threads: int, files: int) -> object:
        return memory.MemorySample(seconds, uss, uss, uss, threads, files)

    stepped = [look(s, 600_000 + 8_192 * (s > 1400), 20, 40) for s in range(0, 1800, 5)]
    threaded = [look(s, 600_000, 20 + s // 300, 40) for s in range(0, 1800, 5)]
    opened = [look(s, 600_000, 20, 40 + s // 100) for s in range(0, 1800, 5)]

    assert [memory.trend_of("it", samples).flat for samples in (stepped, threaded, opened)] == [False] * 3


def test_looks_are_read_as_they_were_written(tmp_path: Path) -> None:
    """What is written of every process is what is read again, and a trend of it is the same."""
    memory = script_module("memory")
    sampler = memory.MemorySampler(dict, 1.0)
    for label, step in (("engine core (plain)", 0), ("worker (drafts)", 8_192)):
        sampler.samples[label] = [
            memory.MemorySample(float(s), 1, 2, 600_000 + step * (s > 1400), 20, 40)
            for s in range(0, 1800, 5)
        ]
    sampler.write(tmp_path / "memory.csv")

    samples = memory.read_samples(tmp_path / "memory.csv")

    assert samples == dict(sampler.samples)
    assert [memory.trend_of(label, seen).flat for label, seen in samples.items()] == [True, False]


def test_two_runs_are_compared_over_the_time_that_both_have() -> None:
    """A longer run is cut to the shorter one, and a process that only one of them has is left out."""
    memory = script_module("memory")

    def samples(seconds: int, rate: int) -> list[object]:
        return [memory.MemorySample(float(s), 0, 0, 600_000 + s * rate, 20, 40) for s in range(0, seconds, 5)]

    ours = {"engine core (plain)": samples(1800, 2), "recorder": samples(1800, 0)}

    ((first, second),) = memory.side_by_side(ours, {"engine core (plain)": samples(600, 1)})

    assert (first.seconds, second.seconds) == (595.0, 595.0)
    assert (first.slope_kib, second.slope_kib) == (pytest.approx(120.0), pytest.approx(60.0))
