"""Knows what each thing that ``doctor`` finds means, and what to do about it. Pure: facts in, checks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import combinations

from msgspec import Struct

from forwardpass.cli.consequence import consequence
from forwardpass.cli.summary_view import format_bytes
from forwardpass.cli.terminal import printable
from forwardpass.config.plane_choice import PlaneChoice
from forwardpass.config.settings import Resolved, TraceSettings
from forwardpass.config.variables import BIND_HOST, METRIC_PORT, OUTPUT_PATH
from forwardpass.plane.shown import shown_url
from forwardpass.wire.ports import PortBlock, ephemeral_warning

__all__ = [
    "Check",
    "HeardStream",
    "Status",
    "check_blocks",
    "check_disk",
    "check_ephemeral",
    "check_exposure",
    "check_output",
    "check_plane",
    "check_variables",
    "check_versions",
]

_LOOPBACK = ("127.", "::1", "localhost")
MAX_ID = 40
"""Characters of a worker id that are shown."""
_LEAST_FREE_BYTES = 64 * 1024 * 1024


class Status(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """It works, or may work, but somebody should know."""
    FAIL = "fail"
    """It is the reason, or one reason, why something does not work."""


class Check(Struct, frozen=True):
    """One thing that was looked at."""

    name: str
    status: Status
    found: str
    next_step: str = ""
    """What to do; empty only if nothing is to be done."""


class HeardStream(Struct, frozen=True):
    """What a port said while ``doctor`` listened."""

    port: int
    messages: int = 0
    """Valid forward passes and heartbeats."""
    bad: int = 0
    """Messages that were none: wrong frames, or a payload that cannot be read."""
    worker_id: str = ""
    """Of the newest valid message, as ``dp_rank``."""
    dp_rank: int = -1
    fault: str = ""
    """What was wrong with the newest bad message."""

    @property
    def worker(self) -> str:
        """The worker in words; its id comes from the network, so nothing in it drives a terminal."""
        return f"worker {printable(self.worker_id, MAX_ID)}" if self.worker_id else "worker (no id)"

    @property
    def base(self) -> int:
        """The base port of the worker that this rank belongs to."""
        return self.port - self.dp_rank


def check_variables(settings: Iterable[Resolved], *, trace_on: bool) -> list[Check]:
    """Name every variable whose value is not accepted, and say what that turns off."""
    checks = []
    for row in settings:
        if row.error is None:
            continue
        checks.append(
            Check(
                "variables",
                Status.WARN if row.variable.fallback else Status.FAIL,
                f"{row.error}; {consequence(row, trace_on)}",
                f"set {row.variable.name} to {row.variable.accepted}, or unset it",
            )
        )
    return checks or [Check("variables", Status.OK, "every variable that is set has a valid value")]


def check_versions(versions: Mapping[str, str | None], vllm: str | None) -> list[Check]:
    """Report versions. ``vllm`` is its distribution and version in words, or ``None`` if not installed."""
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    missing = [name for name, version in versions.items() if version is None]
    checks = [
        Check(
            "versions",
            Status.FAIL if missing else Status.OK,
            found,
            f"pip install {' '.join(missing)}" if missing else "",
        )
    ]
    where = vllm or "not installed in this environment (only needed where the engine runs)"
    checks.append(Check("engine", Status.OK, f"vLLM: {where}"))
    return checks


def check_ephemeral(blocks: Iterable[PortBlock], ephemeral: PortBlock | None) -> list[Check]:
    """Say which blocks the kernel may take a port of for an outgoing connection."""
    if ephemeral is None:
        return [Check("ephemeral range", Status.OK, "this host does not tell its range")]
    checks = []
    for block in blocks:
        size = 1 if block.first == block.last else block.last - block.first
        warning = ephemeral_warning(block.first, size, ephemeral)
        if warning is not None:
            found, _, advice = warning.rpartition(" Set ")
            checks.append(Check("ephemeral range", Status.WARN, found, f"set {advice}"))
    return checks or [Check("ephemeral range", Status.OK, f"no port of ours is inside {ephemeral}")]


def check_blocks(blocks: Sequence[tuple[str, PortBlock]]) -> list[Check]:
    """Say which workers' blocks overlap. A block of several ranks ends with the synchroniser's port."""
    checks = []
    for (name, block), (other_name, other) in combinations(blocks, 2):
        if not block.overlaps(other):
            continue
        shared = PortBlock(max(block.first, other.first), min(block.last, other.last))
        both = _ports(shared)
        last = block if block.first <= other.first else other
        reserved = " (the last port of a block is its synchroniser's)" if shared.last == last.last else ""
        checks.append(
            Check(
                "port blocks",
                Status.FAIL,
                f"{name} at {_ports(block)} and {other_name} at {_ports(other)} both use "
                f"port {both}{reserved}",
                f"give one of them a {METRIC_PORT.name} above {max(block.last, other.last)}: "
                "N ranks need N + 1 ports",
            )
        )
    names = ", ".join(f"{name} at {_ports(block)}" for name, block in blocks)
    return checks or [Check("port blocks", Status.OK, f"no overlap: {names}")]


def _ports(block: PortBlock) -> str:
    return str(block.first) if block.first == block.last else str(block)


def check_plane(choice: PlaneChoice, problem: str | None) -> list[Check]:
    """Judge the event plane, if one is chosen; ``problem`` is why it cannot be used."""
    if problem is not None:
        found = f"{printable(problem)}; nothing is relayed"
        return [Check("event plane", Status.FAIL, found, f"correct {choice.variable}, or unset it")]
    if choice.url is None:
        return []
    found = f"{printable(shown_url(choice.url))} ({choice.variable}): a plane of this kind is installed"
    return [Check("event plane", Status.OK, found)]


def check_exposure(listeners: Iterable[tuple[str, int]], ports: Iterable[int], bind_host: str) -> list[Check]:
    """Say whether a stream can be read from another host. ``listeners`` are (address, port)."""
    wanted = set(ports)
    wide = sorted({(port, host) for host, port in listeners if port in wanted and not _is_loopback(host)})
    checks = [
        Check(
            "bind host",
            Status.WARN,
            f"port {port} is bound to {host}: whoever reaches this host can read the workload",
            f"unset {BIND_HOST.name}, unless that is meant (the reference always binds every address)",
        )
        for port, host in wide
    ]
    if not checks and not _is_loopback(bind_host):
        checks.append(
            Check(
                "bind host",
                Status.WARN,
                f"an engine started from here binds {bind_host}, and the stream is not authenticated",
                f"unset {BIND_HOST.name}, unless that is meant",
            )
        )
    return checks or [Check("bind host", Status.OK, "streams are bound to loopback only")]


def check_output(settings: TraceSettings | None, problem: str | None, *, trace_on: bool) -> Check:
    """Judge the output path; ``problem`` is why a probe file could not be written there."""
    if settings is None:
        return Check("output path", Status.WARN, "unknown: a trace setting is invalid", "see variables")
    if problem is None:
        return Check("output path", Status.OK, f"{settings.output_prefix}: files can be written")
    consequence = "tracing would be off" if trace_on else "tracing is off anyway"
    return Check(
        "output path",
        Status.FAIL if trace_on else Status.WARN,
        f"{problem}; {consequence}",
        f"set {OUTPUT_PATH.name} (or --fpm-output) to a prefix in a folder that this user may write",
    )


def check_disk(settings: TraceSettings | None, free_bytes: int | None) -> Check:
    """Compare free space with what retention lets one producer keep."""
    if settings is None or free_bytes is None:
        return Check("disk space", Status.OK, "not known")
    budget = settings.max_segments * settings.roll_bytes
    found = (
        f"{format_bytes(free_bytes)} free; one producer keeps {settings.max_segments} segments of "
        f"{format_bytes(settings.roll_bytes)} of text, several times smaller on disk"
    )
    if free_bytes < _LEAST_FREE_BYTES:
        return Check("disk space", Status.FAIL, found, "free some space, or move the trace to another disk")
    if free_bytes < budget // 10:
        return Check(
            "disk space", Status.WARN, found, "lower DYN_FPM_MAX_SEGMENTS or DYN_FPM_JSONL_GZ_ROLL_BYTES"
        )
    return Check("disk space", Status.OK, found)


def _is_loopback(host: str) -> bool:
    return host.strip("[]").startswith(_LOOPBACK)
