"""Knows which payloads a trace may hold, and returns them as the JSON-ready map that is written.

Stricter than :func:`~forwardpass.wire.codec.decode`: every field of the schema must be present and
canonical, because a default is not evidence. Unknown fields are kept, unchanged and in place.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from forwardpass.errors import MalformedPayload, UnsupportedVersion
from forwardpass.wire.codec import BYTES_ERRORS, decode_first, malformed, refusal
from forwardpass.wire.schema import FPM_VERSION

__all__ = [
    "CanonicalMetrics",
    "CanonicalQueued",
    "CanonicalScheduled",
    "require_json",
    "validate_payload",
]

Count = Annotated[int, Meta(ge=0)]
Id = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Finite = Count | Annotated[float, Meta(ge=0.0, le=1.7976931348623157e308)]
"""A finite number >= 0, an integer staying one; NaN satisfies no bound, so it is refused as well."""

MAX_DEPTH = 100
"""Deepest nesting of an unknown field. Common JSON readers stop at 128, and a row adds three levels."""


class CanonicalScheduled(Struct, frozen=True, gc=False):
    """``scheduled_requests`` with every field present."""

    num_prefill_requests: Count
    sum_prefill_tokens: Count
    var_prefill_length: Finite
    sum_prefill_kv_tokens: Count
    num_decode_requests: Count
    sum_decode_kv_tokens: Count
    var_decode_kv_tokens: Finite


class CanonicalQueued(Struct, frozen=True, gc=False):
    """``queued_requests`` with every field present."""

    num_prefill_requests: Count
    sum_prefill_tokens: Count
    var_prefill_length: Finite
    num_decode_requests: Count
    sum_decode_kv_tokens: Count
    var_decode_kv_tokens: Finite


class CanonicalMetrics(Struct, frozen=True, gc=False):
    """A whole message with every field present and in range; field order is the schema's."""

    version: Annotated[int, Meta(ge=FPM_VERSION, le=FPM_VERSION)]
    worker_id: str
    dp_rank: Id
    counter_id: Id
    wall_time: Finite
    scheduled_requests: CanonicalScheduled
    queued_requests: CanonicalQueued


_map_decoder = msgspec.msgpack.Decoder(dict[str, Any])

_KNOWN = (
    ("scheduled_requests", frozenset(CanonicalScheduled.__struct_fields__)),
    ("queued_requests", frozenset(CanonicalQueued.__struct_fields__)),
)
_KNOWN_TOP = frozenset(CanonicalMetrics.__struct_fields__)


def validate_payload(data: bytes) -> dict[str, Any]:
    """Return the map in ``data``: key order kept, integers still integers, ready for JSON. Bytes after it are
    passed over, as the reference's trace does.

    Raises :class:`UnsupportedVersion` for an integer version other than 1, else
    :class:`MalformedPayload` with the path of an offending field.
    """
    try:
        document = decode_first(_map_decoder, data)
    except BYTES_ERRORS as error:
        raise refusal(data, error) from error
    version = document.get("version")
    if type(version) is int and version != FPM_VERSION:
        raise UnsupportedVersion(version, FPM_VERSION)
    try:
        msgspec.convert(document, CanonicalMetrics)
    except BYTES_ERRORS as error:
        raise malformed(error) from error
    _check_unknown(document, _KNOWN_TOP, "$")
    for name, known in _KNOWN:
        _check_unknown(document[name], known, f"$.{name}")
    return document


def require_json(value: Any) -> None:
    """Raise :class:`MalformedPayload` unless JSON has a form for ``value`` that reads back the same."""
    _require_json(value, "$", MAX_DEPTH)


def _check_unknown(fields: dict[Any, Any], known: frozenset[str], path: str) -> None:
    if len(fields) == len(known):  # every known field is there: no other can be
        return
    for key, value in fields.items():
        if key not in known:
            _require_json({key: value}, path, MAX_DEPTH)


def _require_json(value: Any, path: str, depth: int) -> None:
    """Refuse what JSON has no form for: binary, extension and non-finite values, keys that are no strings."""
    if depth < 0:
        raise MalformedPayload("nested too deeply", path)
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MalformedPayload(f"key {key!r} is not a string", path)
            _require_json(item, f"{path}.{key}", depth - 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _require_json(item, f"{path}[{index}]", depth - 1)
    elif isinstance(value, float):
        if not math.isfinite(value):  # an encoder would silently write null
            raise MalformedPayload(f"{value} has no form in JSON", path)
    elif value is not None and not isinstance(value, (str, int)):  # bool is an int
        raise MalformedPayload(f"{type(value).__name__} has no form in JSON", path)
