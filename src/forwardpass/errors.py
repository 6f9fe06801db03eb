"""Every exception of this package, as one tree.

::

    ForwardPassError
    ├── ConfigError            the operator's setting   .variable .value .accepted
    │   ├── PortUnavailable    a port that is taken     .port .holder
    │   ├── MissingExtra       a library is not there   .module .extra
    │   └── QueryError         SQL that cannot be run   .query
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
    ├── BenchError             the self-benchmark
    │   ├── ManifestError      a points file            .path .problems
    │   ├── InfeasiblePoint    a point that must be run .entry .shortfall
    │   ├── ContentUnavailable no text for prompts      .reason
    │   └── SyncError          ranks that do not agree  .round
    │       ├── PeerAborted    a rank gave up           .rank .reason .missing
    │       ├── OutOfLockstep  a rank is elsewhere      .rank .expected .actual
    │       └── SyncTimeout    ranks were not heard     .missing .awaited
    ├── ArtifactError          files of a self-benchmark
    │   ├── ArtifactPathError  a path                   .path
    │   ├── MalformedArtifact  not a JSON object        .path
    │   ├── UnknownSchema      what we do not read      .path .schema .version
    │   └── MergeError         ranks that do not merge  .field .ranks .values .problems
    └── EngineError            an engine did not behave as its contract says

The class says whose fault it is; the attributes carry the facts. Expected outcomes (a full queue,
a skipped row) are values, not exceptions.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "ArtifactError",
    "ArtifactPathError",
    "BenchError",
    "ConfigError",
    "ContentUnavailable",
    "EngineError",
    "ForwardPassError",
    "FrameError",
    "InfeasiblePoint",
    "MalformedArtifact",
    "MalformedPayload",
    "ManifestError",
    "MergeError",
    "MissingExtra",
    "OutOfLockstep",
    "PayloadTooLarge",
    "PeerAborted",
    "PlaneClosed",
    "PlaneError",
    "PlaneUnavailable",
    "PortUnavailable",
    "QueryError",
    "SyncError",
    "SyncTimeout",
    "TraceError",
    "TracePathError",
    "TraceRecordError",
    "UnknownSchema",
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


class MissingExtra(ConfigError):
    """A library that an extra of this package brings is not installed.

    Attributes besides those of :class:`ConfigError`: ``module`` (its name) and ``extra``.
    """

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(module, "not installed", f"pip install 'forwardpass[{extra}]'")
        self.module = module
        self.extra = extra
        self.args = (f"{module} is not installed; it comes with pip install 'forwardpass[{extra}]'",)


class QueryError(ConfigError):
    """SQL that is not accepted or fails (``query``); the message is one line."""

    def __init__(self, query: str, reason: str) -> None:
        super().__init__("SQL", query, "one SELECT")
        self.query = query
        self.args = (reason,)


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


class BenchError(ForwardPassError):
    """A self-benchmark cannot be planned, run or read."""


class ManifestError(BenchError):
    """A file that a benchmark is planned from is not accepted: points, or limits.

    Attributes: ``path``, and ``problems``: what is wrong, each with its field.
    """

    def __init__(self, option: str, path: str, problems: Sequence[str]) -> None:
        self.path = path
        self.problems = tuple(problems)
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        super().__init__(f"{option} {path}: {self.problems[0]}{more}")


class InfeasiblePoint(BenchError):
    """A point that a points file asks for does not fit this engine.

    ``entry`` is where it stands, such as ``decode[3]``; ``shortfall`` is the first limit that it breaks, in
    words with both numbers.
    """

    def __init__(self, entry: str, coordinates: str, shortfall: str) -> None:
        self.entry = entry
        self.shortfall = shortfall
        super().__init__(f"{entry} ({coordinates}) does not fit this engine: {shortfall}")


class SyncError(BenchError):
    """The ranks of a self-benchmark cannot go on together.

    ``round`` is what they were agreeing on: ``capacity``, ``grid``, ``go``, ``result``, ``boundary``,
    ``stage``, ``cleanup``, or ``none`` between rounds. Each message names it and the rank.
    """

    def __init__(self, round_kind: str, text: str) -> None:
        self.round = round_kind
        super().__init__(f"agreement on {round_kind}: {text}")


class PeerAborted(SyncError):
    """Rank ``rank`` gave up, or ended the run for all, because of ``reason``.

    ``missing`` are the other ranks that were not heard by then in this round, as rank 0 knows them: one that
    gave up may have waited for these.
    """

    def __init__(self, round_kind: str, rank: int, reason: str, missing: Sequence[int] = ()) -> None:
        self.rank = rank
        self.reason = reason
        self.missing = tuple(missing)
        others = f"; not heard yet: rank {', '.join(map(str, missing))}" if missing else ""
        super().__init__(round_kind, f"rank {rank} aborted: {reason}{others}")


class OutOfLockstep(SyncError):
    """Rank ``rank`` sent ``actual`` where ``expected`` was due; ``others`` says what else is wrong.

    ``rank`` is -1 for a sender that is no rank of the group.
    """

    def __init__(
        self, round_kind: str, rank: int, expected: str, actual: str, others: Sequence[str] = ()
    ) -> None:
        self.rank = rank
        self.expected = expected
        self.actual = actual
        self.others = tuple(others)
        who = f"rank {rank}" if rank >= 0 else "a peer that is no rank of the group"
        super().__init__(round_kind, "; ".join([f"{who}: expected {expected}, found {actual}", *self.others]))


class SyncTimeout(SyncError):
    """The ranks ``missing`` did not send ``awaited`` within ``seconds``."""

    def __init__(self, round_kind: str, missing: Sequence[int], awaited: str, seconds: float) -> None:
        self.missing = tuple(missing)
        self.awaited = awaited
        self.seconds = seconds
        ranks = ", ".join(map(str, self.missing))
        word = "rank" if len(self.missing) == 1 else "ranks"
        super().__init__(round_kind, f"no {awaited!r} from {word} {ranks} within {seconds:g} s")


class ContentUnavailable(BenchError):
    """There is no real text to make prompts of; ``reason`` is a word for why, the message says more."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason = reason
        super().__init__(f"{reason}: {detail}" if detail else str(reason))


