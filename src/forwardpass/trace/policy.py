"""Knows whether this worker records a trace, and with which settings: all of them valid, or none.

One invalid value turns tracing off as a unit and says so once; serving and publication go on. The other
variables never turn tracing on, and are not even looked at while it is off.
"""

from __future__ import annotations

import logging

from msgspec import Struct

from forwardpass.config import variables as v
from forwardpass.config.settings import Sources, TraceSettings
from forwardpass.errors import ConfigError

__all__ = ["TraceDecision", "announce", "decide"]

logger = logging.getLogger(__name__)

_CONSEQUENCE = "tracing is off for this worker"
_said: set[str] = set()


class TraceDecision(Struct, frozen=True):
    """What was decided about tracing. ``settings`` is set exactly if ``enabled``."""

    enabled: bool
    settings: TraceSettings | None = None
    warning: str | None = None
    """Set if tracing was asked for, or perhaps asked for, and is off: the variable, its value, what would
    have been accepted, and the consequence.
    """


def decide(sources: Sources, flag: bool | None = None) -> TraceDecision:
    """Return whether to trace. ``flag`` (``--fpm-trace``, ``--no-fpm-trace``) beats ``DYN_FPM_TRACE``.

    Nothing is logged here: see :func:`announce`.
    """
    try:
        wanted = sources.value(v.FPM_TRACE) if flag is None else flag
        settings = TraceSettings.load(sources) if wanted else None
    except ConfigError as error:
        return TraceDecision(False, warning=f"{error}; {_CONSEQUENCE}")
    return TraceDecision(settings is not None, settings)


def announce(decision: TraceDecision) -> None:
    """Log the decision's warning, each text once per process."""
    if decision.warning is not None and decision.warning not in _said:
        _said.add(decision.warning)
        logger.warning("%s", decision.warning)
