"""Knows which workers generate, relay and record forward passes: one table of roles, one decision.

Injection of the scheduler, creation of relays and the warnings all read the same table, so that they
cannot disagree (decision D-17). The launcher asks once, before it starts anything.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from forwardpass.wire.ports import DEFAULT_BASE_PORT

__all__ = ["ROLES", "Activation", "Backend", "Carrier", "Role", "decide_activation", "find_role"]


class Backend(StrEnum):
    """The engine behind a worker."""

    VLLM = "vllm"
    MOCK = "mock"


class Carrier(StrEnum):
    """How a role's messages reach the trace and the event plane."""

    RELAY = "relay"
    """A raw ZMQ stream per rank, carried on by a relay in the launcher's process."""
    DIRECT = "direct"
    """The engine's own process publishes; no hop in between."""
    NONE = "none"
    """Nothing carries them on."""


class Role(Struct, frozen=True):
    """One row of the table: what a worker of this kind can do with forward passes."""

    backend: Backend
    name: str
    carrier: Carrier
    always: bool = False
    """It generates whether or not anything asks for it."""
    injected: bool = False
    """Generation needs our scheduler class put in place of the engine's own."""

    @property
    def supported(self) -> bool:
        """Whether asking for a trace turns generation on in this role."""
        return self.carrier is not Carrier.NONE


def _vllm(name: str, carrier: Carrier) -> Role:
    return Role(Backend.VLLM, name, carrier, injected=True)


ROLES: tuple[Role, ...] = (
    _vllm("aggregated", Carrier.RELAY),
    _vllm("prefill", Carrier.RELAY),
    _vllm("decode", Carrier.RELAY),
    _vllm("embedding", Carrier.NONE),
    _vllm("classify", Carrier.NONE),
    _vllm("pooling", Carrier.NONE),
    _vllm("multimodal encode", Carrier.NONE),
    _vllm("headless", Carrier.NONE),
    # Upstream injects into a realtime worker, creates no relay and says nothing (decision D-17).
    _vllm("realtime", Carrier.NONE),
    Role(Backend.MOCK, "simulated", Carrier.DIRECT, always=True),
)
"""Every role. A backend whose numbers mean something else adds rows here and nothing elsewhere."""


class Activation(Struct, frozen=True):
    """What is on for one worker."""

    role: Role
    generate: bool
    """The engine is made to publish its forward passes."""
    base_port: int
    """Base of the raw stream's ports; rank r uses ``base_port + r``."""
    relay: bool
    """A relay per local rank carries the raw stream on."""
    persist: bool
    """What arrives is recorded."""
    inject_scheduler: bool
    """The scheduler class has to be put in place."""
    warnings: tuple[str, ...] = ()
    """Lines for the operator, each said once."""


def find_role(backend: Backend, name: str) -> Role:
    """Return the row of the table; raises ``KeyError`` for a role that it does not have."""
    for role in ROLES:
        if role.backend is backend and role.name == name:
            return role
    raise KeyError(f"{backend.value}: {name}")


def decide_activation(
    role: Role,
    *,
    explicit_port: int | None,
    trace: bool,
    foreign_scheduler: str | None = None,
) -> Activation:
    """Decide what is on, by the precedence of the reference.

    An explicitly set port turns generation on in any role, at that port; otherwise a trace does in a
    supported role, at the default port; otherwise nothing does. A port alone persists nothing, and
    cannot create a relay where the role has none. A ``foreign_scheduler`` (a class the operator chose)
    is never replaced; its relay is kept, because the class may be a subclass of ours.
    """
    asked = explicit_port is not None or (trace and role.supported) or role.always
    replaced = role.injected and foreign_scheduler is not None
    generate = asked and not replaced
    relay = role.carrier is Carrier.RELAY and (explicit_port is not None or trace)
    persist = trace and (relay or role.carrier is Carrier.DIRECT)
    base_port = explicit_port if explicit_port is not None else DEFAULT_BASE_PORT
    return Activation(
        role=role,
        generate=generate,
        base_port=base_port,
        relay=relay,
        persist=persist,
        inject_scheduler=generate and role.injected,
        warnings=_warnings(role, explicit_port, trace, foreign_scheduler if asked and replaced else None),
    )


def _warnings(
    role: Role, explicit_port: int | None, trace: bool, foreign_scheduler: str | None
) -> tuple[str, ...]:
    lines = []
    if foreign_scheduler is not None:
        lines.append(
            f"--scheduler-cls {foreign_scheduler} is kept: the instrumented scheduler class will not be used "
            "and no forward passes are generated, unless it is a subclass of ours: remove the option or make "
            "it one"
        )
    if role.supported:
        return tuple(lines)
    if explicit_port is not None and foreign_scheduler is None:
        lines.append(
            f"{role.backend.value} role {role.name!r} has no relay: forward passes are generated on port "
            f"{explicit_port} because it was set, but nothing publishes or records them"
        )
    elif trace:
        lines.append(
            f"{role.backend.value} role {role.name!r} has no relay for forward passes; "
            "tracing is off for this worker and serving goes on"
        )
    return tuple(lines)
