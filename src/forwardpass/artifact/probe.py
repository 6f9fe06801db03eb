"""Knows what a worker's reply may hold, and what is wrong with one: the issues of each reply by itself.

Replies come from foreign processes: whatever they are, they are kept, and no reply is an exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct, field

from forwardpass.jsonsafe import json_safe

__all__ = ["ProbeFailed", "ProbeReplies", "ProbeSkipped", "Response", "failure_text", "responses_of"]

RANKS = ("dp_rank", "worker_rank", "tp_rank")
"""Must be there."""
OPTIONAL_RANKS = ("pp_rank", "pcp_rank")
MAX_SHOWN = 2000
"""Characters that are kept of a reply without a JSON form."""


class Response(Struct):
    """One reply, as it is kept."""

    rpc_index: int
    response: Any
    issues: list[str] = field(default_factory=list)

    def number(self, name: str) -> int | None:
        """Return a rank that the reply names, ``None`` if it names none that is one."""
        value = self.response.get(name) if isinstance(self.response, dict) else None
        return value if type(value) is int and value >= 0 else None


class ProbeReplies(Struct, frozen=True):
    """The call came back. ``result`` is what it returned: a list of replies, or one."""

    result: Any


class ProbeFailed(Struct, frozen=True):
    """The call failed or took too long (``error`` is its type and text)."""

    error: str


class ProbeSkipped(Struct, frozen=True):
    """The workers were not asked: they run a class of the user's own (``reason`` names it)."""

    reason: str


def failure_text(error: BaseException) -> str:
    """Return ``Type: text`` of an error; the type is there even if it has no text, as of a bare timeout."""
    return f"{type(error).__name__}: {error}".rstrip().rstrip(":")


def responses_of(result: Any) -> list[Response]:
    """Return the replies of a call with the issues that each has by itself, and those of two alike."""
    replies = result if isinstance(result, list) else [result]
    responses = [_response(index, reply) for index, reply in enumerate(replies)]
    seen: dict[tuple[int, int], list[Response]] = {}
    for response in responses:
        rank, worker = response.number("dp_rank"), response.number("worker_rank")
        if rank is not None and worker is not None:
            seen.setdefault((rank, worker), []).append(response)
    for (rank, worker), copies in seen.items():
        if len(copies) > 1:
            for response in copies:
                response.issues.append(f"{len(copies)} replies of worker {worker} of DP rank {rank}")
    return responses


def _response(index: int, reply: Any) -> Response:
    kept = _as_json(reply)
    if kept is msgspec.UNSET:
        described = {"unserializable_type": type(reply).__name__, "repr": _shown(reply)}
        return Response(index, described, ["not a JSON value"])
    if not isinstance(kept, dict):
        return Response(index, kept, [f"expected an object, found a {type(kept).__name__}"])
    return Response(index, kept, list(_issues(kept)))


def _as_json(value: Any) -> Any:
    """Return what JSON makes of ``value``, ``UNSET`` if it has no form for it."""
    try:
        kept = json.loads(json.dumps(value, allow_nan=False))
        msgspec.json.encode(kept)  # refuses text that is no Unicode
    except (TypeError, ValueError, RecursionError):
        return msgspec.UNSET
    return kept


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  boundary: a foreign object's text; its type stands beside it
        text = ""
    return str(json_safe(text[:MAX_SHOWN]))


def _issues(reply: dict[str, Any]) -> Iterable[str]:
    for name in RANKS:
        if name not in reply:
            yield f"{name} is missing"
        elif not _is_count(reply[name]):
            yield f"{name} is no whole number of at least 0"
    for name in OPTIONAL_RANKS:
        if reply.get(name) is not None and not _is_count(reply[name]):
            yield f"{name} is neither null nor a whole number of at least 0"
    backends = reply.get("attention_backends")
    if not isinstance(backends, dict) or not all(isinstance(one, str) and one for one in backends.values()):
        yield "attention_backends is not layer -> name"
    for name in ("mla_prefill_backend", "cudagraph_mode_resolved"):
        if not isinstance(reply.get(name), str | None):
            yield f"{name} is neither null nor text"
    sizes = reply.get("cudagraph_capture_sizes_resolved")
    if not isinstance(sizes, list) or not all(_is_count(size) and size >= 1 for size in sizes):
        yield "cudagraph_capture_sizes_resolved is no list of whole numbers of at least 1"


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0
