"""The flight recorder for LLM inference engines.

Every scheduler iteration of an engine is one forward pass. This package streams a message per pass out
of the engine, relays it, records it in crash-safe traces and reads them back. Importing it loads
neither ZMQ nor an engine: names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forwardpass.errors import ForwardPassError as ForwardPassError
    from forwardpass.trace.reader import read_trace as read_trace
    from forwardpass.trace.record import TraceRecord as TraceRecord
    from forwardpass.wire.codec import decode as decode
    from forwardpass.wire.codec import encode as encode
    from forwardpass.wire.schema import FPM_VERSION as FPM_VERSION
    from forwardpass.wire.schema import ForwardPassMetrics as ForwardPassMetrics
    from forwardpass.wire.schema import QueuedRequestMetrics as QueuedRequestMetrics
    from forwardpass.wire.schema import ScheduledRequestMetrics as ScheduledRequestMetrics

__version__ = "0.1.0"

_HOMES = {
    "FPM_VERSION": "forwardpass.wire.schema",
    "ForwardPassError": "forwardpass.errors",
    "ForwardPassMetrics": "forwardpass.wire.schema",
    "QueuedRequestMetrics": "forwardpass.wire.schema",
    "ScheduledRequestMetrics": "forwardpass.wire.schema",
    "TraceRecord": "forwardpass.trace.record",
    "decode": "forwardpass.wire.codec",
    "encode": "forwardpass.wire.codec",
    "read_trace": "forwardpass.trace.reader",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