class ArtifactError(ForwardPassError):
    """A file of a self-benchmark cannot be written, read or merged."""


class ArtifactPathError(ArtifactError):
    """A path of an artifact cannot be used (``path``)."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class MalformedArtifact(ArtifactError):
    """A file that is no JSON object (``path``)."""

    def __init__(self, path: str, reason: str) -> None:
        self.path = path
        super().__init__(f"{path}: {reason}")


class UnknownSchema(ArtifactError):
    """A JSON object of a kind or version that is not read here (``path``, ``schema``, ``version``)."""

    def __init__(self, path: str, schema: object, version: object, accepted: str) -> None:
        self.path = path
        self.schema = schema
        self.version = version
        super().__init__(
            f"{path}: found schema {str(schema)[:80]!r} in version {str(version)[:80]!r}, expected {accepted}"
        )


class MergeError(ArtifactError):
    """Ranks that cannot be merged.

    ``field``, ``ranks`` and ``values`` (text, one for each rank, or what was found and what is accepted) are
    those of the first problem; ``problems`` holds the text of all of them.
    """

    def __init__(
        self, field: str, ranks: Sequence[int], values: Sequence[str], problems: Sequence[str]
    ) -> None:
        self.field = field
        self.ranks = tuple(ranks)
        self.values = tuple(values)
        self.problems = tuple(problems)
        more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
        super().__init__(f"the ranks do not merge: {self.problems[0]}{more}")


class EngineError(ForwardPassError):
    """An engine did not behave as the adapter's contract says."""
