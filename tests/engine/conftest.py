"""Fixtures for tests against a real vLLM. Collected without one, these tests are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}


@pytest.fixture(scope="session")
def vllm_environment() -> Iterator[dict[str, str]]:
    """Set what vLLM reads from the environment when it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield dict(os.environ)


@pytest.fixture(scope="session")
def vllm(vllm_environment: dict[str, str]) -> object:
    """Return the vllm module, or skip; its own warnings on import are not ours to answer for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = pytest.importorskip("vllm")
        pytest.importorskip("vllm.v1.core.sched.async_scheduler")
    return module


def made(name: str, environment: dict[str, str], *options: str) -> str:
    """Return the folder of a tiny model, made once and kept in ``build/``."""
    out = REPOSITORY / "build" / name
    script = REPOSITORY / "scripts" / "make_tiny_model.py"
    subprocess.run(
        [sys.executable, str(script), str(out), *options], check=True, timeout=100, env=environment
    )
    return str(out)


@pytest.fixture(scope="session")
def tiny_model(vllm_environment: dict[str, str]) -> str:
    """Return the folder of the tiny model."""
    return made("tiny-qwen3", vllm_environment)


@pytest.fixture(scope="session")
def tiny_experts(vllm_environment: dict[str, str]) -> str:
    """Return the folder of the tiny mixture of experts."""
    return made("tiny-qwen3-moe", vllm_environment, "--experts", "4")
