"""Knows how a vLLM server is started that measures itself first: more arguments, more variables, and
refusals.

What only a built configuration shows is refused in the child (``bench_prepare.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.output_paths import launch_output_path
from forwardpass.config import variables as v
from forwardpass.config.bench_variables import MODE, OPTIONS, OUTPUT_OVERRIDE
from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.engines.vllm.arguments import ServeArguments
from forwardpass.engines.vllm.launch import InstalledVllm, LaunchPlan
from forwardpass.engines.vllm.offered import plugin_facts
from forwardpass.errors import ConfigError

__all__ = ["MIDDLEWARE", "bench_arguments", "bench_environment", "refuse_launch"]

MIDDLEWARE = "forwardpass.engines.vllm.bench_middleware.SelfBenchmark"
_PLUGINS = "VLLM_PLUGINS"
_RUST = "VLLM_USE_RUST_FRONTEND"


def refuse_launch(
    config: BenchConfig, facts: ServeArguments, installed: InstalledVllm, environment: Mapping[str, str]
) -> None:
    """Raise :class:`ConfigError` for a command that cannot hold its server until the engine was measured."""
    for option, on in {
        "--grpc": facts.grpc,
        "--data-parallel-multi-port-external-lb": facts.data_parallel_multi_port,
        f"{_RUST}=1": environment.get(_RUST, "0") not in ("", "0"),
    }.items():
        if on:
            accepted = f"one HTTP server in Python for the engine, while {option} is off"
            raise ConfigError(OPTIONS[MODE.name], config.mode.value, accepted)
    plugin = plugin_facts(installed.version, environment)
    if not plugin.entry_point or not plugin.supported:
        reason = "an installation of forwardpass that offers vLLM its plugin" if plugin.supported else (
            f"a vLLM that is supported, not {plugin.version}"
        )  # fmt: skip
        raise ConfigError(OPTIONS[MODE.name], config.mode.value, reason)


def bench_arguments(facts: ServeArguments) -> tuple[str, ...]:
    """Return what is added to vLLM's arguments; a node without an API server has nobody to hold."""
    if facts.headless or facts.api_server_count == 0:
        return ()
    return (f"--middleware={MIDDLEWARE}",)


def bench_environment(
    plan: LaunchPlan, folder: Path, config: BenchConfig, bench: BenchEnvironment, worker_id: str
) -> dict[str, str]:
    """Return the child's whole environment.

    A list of allowed plugins gets ours: the operator asked for what it does. The default path gets the end of
    the worker's id, so that two servers of a machine do not share it.
    """
    changed = {**plan.environment, BENCH_FOLDER: str(folder)}
    changed[v.METRIC_PORT.name] = str(plan.activation.base_port)
    changed[v.WORKER_ID.name] = worker_id
    allowed = changed.get(_PLUGINS)
    if allowed is not None and "forwardpass" not in allowed.split(","):
        changed[_PLUGINS] = ",".join(filter(None, (*allowed.split(","), "forwardpass")))
    own_path = launch_output_path(config.output_path, worker_id)
    if own_path is not None and bench.output_path is None:
        changed[OUTPUT_OVERRIDE.name] = own_path
    return changed
