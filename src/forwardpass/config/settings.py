"""Knows how variables and flags become frozen settings. The only file that touches the environment.

Precedence: flag, variable, default. Each feature's settings are built as one unit: the first invalid
value raises :class:`~forwardpass.errors.ConfigError` and nothing of that feature is half applied.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from forwardpass.config import variables as v
from forwardpass.config.plane_choice import chosen_plane
from forwardpass.config.variables import TABLE, Variable
from forwardpass.errors import ConfigError
from forwardpass.wire.keys import Endpoint
from forwardpass.wire.ports import DEFAULT_BASE_PORT

__all__ = [
    "CaptureMode",
    "Fsync",
    "HeartbeatMode",
    "PublisherSettings",
    "RelaySettings",
    "Resolved",
    "SourceSettings",
    "Sources",
    "TraceSettings",
    "leave_to_children",
    "process_environment",
]

logger = logging.getLogger(__name__)


class CaptureMode(StrEnum):
    """What a trace records."""

    SAMPLED = "sampled"
    FULL = "full"


class Fsync(StrEnum):
    """When trace bytes are forced to the disk."""

    NEVER = "never"
    SEGMENT = "segment"
    FLUSH = "flush"


class HeartbeatMode(StrEnum):
    """What a quiet stream sends (decision D-3)."""

    WHEN_IDLE = "when-idle"
    ALWAYS_ZERO = "always-zero"


class Resolved(Struct, frozen=True):
    """One variable's value and where it came from."""

    variable: Variable
    value: Any
    source: str
    """``flag``, ``environment`` or ``default``."""
    error: ConfigError | None = None
    """Set when the given text was refused; ``value`` is then the default."""


def process_environment() -> Mapping[str, str]:
    """Return a copy of this process's environment."""
    return dict(os.environ)


def leave_to_children(name: str, text: str) -> None:
    """Set a variable of this process's environment, for the processes that it starts from now on."""
    os.environ[name] = text


class Sources:
    """Where settings come from: flags first, then an environment mapping.

    ``flags`` maps variable names to the text a flag gave; options that were not given are absent.
    """

    __slots__ = ("_env", "_flags")

    def __init__(self, env: Mapping[str, str] | None = None, flags: Mapping[str, str] | None = None) -> None:
        self._env = process_environment() if env is None else env
        self._flags = flags or {}

    def resolve(self, variable: Variable) -> Resolved:
        """Return the variable's value, its source, and the error if its text was refused."""
        for source, texts in (("flag", self._flags), ("environment", self._env)):
            given = texts.get(variable.name)
            if given is None:
                continue
            try:
                return Resolved(variable, variable.parse(given), source)
            except ValueError:
                error = ConfigError(variable.name, given, variable.accepted)
                return Resolved(variable, variable.default, source, error)
        return Resolved(variable, variable.default, "default")

    def value(self, variable: Variable) -> Any:
        """Return the variable's value. Raises :class:`ConfigError`, unless the table says to fall back."""
        resolved = self.resolve(variable)
        if resolved.error is None:
            return resolved.value
        if not variable.fallback:
            raise resolved.error
        logger.warning("%s; using %s", resolved.error, variable.default)
        return variable.default

    def is_set(self, variable: Variable) -> bool:
        """Say whether a non-blank text was given, valid or not."""
        given = self._flags.get(variable.name, self._env.get(variable.name))
        return given is not None and bool(given.strip())

    def all(self) -> list[Resolved]:
        """Return every variable of the table."""
        return [self.resolve(variable) for variable in TABLE]


class PublisherSettings(Struct, frozen=True):
    """The raw stream of one engine process."""

    base_port: int = DEFAULT_BASE_PORT
    bind_host: str = "127.0.0.1"
    worker_id: str = ""
    heartbeat: HeartbeatMode = HeartbeatMode.WHEN_IDLE
    heartbeat_interval_seconds: float = 1.0
    queue_capacity: int = 10_000
    send_hwm: int = 100_000
    strict: bool = False

    @classmethod
    def load(cls, sources: Sources) -> PublisherSettings:
        """Build from flags and environment; raises :class:`ConfigError`."""
        return cls(
            base_port=sources.value(v.METRIC_PORT) or DEFAULT_BASE_PORT,
            bind_host=sources.value(v.BIND_HOST) or "127.0.0.1",
            worker_id=sources.value(v.WORKER_ID),
            heartbeat=HeartbeatMode(sources.value(v.HEARTBEAT)),
            heartbeat_interval_seconds=sources.value(v.HEARTBEAT_INTERVAL_MS) / 1000,
            queue_capacity=sources.value(v.PUBLISH_QUEUE),
            send_hwm=sources.value(v.SEND_HWM),
            strict=sources.value(v.STRICT),
        )


class SourceSettings(Struct, frozen=True):
    """What an engine's source counts."""

    count_paused_sessions: bool = False

    @classmethod
    def load(cls, sources: Sources) -> SourceSettings:
        """Build from flags and environment; raises :class:`ConfigError`."""
        return cls(count_paused_sessions=sources.value(v.COUNT_PAUSED_SESSIONS))


class TraceSettings(Struct, frozen=True):
    """The trace of one process: every producer in it uses the same."""

    output_prefix: str = "/tmp/dynamo-fpm"
    mode: CaptureMode = CaptureMode.SAMPLED
    sample_interval_seconds: float = 5.0
    roll_bytes: int = 268_435_456
    """Uncompressed JSONL bytes per segment."""
    max_segments: int = 4
    queue_capacity: int = 8192
    fsync: Fsync = Fsync.NEVER
    drain_seconds: float = 10.0

    @classmethod
    def load(cls, sources: Sources) -> TraceSettings:
        """Build from flags and environment; raises :class:`ConfigError` for the first invalid value."""
        return cls(
            output_prefix=sources.value(v.OUTPUT_PATH),
            mode=CaptureMode(sources.value(v.MODE)),
            sample_interval_seconds=sources.value(v.SAMPLE_INTERVAL_MS) / 1000,
            roll_bytes=sources.value(v.ROLL_BYTES),
            max_segments=sources.value(v.MAX_SEGMENTS),
            queue_capacity=sources.value(v.TRACE_QUEUE),
            fsync=Fsync(sources.value(v.FSYNC)),
            drain_seconds=sources.value(v.DRAIN_SECONDS),
        )


class RelaySettings(Struct, frozen=True):
    """Identity and destination of what a relay carries."""

    endpoint: Endpoint = Endpoint()
    plane_url: str | None = None
    producer_id: str = ""
    """Fixed producer id, or empty to draw one at start (decision D-29)."""
    plane_variable: str = ""
    """The variable of a Dynamo deployment that chose the plane; empty where it was named to us."""

    @classmethod
    def load(cls, sources: Sources) -> RelaySettings:
        """Build from flags and environment; raises :class:`ConfigError`."""
        plane = chosen_plane(sources)
        return cls(
            endpoint=sources.value(v.ENDPOINT),
            plane_url=plane.url,
            producer_id=sources.value(v.PRODUCER_ID),
            plane_variable="" if plane.variable == v.PLANE.name else plane.variable,
        )
