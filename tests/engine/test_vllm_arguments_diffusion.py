"""The launcher's own command, built by vLLM with the plugin in it: who chooses the scheduler of a model."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from plain_vllm import clean

from forwardpass.engines.vllm.launch import SCHEDULER, Asked, InstalledVllm, plan_launch

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.usefixtures("vllm")]

BUILD = """
import sys
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
arguments = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(sys.argv[1:])
config = EngineArgs.from_cli_args(arguments).create_engine_config()
print("SCHEDULER", config.scheduler_config.scheduler_cls)
"""
USUAL = ("--enforce-eager", "--max-model-len", "1024")
DIFFUSION = ("--diffusion-config", json.dumps({"canvas_length": 32}))


def built(model: str, options: list[str], variables: dict[str, str]) -> tuple[str, str]:
    """Return the scheduler class in the configuration that vLLM builds of ``options``, and our words."""
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "--model", model, *options],
        env=variables, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("SCHEDULER ")]
    words = [line for line in done.stderr.splitlines() if "Forward Pass Metrics" in line]
    return line.removeprefix("SCHEDULER "), "\n".join(words)


def launched(model: str, environment: dict[str, str], *more: str) -> tuple[str, str]:
    """Return the same for the command that the launcher makes."""
    asked = Asked(trace=True, trace_flag=True, explicit_port=21000, worker_id="7")
    arguments = [model, *USUAL, *more]
    stock = InstalledVllm("vllm", "0.32.0")
    launch = plan_launch(stock, sys.executable, arguments, asked, clean(environment), plugin=True)
    options = launch.command[launch.command.index(model) + 1 :]
    # As the launcher leaves it, but for its mark: with that a recorder would not be started, nor is here
    return built(model, options, {**launch.environment, "DYN_FPM_TRACE": "0"})


def test_a_diffusion_model_keeps_the_scheduler_that_vllm_chose(
    tiny_model: str, vllm_environment: dict[str, str]
) -> None:
    """ENG-43: Where vLLM chooses a scheduler for such models (since 0.31, there under asynchronous scheduling
    only) it stays, and a line says so; else, and for every other model, ours is put in.
    """
    alone, _ = built(tiny_model, [*USUAL, *DIFFUSION], clean(vllm_environment))
    scheduler, words = launched(tiny_model, vllm_environment, *DIFFUSION)
    usual, _ = launched(tiny_model, vllm_environment)

    assert usual == SCHEDULER
    if alone == "None":
        assert scheduler == SCHEDULER
    else:
        assert alone.startswith("vllm.")
        assert scheduler == alone
        assert "is kept" in words
