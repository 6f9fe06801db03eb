"""Knows why an engine that runs on this host gives no stream. Pure: what was seen of it in, checks out.

One table of reasons, by engine; the first that fits a server is its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct

from forwardpass.cli.doctor_checks import Check, Status
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.config.variables import FPM_TRACE, METRIC_PORT
from forwardpass.engines.roles import Backend, Role
from forwardpass.engines.sglang.arguments import read_arguments as read_sglang
from forwardpass.engines.sglang.role import launch_role
from forwardpass.engines.sglang.topology import local_ranks
from forwardpass.engines.vllm.arguments import read_arguments as read_vllm
from forwardpass.engines.vllm.launch import SCHEDULER
from forwardpass.engines.vllm.role import serve_role

__all__ = ["NAMES", "REASONS", "Reason", "Server", "check_engines", "recognise", "sockets_of"]

NAMES = {Backend.VLLM: "vLLM", Backend.SGLANG: "SGLang", Backend.TRTLLM: "TensorRT-LLM", Backend.MOCK: "mock"}
_SERVE = "forwardpass {} serve … --fpm-trace"
STATISTICS = "enable_iter_perf_stats"


class Server(Struct, frozen=True):
    """One engine that runs on this host."""

    backend: Backend
    pid: int
    arguments: tuple[str, ...]
    """Its own, after what names its program."""
    environment: Mapping[str, str] | None = None
    """``None`` where this user may not see it."""
    sockets: Mapping[str, bool] = {}
    """Path of each socket that it should publish on, and whether it is there."""
    heard: int = 0
    """Messages heard there."""
    options: Mapping[str, object] | None = None
    """Of TensorRT-LLM: what its options file says; ``None`` without one that can be read."""


class Reason(Struct, frozen=True):
    """Why a server of ``backend`` gives no stream."""

    backend: Backend
    fits: Callable[[Server], bool]
    found: Callable[[Server], str]
    next_step: str


def recognise(words: tuple[str, ...]) -> tuple[Backend, tuple[str, ...]] | None:
    """Return the engine that a command line runs, and the engine's own arguments; ``None`` for none.

    Programs that start an engine name it as well, so only the program itself counts: ``python -m MODULE``, or
    a script.
    """
    for position, word in enumerate(words[:4]):
        name = word.rpartition("/")[2]
        is_module = position > 0 and words[position - 1] == "-m"
        rest = words[position + 1 :]
        if is_module and word == "sglang.launch_server":
            return Backend.SGLANG, rest
        if is_module and word == "vllm.entrypoints.openai.api_server":
            return Backend.VLLM, rest
        if (is_module and word == "vllm.entrypoints.cli.main") or (name == "vllm" and not is_module):
            return (Backend.VLLM, rest[1:]) if rest[:1] == ("serve",) else None
        if name == "sglang" and not is_module:
            return (Backend.SGLANG, rest[1:]) if rest[:1] == ("serve",) else None
        if name == "trtllm-serve":
            return Backend.TRTLLM, rest
        if name == "forwardpass":
            return (Backend.MOCK, rest[1:]) if rest[:1] == ("mock",) else None
    return None


def sockets_of(backend: Backend, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the paths of the sockets that a server should publish on, where its arguments tell."""
    if backend is not Backend.SGLANG:
        return ()
    facts = read_sglang(arguments)
    if not facts.switched_on or not (facts.ipc_name or "").startswith("ipc://"):
        return ()
    base = (facts.ipc_name or "").removeprefix("ipc://")
    return tuple(f"{base}.{rank}" for rank in local_ranks(facts))


def check_engines(servers: Iterable[Server]) -> list[Check]:
    """Judge every engine that runs here; nothing where none does."""
    return [_check(server) for server in servers]


def _check(server: Server) -> Check:
    name = f"{NAMES[server.backend]}, pid {server.pid}"
    for reason in REASONS:
        if reason.backend is server.backend and reason.fits(server):
            return Check(name, Status.WARN, reason.found(server), reason.next_step)
    if server.heard:
        return Check(name, Status.OK, f"publishes on its sockets; {counted(server.heard, 'message')}")
    return Check(name, Status.OK, _WELL[server.backend])


