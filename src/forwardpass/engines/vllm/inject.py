"""Knows what is done to an engine whose configuration vLLM has just built, in the process that built it.

The decision (:func:`plan_engine`) is pure. The rest acts on it: the worker id for the engine's processes, a
recorder beside them, and last our scheduler in the configuration. Nothing before that changes the engine.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from msgspec import Struct

from forwardpass.config import variables as v
from forwardpass.config.handover import RECORDER, RecorderMark, draw_id, parse_mark
from forwardpass.config.settings import (
    PublisherSettings,
    RelaySettings,
    Sources,
    TraceSettings,
    leave_to_children,
    process_environment,
)
from forwardpass.engines.activation import Activation, decide_activation
from forwardpass.engines.vllm.built import BuiltEngine, read_built
from forwardpass.engines.vllm.companion import RecorderOrder, is_own, keep_recorder
from forwardpass.engines.vllm.launch import SCHEDULER, stream_urls
from forwardpass.engines.vllm.told import warn_once
from forwardpass.errors import ConfigError

__all__ = ["EnginePlan", "Wish", "plan_engine", "prepare_engine", "read_wish", "worker_id_for"]

_ids: dict[int, str] = {}
"""Base port -> worker id of this process's engine there."""


class Wish(Struct, frozen=True):
    """What the environment asks for; by default nothing."""

    trace: bool = False
    explicit_port: int | None = None
    bind_host: str = "127.0.0.1"
    plane: bool = False
    """An event plane is named."""
    settings: tuple[TraceSettings | None, RelaySettings] = (None, RelaySettings())
    """What a recorder would go by."""
    warning: str | None = None


class EnginePlan(Struct, frozen=True):
    """What is done for one engine."""

    activation: Activation
    generate: bool
    """Its scheduler is ours, so it publishes."""
    inject: bool
    """Our scheduler is put into the configuration."""
    record: bool
    """Its streams are read by a recorder."""
    warnings: tuple[str, ...] = ()
    unforeseen: tuple[str, ...] = ()
    """Those of them that only a built configuration shows."""


def read_wish(sources: Sources) -> Wish:
    """Return what is asked for. A feature with an invalid setting is off as a unit, with a warning.

    Raises :class:`ConfigError` for an invalid setting of the stream under ``FORWARDPASS_STRICT``.
    """
    try:
        stream, relay = PublisherSettings.load(sources), RelaySettings.load(sources)
        explicit_port = sources.value(v.METRIC_PORT)
    except ConfigError as error:
        if sources.resolve(v.STRICT).value:
            raise
        return Wish(warning=f"{error}; no forward passes are generated or recorded; serving goes on")
    trace, warning = None, None
    try:
        trace = TraceSettings.load(sources) if sources.value(v.FPM_TRACE) else None
    except ConfigError as error:
        # A port asks for generation whatever the trace variable says; then its value is no surprise.
        if explicit_port is None or sources.resolve(v.FPM_TRACE).error is None:
            warning = f"{error}; tracing is off for this worker; serving goes on"
    return Wish(
        trace=trace is not None,
        explicit_port=explicit_port,
        bind_host=stream.bind_host,
        plane=relay.plane_url is not None,
        settings=(trace, relay),
        warning=warning,
    )


def plan_engine(engine: BuiltEngine, wish: Wish) -> EnginePlan:
    """Decide what is done, by the table of roles.

    A scheduler of somebody else's is kept and its streams are not recorded: it may be one that has a
    recorder of its own.
    """
    foreign = None if engine.ours else engine.scheduler
    activation = decide_activation(
        engine.role, explicit_port=wish.explicit_port, trace=wish.trace, foreign_scheduler=foreign
    )
    warnings = _warnings(activation, foreign)
    return EnginePlan(
        activation=activation,
        generate=activation.generate,
        inject=activation.inject_scheduler and engine.scheduler is None,
        record=(
            activation.relay
            and foreign is None
            and (activation.persist or wish.plane)
            and engine.ranks.count > 0
        ),
        warnings=tuple(filter(None, (wish.warning, *warnings))),
        unforeseen=tuple(line for line in warnings if line not in activation.warnings),
    )


def _warnings(activation: Activation, foreign: str | None) -> tuple[str, ...]:
    """Return what there is to say; of a scheduler of vLLM's own, which nobody may have chosen, in other words
    than of an operator's.
    """
    if foreign is None or not foreign.startswith("vllm.") or activation.generate:
        return activation.warnings
    kept = f"vLLM's own scheduler class {foreign} is kept, so this engine has no forward passes to record"
    return tuple(kept if foreign in line else line for line in activation.warnings)


def prepare_engine(config: Any, *, headless: bool, sources: Sources) -> None:
    """Do what is asked for, for the engine of ``config``. Raises what is wrong, with ``config`` unchanged."""
    wish = read_wish(sources)
    engine = read_built(config, headless=headless)
    plan = plan_engine(engine, wish)
    base_port = plan.activation.base_port
    mark = parse_mark(process_environment().get(RECORDER))
    if mark is not None and not mark.is_alive():
        mark = None
    covered = mark is not None and mark.covers(base_port, engine.ranks.ranks)
    seen_to = covered and not is_own(mark)
    # Whoever sees to it, and started this process, has said what can be known before.
    for warning in plan.unforeseen if seen_to else plan.warnings:
        warn_once(warning)
    if not plan.generate:
        return
    worker_id = _settle_worker_id(base_port, mark, covered=covered)
    if plan.record and not seen_to:
        keep_recorder(_order(engine, wish, base_port, worker_id), wish.settings)
    if plan.inject:
        config.scheduler_config.scheduler_cls = SCHEDULER


def _order(engine: BuiltEngine, wish: Wish, base_port: int, worker_id: str) -> RecorderOrder:
    ranks = engine.ranks
    return RecorderOrder(
        base_port=base_port,
        first_rank=ranks.first,
        ranks=ranks.count,
        streams=stream_urls(base_port, ranks, wish.bind_host),
        worker_id=worker_id,
        role=engine.role.name,
    )


def _settle_worker_id(base_port: int, mark: RecorderMark | None, *, covered: bool) -> str:
    """Return the engine's worker id, left in the environment for the processes that will run it."""
    inherited = process_environment().get(v.WORKER_ID.name, "").strip()
    taken = {worker_id for port, worker_id in _ids.items() if port != base_port}
    if mark is not None and not covered:
        taken.add(mark.worker_id)
    worker_id = worker_id_for(inherited, taken, _ids.get(base_port))
    if worker_id != inherited:
        leave_to_children(v.WORKER_ID.name, worker_id)
    _ids[base_port] = worker_id
    return worker_id


def worker_id_for(inherited: str, taken: Collection[str], known: str | None) -> str:
    """Return ``inherited``, unless there is none or it is another engine's; then the one that is ``known``
    for this engine's ports, or a new one.
    """
    return inherited if inherited and inherited not in taken else known or draw_id()
