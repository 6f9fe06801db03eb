"""The flight recorder for LLM inference engines.

Every scheduler iteration of an engine is one forward pass. This package streams a message per pass out
of the engine, relays it, records it in crash-safe traces and reads them back. Importing it loads
neither ZMQ nor an engine: names are resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forwardpass.analyze.derived import Derived as Derived
    from forwardpass.analyze.derived import derive as derive
    from forwardpass.columnar.read import read_trace_arrow as read_trace_arrow
    from forwardpass.errors import ForwardPassError as ForwardPassError
    from forwardpass.plane.blocking_subscriber import FpmSubscriber as FpmSubscriber
    from forwardpass.plane.subscriber import AsyncFpmSubscriber as AsyncFpmSubscriber
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
    "AsyncFpmSubscriber": "forwardpass.plane.subscriber",
    "Derived": "forwardpass.analyze.derived",
    "FPM_VERSION": "forwardpass.wire.schema",
    "ForwardPassError": "forwardpass.errors",
    "ForwardPassMetrics": "forwardpass.wire.schema",
    "FpmSubscriber": "forwardpass.plane.blocking_subscriber",
    "QueuedRequestMetrics": "forwardpass.wire.schema",
    "ScheduledRequestMetrics": "forwardpass.wire.schema",
    "TraceRecord": "forwardpass.trace.record",
    "decode": "forwardpass.wire.codec",
    "derive": "forwardpass.analyze.derived",
    "encode": "forwardpass.wire.codec",
    "read_trace": "forwardpass.trace.reader",
    "read_trace_arrow": "forwardpass.columnar.read",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return list(__all__)
