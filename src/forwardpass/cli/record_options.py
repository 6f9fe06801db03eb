"""Knows the options of the commands that record an engine that runs already, and where settings come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from forwardpass.cli.stream_options import checked_flags
from forwardpass.config import variables as v
from forwardpass.config.settings import CaptureMode, Sources
from forwardpass.errors import ConfigError
from forwardpass.plane.urls import find_plane

__all__ = ["check_plane", "record_sources", "setting_options"]

_FLAGS = {
    "output": ("--output", v.OUTPUT_PATH),
    "mode": ("--mode", v.MODE),
    "sample_interval_ms": ("--sample-interval-ms", v.SAMPLE_INTERVAL_MS),
    "roll_bytes": ("--roll-bytes", v.ROLL_BYTES),
    "max_segments": ("--max-segments", v.MAX_SEGMENTS),
    "fsync": ("--fsync", v.FSYNC),
    "producer_id": ("--producer-id", v.PRODUCER_ID),
    "endpoint": ("--endpoint", v.ENDPOINT),
    "plane": ("--plane", v.PLANE),
}


def setting_options(command: Any) -> Any:
    """Add one option per entry of ``_FLAGS``, all of them texts that the table of variables checks."""
    for name, (flag, variable) in reversed(_FLAGS.items()):
        help_text = f"{variable.meaning} [{variable.name}]"
        command = click.option(flag, name, metavar=_METAVARS.get(name, "TEXT"), help=help_text)(command)
    return command


_METAVARS = {
    "output": "PREFIX",
    "mode": "full|sampled",
    "sample_interval_ms": "MS",
    "roll_bytes": "BYTES",
    "max_segments": "N",
    "fsync": "never|segment|flush",
    "producer_id": "ID",
    "endpoint": "NS.COMPONENT.NAME",
    "plane": "URL",
}


def record_sources(texts: Mapping[str, str | None], env: Mapping[str, str] | None = None) -> Sources:
    """Return where settings come from: the flags, then the environment, then the command's own default.

    That default is the mode: an explicit command to record means every pass.
    """
    flags = checked_flags((flag, variable, texts.get(name)) for name, (flag, variable) in _FLAGS.items())
    sources = Sources(env, flags)
    if sources.resolve(v.MODE).source == "default":
        sources = Sources(env, {**flags, v.MODE.name: CaptureMode.FULL.value})
    return sources


def check_plane(url: str | None, *, flag_given: bool) -> None:
    """Refuse a plane that nobody provides before anything is said or opened."""
    if url is None:
        return
    try:
        find_plane(url)
    except ConfigError as error:
        if flag_given:
            raise ConfigError("--plane", error.value, error.accepted) from error
        raise
