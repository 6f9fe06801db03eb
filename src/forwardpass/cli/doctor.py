"""Knows how to look at this host and environment and to say why nothing arrives."""

from __future__ import annotations

import asyncio
import importlib.metadata
import platform
import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import click
import msgspec

from forwardpass import __version__
from forwardpass.cli.doctor_checks import (
    Check,
    HeardStream,
    Status,
    check_blocks,
    check_disk,
    check_ephemeral,
    check_exposure,
    check_output,
    check_plane,
    check_variables,
    check_versions,
)
from forwardpass.cli.doctor_engines import Server, check_engines
from forwardpass.cli.doctor_streams import World, blocks_of, check_arrival, check_streams, listeners_of
from forwardpass.cli.doctor_vllm import check_plugin
from forwardpass.cli.host_engines import find_servers, hear_sockets
from forwardpass.cli.main import Exit
from forwardpass.cli.numbers import Number, WholeNumber, refused
from forwardpass.cli.output import write_json
from forwardpass.clock import SystemClock
from forwardpass.config import variables as v
from forwardpass.config.plane_choice import PlaneChoice, chosen_plane
from forwardpass.config.settings import Sources, TraceSettings, process_environment
from forwardpass.engines.vllm.launch import find_vllm
from forwardpass.engines.vllm.offered import PluginFacts, plugin_facts
from forwardpass.errors import (
    ConfigError,
    MalformedPayload,
    PlaneUnavailable,
    TracePathError,
    UnsupportedVersion,
)
from forwardpass.plane.urls import find_plane
from forwardpass.publish.port_owner import ephemeral_range, port_owner
from forwardpass.relay.zmq_source import ZmqSource
from forwardpass.trace.preflight import prove_writable
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.ports import DEFAULT_BASE_PORT, PortBlock

__all__ = ["doctor"]

MAX_PORT = 65_535
NEIGHBOURS = 16
"""Listeners this near to the block are asked what they are: another worker's block may reach into ours."""
_LOCAL = ("127.0.0.1", "localhost", "::1", "[::1]")
_POLL_SECONDS = 0.02
_MESSAGES = 1000


def _parse_blocks(
    ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]
) -> tuple[PortBlock, ...]:
    """Turn each ``BASE:RANKS`` into the ports of that worker."""
    return tuple(_parse_block(param, text) for text in texts)


def _parse_block(param: click.Parameter, text: str) -> PortBlock:
    match = re.fullmatch(r"([0-9]{1,5})(?::([1-9][0-9]{0,3}))?", text)
    block = PortBlock.of(int(match[1]), int(match[2] or 1)) if match is not None else None
    if block is None or not (block.first and block.last <= MAX_PORT):
        raise refused(param, text, f"a base port and a number of ranks, as in 21000:2, up to port {MAX_PORT}")
    return block


@click.command()
@click.option(
    "--port",
    type=WholeNumber(1, 65535),
    metavar="BASE",
    help="Base port of the worker (default: the variable, or 20380).",
)
@click.option("--ranks", type=WholeNumber(1, 1024), default=1, show_default=True, help="Its ranks.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Host to listen to.")
@click.option(
    "--block",
    "others",
    metavar="BASE:RANKS",
    multiple=True,
    callback=_parse_blocks,
    help="Ports of another worker, to look for overlap; repeatable.",
)
@click.option("--output", metavar="PREFIX", help="Trace prefix to check (default: the variable).")
@click.option("--wait", "seconds", type=Number(0.1, 60), help="Seconds to listen.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")
def doctor(
    port: int | None,
    ranks: int,
    host: str,
    others: tuple[PortBlock, ...],
    output: str | None,
    seconds: float | None,
    as_json: bool,
) -> int:
    """Find out why nothing arrives: ports, streams, output path, versions, settings.

    It listens to each rank's port for a moment, looks at this environment and at the engines that run on
    this host (vLLM, SGLang with its sockets, TensorRT-LLM with its options file, the mock), and says what
    keeps each from giving a stream. Exit code 1 if anything fails; warnings alone give 0.

    \b
    Examples:
      forwardpass doctor
      forwardpass doctor --ranks 2 --block 20383:2
      forwardpass doctor --json | jq '.checks[] | select(.status != "ok")'
    """
    sources = Sources(flags={} if output is None else {v.OUTPUT_PATH.name: output})
    base = port or sources.resolve(v.METRIC_PORT).value or DEFAULT_BASE_PORT
    if PortBlock.of(base, ranks).last > MAX_PORT:
        raise ConfigError("--port", base, f"a base port up to {MAX_PORT - ranks} for so many ranks")
    world = _look_at_ports(sources, base, ranks, host, seconds)
    servers = hear_sockets(find_servers(), world.waited_seconds) if world.local else []
    world = msgspec.structs.replace(world, on_sockets=sum(server.heard for server in servers))
    checks = _all_checks(sources, world, others, servers)
    heard = [stream for stream in world.heard.values() if stream.messages or stream.bad]
    if as_json:
        ok = not any(check.status is Status.FAIL for check in checks)
        write_json({"ok": ok, "checks": checks, "streams": heard})
    else:
        _write_text(checks)
    return Exit.FINDING if any(check.status is Status.FAIL for check in checks) else Exit.DONE


