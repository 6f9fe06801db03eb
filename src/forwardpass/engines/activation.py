"""Knows how it is decided whether a worker generates, relays and records forward passes.

Whoever starts an engine asks once, before it starts anything; the table of ``roles.py`` answers.
"""

from __future__ import annotations

from msgspec import Struct

from forwardpass.config.variables import METRIC_PORT
from forwardpass.engines.roles import Carrier, Role
from forwardpass.wire.ports import DEFAULT_BASE_PORT

__all__ = ["Activation", "decide_activation"]


class Activation(Struct, frozen=True):
    """What is on for one worker."""

    role: Role
    generate: bool
    """The engine is made to publish its forward passes."""
    base_port: int
    """Base of the raw stream's ports; rank r uses ``base_port + r``. Of no use where there are no ports."""
    relay: bool
    """A relay per local rank carries the raw stream on."""
    persist: bool
    """What arrives is recorded."""
    inject_scheduler: bool
    """The scheduler class has to be put in place."""
    switch_on: bool = False
    """The engine's own switch has to be set."""
    refusal: str = ""
    """Why the worker must not be started like this; empty where it may."""
    warnings: tuple[str, ...] = ()
    """Lines for the operator, each said once."""


def decide_activation(
    role: Role,
    *,
    explicit_port: int | None = None,
    opted_in: bool = False,
    trace: bool,
    foreign_scheduler: str | None = None,
) -> Activation:
    """Decide what is on, by the precedence of the reference.

    An explicitly set port turns generation on in any role whose scheduler is put in place, at that port;
    otherwise a trace does in a supported role, at the default port; otherwise nothing does. Where the
    engine has no ports, ``opted_in`` says that the port's variable is set, to whatever: it turns generation
    on in a supported role. Either alone persists nothing, and cannot create a relay where the role has none.
    A ``foreign_scheduler`` (a class the operator chose) is never replaced; its relay is kept, because the
    class may be a subclass of ours.
    """
    opted_in = opted_in or explicit_port is not None
    asked = (opted_in and (role.injected or role.supported)) or (trace and role.supported) or role.always
    replaced = role.injected and foreign_scheduler is not None
    generate = asked and not replaced
    relay = role.carrier is Carrier.RELAY and (opted_in or trace)
    persist = trace and (relay or role.carrier is Carrier.DIRECT)
    base_port = explicit_port if explicit_port is not None else DEFAULT_BASE_PORT
    return Activation(
        role=role,
        generate=generate,
        base_port=base_port,
        relay=relay,
        persist=persist,
        inject_scheduler=generate and role.injected,
        switch_on=generate and role.switched,
        refusal=role.refused if opted_in or trace else "",
        warnings=_warnings(
            role, explicit_port, opted_in, trace, foreign_scheduler if asked and replaced else None
        ),
    )


def _warnings(
    role: Role, explicit_port: int | None, opted_in: bool, trace: bool, foreign_scheduler: str | None
) -> tuple[str, ...]:
    lines = []
    if foreign_scheduler is not None:
        lines.append(
            f"--scheduler-cls {foreign_scheduler} is kept: the instrumented scheduler class will not be used "
            "and no forward passes are generated, unless it is a subclass of ours: remove the option or make "
            "it one"
        )
    if role.supported or role.refused:
        return tuple(lines)
    if explicit_port is not None and foreign_scheduler is None and role.injected:
        lines.append(
            f"{role.backend.value} role {role.name!r} has no relay: forward passes are generated on port "
            f"{explicit_port} because it was set, but nothing publishes or records them"
        )
    elif trace:
        lines.append(
            f"{role.backend.value} role {role.name!r} has no relay for forward passes; "
            "tracing is off for this worker and serving goes on"
        )
    elif opted_in and not role.injected:
        lines.append(
            f"{role.backend.value} role {role.name!r} has no relay for forward passes; none are generated, "
            f"although {METRIC_PORT.name} is set, and serving goes on"
        )
    return tuple(lines)
