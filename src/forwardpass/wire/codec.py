"""Knows how to turn messages into bytes and back.

Three ways to read, for three kinds of reader: :func:`decode` never raises and returns ``None`` for what
it cannot use (the reference's contract); :func:`decode_strict` raises the declared errors;
:func:`decode_full` also keeps the fields that this version does not know, so that re-encoding loses
nothing (decision D-8). The trace applies the stricter rules of ``validate.py``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw, Struct

from forwardpass.errors import MalformedPayload, UnsupportedVersion, WireError
from forwardpass.quiet import QuietLog
from forwardpass.wire.schema import FPM_VERSION, ForwardPassMetrics

__all__ = [
    "BYTES_ERRORS",
    "Decoded",
    "decode",
    "decode_first",
    "decode_full",
    "decode_strict",
    "encode",
    "faults",
    "malformed",
    "refusal",
    "stamp",
]

logger = logging.getLogger(__name__)

T = TypeVar("T")

_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")
"""Wording of msgspec 0.19 to 0.23; test_envelope.py::test_trailing_bytes_are_ignored notices a change."""

BYTES_ERRORS = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    MemoryError,
    OverflowError,
    TypeError,
)
"""Everything that decoding arbitrary bytes may raise. Nesting too deep is a RecursionError; msgspec before
0.22 raises TypeError for a map that is the key of another.
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ForwardPassMetrics)
_raw_map_decoder = msgspec.msgpack.Decoder(dict[str, Raw])

faults = QuietLog(logger)
"""What :func:`decode` refused in this process: ``faults.total((reason, source))`` is how often, with
``reason`` one of ``malformed`` and ``unsupported_version``.
"""

_NESTED = ("scheduled_requests", "queued_requests")


class _VersionOnly(Struct):
    version: int = FPM_VERSION


_version_decoder = msgspec.msgpack.Decoder(_VersionOnly)


class Decoded(NamedTuple):
    """A message and what else its map held."""

    metrics: ForwardPassMetrics
    unknown: dict[str, Any]
    """Fields unknown to this version, at their place: unknown fields of a nested map stand in a map
    under its name. Each value is the ``msgspec.Raw`` MessagePack of the field, undecoded, so that nothing
    is lost on the way out again. Empty for messages of this version.
    """


def stamp(
    metrics: ForwardPassMetrics,
    counter_id: int,
    worker_id: str | None = None,
    dp_rank: int | None = None,
) -> ForwardPassMetrics:
    """Return ``metrics`` with ``counter_id`` set, and the identity where it is given."""
    return ForwardPassMetrics(
        metrics.version,
        metrics.worker_id if worker_id is None else worker_id,
        metrics.dp_rank if dp_rank is None else dp_rank,
        counter_id,
        metrics.wall_time,
        metrics.scheduled_requests,
        metrics.queued_requests,
    )


def encode(metrics: ForwardPassMetrics, unknown: Mapping[str, Any] | None = None) -> bytes:
    """Return the MessagePack map of ``metrics``: every field, in schema order, smallest integer forms.

    ``unknown`` (as :func:`decode_full` returns it) is added after the known fields of each map.
    """
    if not unknown:
        return _encoder.encode(metrics)
    document: dict[str, Any] = msgspec.structs.asdict(metrics)
    for name, value in unknown.items():
        if name in _NESTED:
            document[name] = {**msgspec.structs.asdict(document[name]), **value}
        else:
            document[name] = value
    return _encoder.encode(document)


def decode_strict(data: bytes) -> ForwardPassMetrics:
    """Return the message in ``data``.

    Unknown fields are ignored and missing ones take their defaults. Raises :class:`UnsupportedVersion`
    for a map whose ``version`` is another integer, even if its body would not decode, and
    :class:`MalformedPayload` for anything else that is not a message.
    """
    try:
        metrics = _decoder.decode(data)
    except BYTES_ERRORS as error:
        raise refusal(data, error) from error
    if metrics.version != FPM_VERSION:
        raise UnsupportedVersion(metrics.version, FPM_VERSION)
    return metrics


def decode(data: bytes, *, source: str = "", faults: QuietLog = faults) -> ForwardPassMetrics | None:
    """Return the message in ``data``, or ``None``; never raises (decision D-6).

    At most one warning a minute is logged per reason and ``source`` (a label of the caller's); ``faults``
    counts them all.
    """
    try:
        return decode_strict(data)
    except WireError as error:
        reason = "unsupported_version" if isinstance(error, UnsupportedVersion) else "malformed"
        where = f" from {source}" if source else ""
        faults.warning((reason, source), f"ignoring a Forward Pass Metrics message{where}: {error}")
        return None


def decode_full(data: bytes) -> Decoded:
    """Return the message in ``data`` together with the fields this version does not know.

    Raises as :func:`decode_strict`, and :class:`MalformedPayload` also for an unknown field whose name is
    not text. For a message that uses a key twice the last one counts.
    """
    metrics = decode_strict(data)
    try:
        document = _raw_map_decoder.decode(data)
        unknown: dict[str, Any] = _without(document, ForwardPassMetrics.__struct_fields__)
        for name in _NESTED:
            known = type(getattr(metrics, name)).__struct_fields__
            extra = _without(_raw_map_decoder.decode(document.get(name, b"\x80")), known)
            if extra:
                unknown[name] = extra
    except BYTES_ERRORS as error:
        raise malformed(error) from error
    return Decoded(metrics, unknown)


def decode_first(decoder: msgspec.msgpack.Decoder[T], data: bytes) -> T:
    """Return the first value in ``data``; bytes after it are passed over. Raises what decoding raises."""
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        trailing = _TRAILING.search(str(error))
        if trailing is None:
            raise
        return decoder.decode(data[: int(trailing[1])])


def refusal(data: bytes, error: BaseException) -> WireError:
    """Return the declared error for ``data``, given what decoding it raised.

    The version is looked at first and leniently, so that a message of another version is called
    unsupported even where its body has another shape.
    """
    try:
        version = _version_decoder.decode(data).version
    except BYTES_ERRORS:
        return malformed(error)
    return malformed(error) if version == FPM_VERSION else UnsupportedVersion(version, FPM_VERSION)


def malformed(error: BaseException) -> MalformedPayload:
    """Return our error for what msgspec raised, with the path of the field it names."""
    text = str(error)
    if isinstance(error, RecursionError):
        text = "nested too deeply"
    reason, _, path = text.partition(" - at `")
    return MalformedPayload(reason, path.rstrip("`").replace("` in `", " of ") if path else "$")


def _without(document: Mapping[str, Raw], known: tuple[str, ...]) -> dict[str, Raw]:
    return {name: value for name, value in document.items() if name not in known}
