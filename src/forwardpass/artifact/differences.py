"""Knows where two parsed documents differ, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from forwardpass.artifact.shape import Path

__all__ = ["Difference", "differences"]

Difference = tuple[Path, Any, Any]
"""Path, and the value on either side; ``UNSET`` where there is none."""


def differences(one: Any, other: Any, path: Path = ()) -> Iterator[Difference]:
    """Yield where ``one`` and ``other`` differ. Numbers are compared by value; true is no number."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            yield from differences(one.get(key, UNSET), other.get(key, UNSET), (*path, key))
    elif isinstance(one, list) and isinstance(other, list):
        for at in range(max(len(one), len(other))):
            left = one[at] if at < len(one) else UNSET
            right = other[at] if at < len(other) else UNSET
            yield from differences(left, right, (*path, at))
    elif isinstance(one, bool) is not isinstance(other, bool) or one != other:
        yield path, one, other
