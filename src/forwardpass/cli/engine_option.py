"""Knows how a command is told which engine it deals with."""

from __future__ import annotations

from forwardpass.engines.base import FpmSource
from forwardpass.engines.registry import find_source
from forwardpass.errors import ConfigError

__all__ = ["named_engine"]


def named_engine(name: str | None) -> FpmSource | None:
    """Return what is known of the engine called ``name``; ``None`` where none is named.

    Raises :class:`ConfigError` that names the option for an engine that nobody provides.
    """
    if name is None:
        return None
    try:
        return find_source(name)
    except ConfigError as error:
        raise ConfigError("--engine", error.value, error.accepted) from error
