"""Knows how an SGLang server is started with its forward passes recorded: what differs from other engines."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack

from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.recording import Recording, draw_id, plane_words
from forwardpass.cli.serving import Command, Resolved, ServeRequest, become, resolve, serve_recorded
from forwardpass.config import variables as v
from forwardpass.config.settings import Sources, process_environment
from forwardpass.engines.model_files import describe_model, load_config
from forwardpass.engines.sglang.arguments import read_arguments
from forwardpass.engines.sglang.ipc_folder import ipc_folder
from forwardpass.engines.sglang.launch import Asked, LaunchPlan, find_sglang, plan_launch
from forwardpass.engines.sglang.source import SOURCE
from forwardpass.errors import ConfigError, EngineError
from forwardpass.relay.targets import RelayTarget, rank_url
from forwardpass.trace.policy import TraceDecision

__all__ = ["serve_sglang"]

logger = logging.getLogger(__name__)

_OPTION = "--forward-pass-metrics-ipc-name"


def serve_sglang(request: ServeRequest) -> int:
    """Start SGLang as asked, and return its exit status when it has ended.

    Raises :class:`EngineError` where no SGLang is installed, and :class:`ConfigError` for a command line
    that cannot be started at all (gateway mode with forward passes on).
    """
    log_to_stderr(logging.WARNING if request.quiet else logging.INFO)
    if find_sglang() is None:
        raise EngineError(f"SGLang is not installed for {sys.executable}; install it there")
    environment = process_environment()
    sources = Sources(environment, request.flags)
    # The port's number means nothing to SGLang: that it is set opts in.
    resolved = resolve(request, sources, lambda each: each.is_set(v.METRIC_PORT), bool)
    with ExitStack() as stack:  # whatever ends the server, its sockets go
        ipc_base = _make_folder(stack) if resolved.trace.enabled or resolved.stream else ""
        asked = Asked(
            trace=resolved.trace.enabled and bool(ipc_base),
            trace_flag=request.trace,
            opted_in=bool(resolved.stream) and bool(ipc_base),
            worker_id=draw_id(),
            ipc_base=ipc_base,
        )
        plan = _plan(request, asked, environment)
        for warning in plan.activation.warnings:
            logger.warning("%s", warning)
        command = Command(plan.command, plan.environment)
        targets = _targets(plan, strict=bool(sources.resolve(v.STRICT).value))
        if not targets:
            stack.close()
            become(command)
        return _serve(request, command, plan, targets, resolved, sources)


def _make_folder(stack: ExitStack) -> str:
    """Return the base of the sockets; empty, with a warning, where no folder can be made."""
    try:
        return stack.enter_context(ipc_folder())
    except OSError as error:
        logger.warning(
            "no folder for SGLang's sockets: %s; no forward passes are generated; serving goes on", error
        )
        return ""


def _plan(request: ServeRequest, asked: Asked, environment: Mapping[str, str]) -> LaunchPlan:
    facts = read_arguments(request.arguments)
    config: Mapping[str, object] = {}
    if facts.config is not None:
        try:
            config = load_config(facts.config)
        except (ConfigError, OSError) as error:  # SGLang will refuse it in its own words
            logger.warning("--config is not looked into: %s", error)
    model = describe_model(read_arguments(request.arguments, config).model)
    return plan_launch(sys.executable, request.arguments, asked, environment, config=config, model=model)


def _targets(plan: LaunchPlan, *, strict: bool) -> list[RelayTarget]:
    """Return the streams to read; none, with an error in the log, where their name cannot be connected to.

    ``strict`` raises that error, a :class:`ConfigError`.
    """
    try:
        if plan.ranks and not plan.ipc_base.startswith("ipc://"):
            raise ConfigError(_OPTION, plan.ipc_base, "ipc://PATH")
        return [RelayTarget(rank_url(plan.ipc_base, rank), rank) for rank in plan.ranks]
    except ConfigError as error:
        named = ConfigError(_OPTION, error.value, error.accepted)
        if strict:
            raise named from error
        logger.error("%s; nothing is recorded; serving goes on", named)
        return []


def _serve(
    request: ServeRequest,
    command: Command,
    plan: LaunchPlan,
    targets: list[RelayTarget],
    resolved: Resolved[bool],
    sources: Sources,
) -> int:
    recording = Recording(
        targets,
        trace=resolved.trace if plan.activation.persist else TraceDecision(False),
        relay=resolved.relay,
        drawn_id=plan.worker_id,
        worker_id=plan.worker_id,
        sources=sources,
        engine=SOURCE,
    )

    def say_start() -> None:
        logger.info(
            "listening to SGLang (%s role) at %s, worker id %s; %s%s",
            plan.activation.role.name,
            ", ".join(target.url for target in targets),
            plan.worker_id,
            "" if recording.tracing else "no trace; ",
            plane_words(resolved.relay),
        )

    return asyncio.run(serve_recorded(request, command, recording, say_start=say_start))
