"""Knows how to start stock SGLang with its own publisher on: the command, its environment, its streams.

It imports nothing of SGLang and starts nothing: it turns what was asked for into a :class:`LaunchPlan`.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence

from msgspec import Struct

from forwardpass.config import variables as v
from forwardpass.engines.activation import Activation, decide_activation
from forwardpass.engines.model_files import ModelFacts
from forwardpass.engines.sglang.arguments import read_arguments
from forwardpass.engines.sglang.role import launch_role
from forwardpass.engines.sglang.topology import local_ranks
from forwardpass.errors import ConfigError

__all__ = ["SERVER", "Asked", "LaunchPlan", "find_sglang", "plan_launch"]

SERVER = "sglang.launch_server"


class Asked(Struct, frozen=True):
    """What the operator asked of us, resolved."""

    trace: bool
    """Record what is generated."""
    trace_flag: bool | None = None
    """The flag as given; ``None`` when it was not."""
    opted_in: bool = False
    """The port's variable is set, to whatever."""
    worker_id: str = ""
    """The id drawn for this start."""
    ipc_base: str = ""
    """Where the streams are to be, as ``ipc://PATH``; rank r is at ``PATH.r``."""


class LaunchPlan(Struct, frozen=True):
    """Everything that is decided before the child starts."""

    command: tuple[str, ...]
    environment: dict[str, str]
    """The child's whole environment."""
    activation: Activation
    worker_id: str
    """The one that the messages will carry: the operator's, where the arguments have one."""
    ipc_base: str
    """Where the streams are, likewise."""
    ranks: tuple[int, ...]
    """Global ranks whose streams a relay here has to read."""


def find_sglang() -> str | None:
    """Return the version of the SGLang that this interpreter would import (``"unknown"`` for a source tree
    without metadata), or ``None``; imports none of it.
    """
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "unknown" if importlib.util.find_spec("sglang") else None


def plan_launch(
    python: str,
    arguments: Sequence[str],
    asked: Asked,
    environment: Mapping[str, str],
    *,
    config: Mapping[str, object] | None = None,
    model: ModelFacts | None = None,
) -> LaunchPlan:
    """Decide command, environment, activation and ranks.

    Raises :class:`ConfigError` for a role that cannot run with forward passes on (gateway mode). The
    operator's arguments stay as they are and in their order; ours go before them, so that theirs win.
    """
    facts = read_arguments(arguments, config)
    activation = decide_activation(
        launch_role(facts, model),
        opted_in=asked.opted_in and not facts.only_help,
        trace=asked.trace and not facts.only_help,
    )
    if activation.refusal:
        raise ConfigError(
            "--tokenizer-worker-num", facts.tokenizer_workers, f"1 or --no-fpm-trace: {activation.refusal}"
        )
    own = []
    if activation.switch_on:
        own = [] if facts.switched_on else ["--enable-forward-pass-metrics"]
        own += [] if facts.worker_id else [f"--forward-pass-metrics-worker-id={asked.worker_id}"]
        own += [] if facts.ipc_name else [f"--forward-pass-metrics-ipc-name={asked.ipc_base}"]
    return LaunchPlan(
        command=(python, "-m", SERVER, *own, *arguments),
        environment=_child_environment(environment, activation, asked),
        activation=activation,
        worker_id=facts.worker_id or asked.worker_id,
        ipc_base=facts.ipc_name or asked.ipc_base,
        ranks=local_ranks(facts) if activation.relay else (),
    )


def _child_environment(
    environment: Mapping[str, str], activation: Activation, asked: Asked
) -> dict[str, str]:
    """Return the child's environment: the decision about tracing, where anything there could read it."""
    changed = dict(environment)
    if asked.trace_flag or v.FPM_TRACE.name in environment:
        changed[v.FPM_TRACE.name] = "1" if activation.persist else "0"
    return changed
