"""Knows the identities of points and grids: digests of canonical JSON, the same wherever they are made."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from forwardpass.bench.points import Point

__all__ = ["canonical_json", "grid_digest", "invariants_digest", "point_digest", "point_key", "record"]

_ENCODER = msgspec.json.Encoder(order="sorted")
"""Writes integers and texts as :func:`canonical_json` does, and is much faster: a grid has many records."""
_KEY_DEFAULTS: dict[str, Any] = {
    "point_type": None,
    "batch_size": None,
    "total_prefill_tokens": 0,
    "total_kv_read_tokens": 0,
    "partition": None,
    "rows": None,
}
"""What identifies a measured batch, and what stands for a field that an older record lacks."""


def canonical_json(value: Any) -> str:
    """Return JSON text of ``value`` with sorted keys and no blanks; what is hashed everywhere.

    Raises ``TypeError`` or ``ValueError`` for what JSON cannot hold, NaN included.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def record(point: Point) -> dict[str, Any]:
    """Return ``point`` as it stands in artifacts; every field is present."""
    return msgspec.to_builtins(point)  # type: ignore[no-any-return]


def point_key(point: Mapping[str, Any]) -> str:
    """Return the identity of a point's content, from its record: its coordinates, and nothing of its grid."""
    return _sha256({name: point.get(name, default) for name, default in _KEY_DEFAULTS.items()})


def point_digest(point: Point) -> str:
    """Return the digest of a whole record, by which ranks see that they are about to run the same point."""
    return _sha256(record(point))


def grid_digest(points: Iterable[Point]) -> str:
    """Return the digest of a grid: its records in the order of execution, replicas included."""
    found = list(points)
    if any(
        point.partition is not None for point in found
    ):  # the only field whose text depends on the encoder
        return _sha256([record(point) for point in found])
    return hashlib.sha256(_ENCODER.encode(found)).hexdigest()


def invariants_digest(facts: Mapping[str, Any]) -> str:
    """Return the digest of what has to be the same on every rank before a grid is built."""
    return _sha256(dict(facts))


def _sha256(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