def _look_at_ports(sources: Sources, base: int, ranks: int, host: str, seconds: float | None) -> World:
    own = range(base, base + ranks + (ranks > 1))
    local = host in _LOCAL
    listening = frozenset(port for _, port in _listeners() if local)
    near = range(own.start - NEIGHBOURS, own.stop + NEIGHBOURS)
    asked = set(own) | (listening & set(near))
    interval = sources.resolve(v.HEARTBEAT_INTERVAL_MS).value / 1000
    wait = seconds if seconds is not None else min(interval, 10.0) + 0.5
    address = f"[{host}]" if ":" in host and not host.startswith("[") else host
    heard = asyncio.run(_listen(address, sorted(asked), wait, enough=set(range(base, base + ranks))))
    holders = {port: holder for port in own if local and (holder := port_owner(port)) is not None}
    generates = sources.is_set(v.METRIC_PORT) or bool(sources.resolve(v.FPM_TRACE).value)
    facts = _plugin_facts()
    plugin = facts is not None and facts.loads
    return World(base, ranks, listening, holders, heard, wait, generates, local, plugin)


def _listeners() -> list[tuple[str, int]]:
    found = []
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            found += listeners_of(table.read_text())
        except OSError:  # not Linux, or IPv6 is off
            continue
    return found


async def _listen(
    host: str, ports: Iterable[int], seconds: float, enough: set[int]
) -> dict[int, HeardStream]:
    """Subscribe to ``ports`` for ``seconds``; a little less once each port in ``enough`` has spoken."""
    clock = SystemClock()
    sources = {port: ZmqSource(f"tcp://{host}:{port}") for port in ports}
    heard = {port: HeardStream(port) for port in sources}
    deadline = clock.monotonic() + seconds
    try:
        while clock.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS)
            for port, source in sources.items():
                heard[port] = _hear(heard[port], source)
            if all(heard[port].messages for port in enough):
                deadline = min(deadline, clock.monotonic() + seconds / 3)
                enough = set()
    finally:
        for source in sources.values():
            source.close()
    return heard


def _hear(before: HeardStream, source: ZmqSource) -> HeardStream:
    batch = source.receive_many(_MESSAGES)
    messages, bad = before.messages, before.bad + len(batch.bad)
    worker_id, dp_rank = before.worker_id, before.dp_rank
    fault = str(batch.bad[-1]) if batch.bad else before.fault
    for payload in batch.payloads:
        try:
            metrics = decode_strict(payload)
        except (MalformedPayload, UnsupportedVersion) as error:
            bad, fault = bad + 1, str(error)
            continue
        messages, worker_id, dp_rank = messages + 1, metrics.worker_id, metrics.dp_rank
    return HeardStream(before.port, messages, bad, worker_id, dp_rank, fault)


def _all_checks(
    sources: Sources, world: World, others: tuple[PortBlock, ...], servers: Sequence[Server]
) -> list[Check]:
    blocks = blocks_of(world.base_port, world.ranks, world.heard.values(), others)
    trace_on = bool(sources.resolve(v.FPM_TRACE).value)
    settings = _trace_settings(sources)
    ports = {stream.port for stream in world.heard.values() if stream.messages}
    ports |= set(range(world.base_port, world.base_port + world.ranks))
    return [
        *check_versions(_versions(), _vllm_words()),
        *check_plugin(_plugin_facts()),
        *check_variables(sources.all(), trace_on=trace_on),
        *check_ephemeral([block for _, block in blocks], ephemeral_range()),
        *check_blocks(blocks),
        *check_exposure(
            _listeners() if world.local else [], ports, sources.resolve(v.BIND_HOST).value or "127.0.0.1"
        ),
        *check_plane(*_plane(sources)),
        check_output(settings, _output_problem(settings), trace_on=trace_on),
        check_disk(settings, _free_bytes(settings)),
        *check_engines(servers),
        *check_streams(world),
        check_arrival(world),
    ]


def _plane(sources: Sources) -> tuple[PlaneChoice, str | None]:
    """Return the event plane that is chosen, and why it cannot be used, if it cannot."""
    try:
        choice = chosen_plane(sources)
    except ConfigError as error:
        return PlaneChoice(None, error.variable), str(error)
    try:
        if choice.url:
            find_plane(choice.url)
    except (ConfigError, PlaneUnavailable) as error:
        return choice, str(error)
    return choice, None


def _trace_settings(sources: Sources) -> TraceSettings | None:
    try:
        return TraceSettings.load(sources)
    except ConfigError:
        return None


def _output_problem(settings: TraceSettings | None) -> str | None:
    """Return why files cannot be written, or ``None``. A folder that does not exist is not made."""
    if settings is None:
        return None
    folder = Path(settings.output_prefix).absolute().parent
    nearest = _existing(folder)
    try:
        prove_writable(settings.output_prefix if nearest == folder else str(nearest / "forwardpass"))
    except TracePathError as error:
        where = "" if nearest == folder else f"{settings.output_prefix} needs a new folder in {nearest}; "
        return f"{where}{error}"
    return None


def _free_bytes(settings: TraceSettings | None) -> int | None:
    if settings is None:
        return None
    try:
        return shutil.disk_usage(_existing(Path(settings.output_prefix).absolute().parent)).free
    except OSError:
        return None


def _existing(folder: Path) -> Path:
    """Return the nearest folder above that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _versions() -> dict[str, str | None]:
    return {
        "forwardpass": __version__,
        "Python": platform.python_version(),
        "pyzmq": _version("pyzmq"),
        "msgspec": _version("msgspec"),
    }


def _vllm_words() -> str | None:
    installed = find_vllm()
    if installed is None:
        return None
    return f"{installed.version} (as {installed.distribution})" if installed.distribution else "a source tree"


def _plugin_facts() -> PluginFacts | None:
    installed = find_vllm()
    if installed is None:
        return None
    return plugin_facts(installed.version, process_environment())


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _write_text(checks: list[Check]) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        click.echo(f"{check.status:<4}  {check.name:<{width}}  {check.found}")
        if check.next_step:
            click.echo(f"      {'':<{width}}  -> {check.next_step}")
