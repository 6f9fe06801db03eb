"""Knows which engines there are and finds their roles, importing nothing before it is asked for.

A third party adds an engine with an entry point in the group ``forwardpass.engines`` whose name is the
engine's and whose object is its :class:`~forwardpass.engines.base.FpmSource`. Our own engines are in a
table here, so that they work from a source tree that is not installed.
"""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points

from forwardpass.engines.base import FpmSource
from forwardpass.errors import ConfigError, EngineError

__all__ = ["engine_names", "find_source"]

GROUP = "forwardpass.engines"

_BUILT_IN = {
    "mock": "forwardpass.engines.mock.source",
    "sglang": "forwardpass.engines.sglang.source",
    "trtllm": "forwardpass.engines.trtllm.source",
    "vllm": "forwardpass.engines.vllm.source",
}


def engine_names() -> tuple[str, ...]:
    """Return every engine that is known here, sorted; none is imported."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def find_source(name: str) -> FpmSource:
    """Return the source role of an engine.

    Raises :class:`ConfigError` for an unknown name (it lists those that exist) and :class:`EngineError`
    for an adapter that cannot be loaded or has no such role.
    """
    if name in _BUILT_IN:
        return _checked(name, importlib.import_module(_BUILT_IN[name]).SOURCE)
    for point in entry_points(group=GROUP, name=name):
        return _checked(name, _load(point))
    raise ConfigError("engine", name, f"one of {', '.join(engine_names())}")


def _load(point: EntryPoint) -> object:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise EngineError(f"engine {point.name!r} ({point.value}) cannot be loaded: {error}") from error


def _checked(name: str, role: object) -> FpmSource:
    if not isinstance(role, FpmSource):
        raise EngineError(f"engine {name!r} offers a {type(role).__name__} where an FpmSource is expected")
    return role
