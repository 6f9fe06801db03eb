"""Knows what it means that a port speaks, is silent or is not there. Pure: facts in, checks out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from forwardpass.cli.doctor_checks import Check, HeardStream, Status
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.config.variables import BIND_HOST, FPM_TRACE, METRIC_PORT
from forwardpass.wire.ports import PortBlock, rank_port

__all__ = ["World", "blocks_of", "check_arrival", "check_streams", "listeners_of"]

_LISTEN = "0A"


class World(Struct, frozen=True):
    """What is known about the ports of this host."""

    base_port: int
    ranks: int
    """Ranks of the worker that is asked about."""
    listening: frozenset[int]
    """Ports with a TCP listener; empty where the host does not tell."""
    holders: Mapping[int, str]
    """Port to the process that holds it, in words, where that is known."""
    heard: Mapping[int, HeardStream]
    """Port to what it said."""
    waited_seconds: float
    generates: bool = True
    """An engine started from this environment would generate forward passes."""
    local: bool = True
    """It is this host that was listened to, so its sockets can be looked at."""
    plugin: bool = False
    """The vLLM of this environment loads the plugin, so a variable is enough."""
    on_sockets: int = 0
    """Messages heard on the sockets of engines that have no port."""


def listeners_of(table: str) -> list[tuple[str, int]]:
    """Return (address, port) of each listener in the text of ``/proc/net/tcp`` or ``tcp6`` (proc(5))."""
    found = []
    for line in table.splitlines()[1:]:
        columns = line.split()
        if len(columns) < 4 or columns[3] != _LISTEN:
            continue
        address, _, port = columns[1].rpartition(":")
        found.append((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    """Return an address as people write it; the kernel prints 32-bit words in the host's byte order."""
    words = [bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8)]
    raw = b"".join(words)
    if len(raw) == 4:
        return ".".join(str(byte) for byte in raw)
    if raw == bytes(16):
        return "::"
    if raw == bytes(15) + b"\x01":
        return "::1"
    if raw[:12] == bytes(10) + b"\xff\xff":
        return ".".join(str(byte) for byte in raw[12:])
    return ":".join(raw[start : start + 2].hex() for start in range(0, 16, 2))


def check_streams(world: World) -> list[Check]:
    """Judge the port of each rank, and the synchroniser's port after the last one."""
    checks = [_check_rank(world, rank) for rank in range(world.ranks)]
    if world.ranks > 1:
        checks += _check_synchroniser(world)
    return checks


def _check_rank(world: World, rank: int) -> Check:
    port = rank_port(world.base_port, rank)
    name = f"rank {rank}, port {port}"
    holder = world.holders.get(port)
    by = f", held by {holder}" if holder else ""
    stream = world.heard.get(port)
    if stream is not None and stream.messages:
        return _check_speaking(name, rank, stream, by)
    if stream is not None and stream.bad:
        return Check(
            name,
            Status.FAIL,
            f"{counted(stream.bad, 'message')} that cannot be read{by}; "
            f"the newest: {printable(stream.fault, 120)}",
            f"if something else publishes there, move ours with {METRIC_PORT.name}, or stop the other; if it "
            "is the engine, bring the versions of both sides together",
        )
    if holder or port in world.listening:
        return Check(
            name,
            Status.FAIL,
            f"taken{by}, but it sent no forward pass within {world.waited_seconds:g} s",
            f"if that is not the engine, set {METRIC_PORT.name} to a free base port; if it is, it may be "
            "paused, or its heartbeat interval may be longer (--wait)",
        )
    if world.on_sockets:
        return Check(name, Status.OK, "nothing listens; the engine here publishes on sockets of its own")
    silent = "nothing listens" if world.local else f"nothing heard within {world.waited_seconds:g} s"
    return Check(name, Status.FAIL, silent, "see arrival, below")


def _check_speaking(name: str, rank: int, stream: HeardStream, by: str) -> Check:
    said = f"{stream.worker} reports rank {stream.dp_rank}{by}"
    if stream.dp_rank != rank:
        return Check(
            name,
            Status.FAIL,
            f"{said}: it belongs to another worker, with base port {stream.base}",
            f"give the workers separate blocks with {METRIC_PORT.name}",
        )
    if not stream.worker_id:
        return Check(name, Status.WARN, said, "start it with `forwardpass vllm serve`, which gives it an id")
    return Check(name, Status.OK, f"{said}; {counted(stream.messages, 'message')}")


