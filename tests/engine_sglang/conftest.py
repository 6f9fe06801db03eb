"""Fixtures of the tests with a real SGLang; collected without one they are skipped."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def sglang_model() -> str:
    """Return the folder of the tiny model, made once; skips where SGLang is not installed."""
    if importlib.util.find_spec("sglang") is None:
        pytest.skip("SGLang is not installed here: make test-sglang")
    out = REPOSITORY / "build" / "tiny-qwen3"
    script = REPOSITORY / "scripts" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(script), str(out)], check=True, timeout=100)
    return str(out)
