"""Knows how a value of a foreign program becomes a JSON value, the same one each time.

Names of enums rather than their numbers, fields of dataclasses, the one number of an array scalar; whatever
else is left becomes its text. Nothing here raises: what is recorded must not fail what is run.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["MAX_DEPTH", "json_safe"]

MAX_DEPTH = 50
"""Deeper values, and those that hold themselves, become text."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
"""Of an object without a text of its own; differs from run to run and from rank to rank."""


def json_safe(value: Any) -> Any:
    """Return ``value`` in the types of JSON: ``None``, bool, int, finite float, str, list, dict of str.

    Enum members become their names, sets sorted lists (by text where they cannot be compared), tuples lists,
    dataclass instances dicts of their fields, objects with ``item()`` that scalar; numbers that are not
    finite and everything else become text, without a leading ``torch.`` and without addresses.
    """
    return _safe(value, MAX_DEPTH)


def _safe(value: Any, depth: int) -> Any:
    if isinstance(value, Enum):  # before numbers: an IntEnum is one
        return str(value.name)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str):
        return _encodable(str(value))
    if depth <= 0:
        return _text(value)
    return _compound(value, depth - 1)


def _compound(value: Any, depth: int) -> Any:
    if isinstance(value, Mapping):
        return {_key(key): _safe(item, depth) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return _sorted([_safe(item, depth) for item in value])
    if isinstance(value, list | tuple):
        return [_safe(item, depth) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: _safe(getattr(value, name, None), depth) for name in names}
    return _scalar_or_text(value, depth)


def _scalar_or_text(value: Any, depth: int) -> Any:
    try:
        scalar = value.item()
    except Exception:  # noqa: BLE001  boundary: a foreign object's method; its text is recorded instead
        return _text(value)
    return _safe(scalar, depth)


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=str)


def _key(key: Any) -> str:
    return _encodable(str(key.name)) if isinstance(key, Enum) else _text(key)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except Exception:  # noqa: BLE001  boundary: a foreign object's text; its type is recorded instead
        text = f"<{type(value).__name__}>"
    return _encodable(_ADDRESS.sub("", text).removeprefix("torch."))


def _encodable(text: str) -> str:
    """Return ``text`` with lone surrogates escaped: UTF-8 has no form for them."""
    return text.encode("utf-8", "backslashreplace").decode()