def _check_synchroniser(world: World) -> list[Check]:
    port = rank_port(world.base_port, world.ranks)
    name = f"synchroniser, port {port}"
    stream = world.heard.get(port)
    if stream is not None and stream.messages:
        found = f"{stream.worker} publishes rank {stream.dp_rank} there"
        advice = f"move that worker, or give --ranks {stream.dp_rank + 1} if it is this one's"
        return [Check(name, Status.FAIL, found, advice)]
    if port in world.listening:
        holder = world.holders.get(port, "a process that cannot be seen")
        found = f"held by {holder}; only this worker's self-benchmark may bind it"
        return [Check(name, Status.WARN, found, "if it is another program, move one of the two")]
    return [Check(name, Status.OK, "free, as it should be unless a self-benchmark runs")]


def check_arrival(world: World) -> Check:
    """Say whether anything arrives at all, and if not, the likeliest reason and the remedy."""
    own = range(world.base_port, world.base_port + world.ranks)
    if any(stream.messages and stream.port in own for stream in world.heard.values()):
        return Check("arrival", Status.OK, "forward passes or heartbeats arrive")
    if world.on_sockets:
        return Check("arrival", Status.OK, "forward passes or heartbeats arrive, on an engine's own sockets")
    elsewhere = sorted({stream.base for stream in world.heard.values() if stream.messages})
    if elsewhere:
        bases = ", ".join(map(str, elsewhere))
        return Check(
            "arrival",
            Status.FAIL,
            f"nothing arrives because the base port here is {world.base_port}, and streams are at {bases}",
            f"set {METRIC_PORT.name}={elsewhere[0]}, or give --port {elsewhere[0]}",
        )
    if world.listening & set(own):
        return Check(
            "arrival",
            Status.FAIL,
            "nothing arrives because whatever holds the port sends no forward passes",
            "see the rank, above",
        )
    if not world.local:
        return Check(
            "arrival",
            Status.FAIL,
            "nothing arrives: no engine publishes there, or its streams are bound to its loopback only (the "
            "default), or the network does not let them through",
            f"run `forwardpass doctor` on that host, and set {BIND_HOST.name} for the engine there",
        )
    if not world.generates:
        return Check(
            "arrival",
            Status.FAIL,
            "nothing arrives because nothing asks an engine for forward passes in this environment",
            _how_to_start(world),
        )
    return Check(
        "arrival",
        Status.FAIL,
        "nothing arrives because no engine runs, or it runs without the instrumented scheduler",
        f"{_how_to_start(world)}, and read the warnings at its start",
    )


def _how_to_start(world: World) -> str:
    ours = "`forwardpass vllm serve MODEL --fpm-trace`"
    if world.plugin:
        return f"start it with `{FPM_TRACE.name}=1 vllm serve MODEL`, or with {ours}"
    return f"start it with {ours}, or `forwardpass vllm serve MODEL` with {FPM_TRACE.name}=1"


def blocks_of(
    base_port: int, ranks: int, heard: Iterable[HeardStream], others: Sequence[PortBlock] = ()
) -> list[tuple[str, PortBlock]]:
    """Return each worker's (name, block): this one, those named by the operator, and those heard.

    A stream tells its base as port minus rank, and that its worker has at least rank + 1 ranks.
    """
    sizes: dict[tuple[int, str], int] = {}  # (base port, worker in words) -> ranks
    own_size = ranks
    for stream in heard:
        if not stream.messages:
            continue
        if stream.base == base_port:
            own_size = max(own_size, stream.dp_rank + 1)
            continue
        key = (stream.base, stream.worker)
        sizes[key] = max(sizes.get(key, 0), stream.dp_rank + 1)
    blocks = [("this worker", PortBlock.of(base_port, own_size))]
    blocks += [("another block", block) for block in others]
    for (base, worker), size in sorted(sizes.items()):
        blocks.append((worker, PortBlock.of(base, size)))
    return blocks
