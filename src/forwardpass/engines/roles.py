"""Knows what a worker of each engine and role can do with forward passes: the one table of roles.

What is put in place or switched on, which relays are made and what is warned about all follow from it, so
that they cannot disagree (decision D-17). ``activation.py`` decides by it.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = ["ROLES", "Backend", "Carrier", "Role", "find_role"]


class Backend(StrEnum):
    """The engine behind a worker."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    MOCK = "mock"


class Carrier(StrEnum):
    """How a role's messages reach the trace and the event plane."""

    RELAY = "relay"
    """A raw ZMQ stream per rank, carried on by a relay in the launcher's process."""
    DIRECT = "direct"
    """The engine's own process publishes, or its statistics are asked for; no raw stream in between."""
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
    """Generation needs our scheduler class put in place of the engine's own; then a port that is set turns
    it on in every role, as that of the reference does."""
    switched: bool = False
    """Generation is a switch of the engine's own."""
    refused: str = ""
    """Why such a worker does not start with forward passes on; empty for all others."""

    @property
    def supported(self) -> bool:
        """Whether asking for a trace turns generation on in this role."""
        return self.carrier is not Carrier.NONE


def _vllm(name: str, carrier: Carrier) -> Role:
    return Role(Backend.VLLM, name, carrier, injected=True)


def _sglang(name: str, carrier: Carrier, refused: str = "") -> Role:
    return Role(Backend.SGLANG, name, carrier, switched=True, refused=refused)


def _trtllm(name: str) -> Role:
    return Role(Backend.TRTLLM, name, Carrier.DIRECT, switched=True)


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
    _sglang("aggregated", Carrier.RELAY),
    _sglang("prefill", Carrier.RELAY),
    _sglang("decode", Carrier.RELAY),
    _sglang("LLM diffusion", Carrier.RELAY),
    _sglang("multimodal", Carrier.RELAY),
    _sglang("embedding", Carrier.NONE),
    _sglang("rerank", Carrier.NONE),
    _sglang("multimodal encoder", Carrier.NONE),
    _sglang("image diffusion", Carrier.NONE),
    _sglang("video generation", Carrier.NONE),
    _sglang("snapshot", Carrier.NONE),
    _sglang(
        "gateway", Carrier.NONE, refused="several tokenizer processes cannot serve with forward passes on"
    ),
    _trtllm("aggregated"),
    _trtllm("prefill"),
    _trtllm("decode"),
    Role(Backend.MOCK, "simulated", Carrier.DIRECT, always=True),
)
"""Every role. An engine whose numbers mean something else adds rows here and nothing elsewhere."""


def find_role(backend: Backend, name: str) -> Role:
    """Return the row of the table; raises ``KeyError`` for a role that it does not have."""
    for role in ROLES:
        if role.backend is backend and role.name == name:
            return role
    raise KeyError(f"{backend.value}: {name}")