_WELL = {
    Backend.VLLM: "nothing in its arguments keeps it from being recorded",
    Backend.SGLANG: "its sockets are there",
    Backend.TRTLLM: "its statistics are on: `forwardpass trtllm --metrics-url …` records them",
    Backend.MOCK: "it always publishes, at its own port (--port)",
}


def _role(server: Server) -> Role:
    if server.backend is Backend.SGLANG:
        return launch_role(read_sglang(server.arguments))
    return serve_role(read_vllm(server.arguments))


def _unsupported(server: Server) -> bool:
    return not _role(server).supported


def _role_words(server: Server) -> str:
    return f"its role, {_role(server).name}, has no forward passes to stream"


def _scheduler(server: Server) -> str | None:
    return read_vllm(server.arguments).scheduler_cls


def _asked_for(server: Server) -> bool:
    """Say whether anything asks this vLLM for forward passes, as far as this user may know."""
    if server.environment is None or _scheduler(server) == SCHEDULER:
        return True
    on = server.environment.get(FPM_TRACE.name, "").strip().lower() in ("1", "true", "on", "yes")
    return on or bool(server.environment.get(METRIC_PORT.name, "").strip())


def _missing(server: Server) -> list[str]:
    return [path for path, there in server.sockets.items() if not there]


def _statistics_on(server: Server) -> bool:
    return server.options is not None and server.options.get(STATISTICS) is True


def _events_only(server: Server) -> bool:
    cache = (server.options or {}).get("kv_cache_config")
    return isinstance(cache, Mapping) and bool(cache.get("event_buffer_max_size"))


REASONS: tuple[Reason, ...] = (
    Reason(
        Backend.VLLM, _unsupported, _role_words, "nothing to do: it serves, and is not recorded"
    ),
    Reason(
        Backend.VLLM,
        lambda server: _scheduler(server) not in (None, SCHEDULER),
        lambda server: f"its --scheduler-cls is {printable(_scheduler(server) or '', 100)}, not ours",
        f"remove the option, or derive that class from {SCHEDULER}",
    ),
    Reason(
        Backend.VLLM,
        lambda server: not _asked_for(server),
        lambda server: "nothing in its environment asks it for forward passes",
        f"start it with {FPM_TRACE.name}=1, or as `{_SERVE.format('vllm')}`",
    ),
    Reason(
        Backend.SGLANG, _unsupported, _role_words, "nothing to do: it serves, and is not recorded"
    ),
    Reason(
        Backend.SGLANG,
        lambda server: not read_sglang(server.arguments).switched_on,
        lambda server: "it runs without --enable-forward-pass-metrics",
        f"start it as `{_SERVE.format('sglang')}`, which sets that",
    ),
    Reason(
        Backend.SGLANG,
        lambda server: read_sglang(server.arguments).ipc_name is None,
        lambda server: "its publisher is on, at a socket whose name it invented and tells nobody",
        "give it --forward-pass-metrics-ipc-name ipc:///tmp/NAME, or start it as "
        f"`{_SERVE.format('sglang')}`",
    ),
    Reason(
        Backend.SGLANG,
        lambda server: bool(_missing(server)),
        lambda server: f"its socket {printable(_missing(server)[0], 120)} is not there",
        "wait until it is up; if it runs in a container, mount the folder of the socket here",
    ),
    Reason(
        Backend.SGLANG,
        lambda server: bool(server.sockets) and not server.heard,
        lambda server: "its sockets are there, and it said nothing while doctor listened",
        "it speaks once a second while idle: is it stuck, or does it start? (--wait listens longer)",
    ),
    Reason(
        Backend.TRTLLM,
        lambda server: not _statistics_on(server) and _events_only(server),
        lambda server: "it has KV cache events only, and no iteration statistics",
        f"set {STATISTICS}: true in its options file as well",
    ),
    Reason(
        Backend.TRTLLM,
        lambda server: not _statistics_on(server),
        lambda server: f"{STATISTICS} is not true in an options file that can be read here",
        f"set {STATISTICS}: true there; a build whose statistics lack token counts is too old in any case, "
        "and `forwardpass trtllm` says so",
    ),
)  # fmt: skip
