"""Knows files that say what an engine can hold: written for it, or an artifact of a benchmark that it ran."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
from msgspec import Struct

from forwardpass.bench.limits import CapacityEnvelope, EngineLayout, GraphSettings, KvGroup
from forwardpass.errors import ManifestError

__all__ = [
    "MAX_BYTES",
    "MAX_NUMBER",
    "MAX_REQUESTS",
    "MAX_TOKENS",
    "EngineLimits",
    "limits_from",
    "read_document",
]

MAX_BYTES = 1024**3
"""A larger file is refused unread; 64 ranks of 5,000 points in one artifact are about half of it."""


MAX_REQUESTS = 2**20
MAX_TOKENS = 2**24
MAX_NUMBER = 2**40
"""Beyond any engine; what is above them is a mistake, and planning for it would take for ever."""


class EngineLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """One engine, or the common ground of its ranks."""

    layout: EngineLayout
    capacity: CapacityEnvelope


def read_document(path: Path, option: str) -> dict[str, Any]:
    """Return the JSON object in a file. Raises :class:`ManifestError`, which names ``option``."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ManifestError(option, str(path), [f"larger than {MAX_BYTES} bytes"])
        document = msgspec.json.decode(path.read_bytes())
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ManifestError(option, str(path), [str(error)]) from error
    if not isinstance(document, dict):
        raise ManifestError(option, str(path), ["expected a JSON object"])
    return document


def limits_from(document: Any, option: str, path: str) -> EngineLimits:
    """Return the limits in a document; nothing unknown, nothing that contradicts itself.

    Raises :class:`ManifestError` with all that is wrong.
    """
    try:
        found = msgspec.convert(document, EngineLimits)
    except msgspec.MsgspecError as error:
        raise ManifestError(option, path, [str(error)]) from error
    problems = [*_unknown(document, EngineLimits, "$"), *_problems(found)]
    if problems:
        raise ManifestError(option, path, problems)
    return found


def _unknown(document: Any, struct: type[Struct], where: str) -> Iterator[str]:
    """Yield the keys that ``struct`` does not have, down to the structs within it."""
    fields = {field.name: field.type for field in msgspec.structs.fields(struct)}
    for key in document:
        if key not in fields:
            yield f"{where}.{key}: found a field that there is not, expected one of {', '.join(fields)}"
            continue
        kind, value = fields[key], document[key]
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _unknown(value, kind, f"{where}.{key}")
        elif KvGroup in get_args(kind):
            for index, group in enumerate(value):
                yield from _unknown(group, KvGroup, f"{where}.{key}[{index}]")


def _problems(limits: EngineLimits) -> Iterator[str]:
    layout, capacity = limits.layout, limits.capacity
    yield from _within(1, MAX_REQUESTS, capacity, "max_num_running_reqs", "$.capacity")
    yield from _within(1, MAX_TOKENS, capacity, "max_num_scheduled_tokens", "$.capacity")
    yield from _within(1, MAX_NUMBER, capacity, "max_model_len", "$.capacity")
    for name in ("usable_blocks_without_watermark", "usable_blocks_with_watermark"):
        yield from _within(0, MAX_NUMBER, capacity, name, "$.capacity")
    for name in ("block_size", "hash_block_size"):
        yield from _within(1, MAX_TOKENS, layout, name, "$.layout")
    for name in ("lookahead_tokens", "long_prefill_threshold", "cache_block_size"):
        yield from _within(0, MAX_TOKENS, layout, name, "$.layout")
    for index, group in enumerate(layout.groups):
        where = f"$.layout.groups[{index}]"
        yield from _within(1, MAX_TOKENS, group, "block_size", where)
        for name in ("speculative_blocks", "checkpoint_blocks"):
            yield from _within(0, MAX_TOKENS, group, name, where)
        if group.admission_cap is not None:
            yield from _within(1, MAX_NUMBER, group, "admission_cap", where)
    yield from _graph_problems(layout.graph)


def _graph_problems(graph: GraphSettings) -> Iterator[str]:
    sizes = graph.capture_sizes
    if list(sizes) != sorted(set(sizes)) or (sizes and not 1 <= sizes[0] <= sizes[-1] <= MAX_TOKENS):
        yield f"$.layout.graph.capture_sizes: found {list(sizes)}, expected each once, ascending, above 0"


def _within(least: int, most: int, owner: Struct, name: str, where: str) -> Iterator[str]:
    value = getattr(owner, name)
    if not least <= value <= most:
        yield f"{where}.{name}: found {value}, expected {least} … {most}"
