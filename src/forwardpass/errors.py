"""Every exception of this package, as one tree.

::

    ForwardPassError
    ├── ConfigError            the operator's setting   .variable .value .accepted
    │   └── PortUnavailable    a port that is taken     .port .holder
    ├── WireError              a peer's bytes
    │   ├── MalformedPayload   not a valid message      .path
    │   ├── UnsupportedVersion a schema we do not know  .version
    │   └── FrameError         wrong frames             .count
    ├── PlaneError             the event plane
    │   ├── PlaneUnavailable   cannot be reached or opened
    │   ├── PlaneClosed        used after close
    │   └── PayloadTooLarge    cannot be carried        .size .limit
    ├── TraceError             trace files
    │   ├── TracePathError     a path                   .path
    │   └── TraceRecordError   one line of a file       .path .line
    └── EngineError            an engine did not behave as its contract says

The class says whose fault it is; the attributes carry the facts. Expected outcomes (a full queue,
a skipped row) are values, not exceptions.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "EngineError",
    "ForwardPassError",
    "FrameError",
    "MalformedPayload",
    "PayloadTooLarge",
    "PlaneClosed",
    "PlaneError",
    "PlaneUnavailable",
    "PortUnavailable",
    "TraceError",
    "TracePathError",
    "TraceRecordError",
    "UnsupportedVersion",
    "WireError",
]


class ForwardPassError(Exception):
    """Root of every error that this package raises on purpose."""


class ConfigError(ForwardPassError):
    """A setting the operator gave is not usable.

    Attributes: ``variable`` (its name as the operator wrote it), ``value`` (what was found),
    ``accepted`` (what would have been accepted, in words).
    """

    def __init__(self, variable: str, value: object, accepted: str) -> None:
        self.variable = variable
        self.value = value
        self.accepted = accepted
        super().__init__(f"{variable}={value!r}: expected {accepted}")


class PortUnavailable(ConfigError):
    """A TCP port cannot be bound.

    Attributes besides those of :class:`ConfigError`: ``port`` and ``holder``, the process that holds
    it in words, or ``None`` where it could not be found.
    """

    def __init__(self, variable: str, port: int, reason: str, holder: str | None) -> None:
        super().__init__(variable, port, "a free TCP port")
        self.port = port
        self.holder = holder
        held = f", held by {holder}" if holder else ""
        self.args = (f"port {port} ({variable}) cannot be bound: {reason}{held}",)


class WireError(ForwardPassError):
    """Bytes from a peer that are not what the wire format promises."""


class MalformedPayload(WireError):
    """A payload that is no valid message. ``path`` names the field (``$`` is the whole message)."""

    def __init__(self, reason: str, path: str = "$") -> None:
        self.path = path
        super().__init__(f"{path}: {reason}" if path != "$" else reason)


class UnsupportedVersion(WireError):
    """A message of a schema version that this package does not read (``version``)."""

    def __init__(self, version: int, supported: int) -> None:
        self.version = version
        super().__init__(f"schema version {version}; this reader understands {supported}")


class FrameError(WireError):
    """A ZMQ message whose frames are not those of the raw stream (``count`` frames were found)."""

    def __init__(self, reason: str, count: int) -> None:
        self.count = count
        super().__init__(reason)


class PlaneError(ForwardPassError):
    """The event plane failed."""


class PlaneUnavailable(PlaneError):
    """The event plane cannot be opened or reached."""


class PlaneClosed(PlaneError):
    """The event plane was used after it was closed."""


class PayloadTooLarge(PlaneError):
    """A payload of ``size`` bytes for a plane that carries at most ``limit``."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"a payload of {size} bytes; this plane carries at most {limit}")


class TraceError(ForwardPassError):
    """A trace cannot be written or read."""


class TracePathError(TraceError):
    """A trace path cannot be used (``path``)."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class TraceRecordError(TraceError):
    """One line of a trace is not a record (``path``, ``line``, counted from 1)."""

    def __init__(self, path: str, line: int, reason: str) -> None:
        self.path = path
        self.line = line
        super().__init__(f"{path}:{line}: {reason}")


class EngineError(ForwardPassError):
    """An engine did not behave as the adapter's contract says."""
