"""Knows how the text of a numeric option becomes a number, and how a wrong one is named in one line."""

from __future__ import annotations

import math
from typing import Any

import click

from forwardpass.errors import ConfigError

__all__ = ["Number", "WholeNumber", "refused"]


def refused(param: click.Parameter | None, value: object, accepted: str) -> ConfigError:
    """Return the error for an option's value: the option, what was found, what is accepted."""
    name = param.opts[0] if param is not None and param.opts else "value"
    return ConfigError(name, value, accepted)


class WholeNumber(click.IntRange):
    """Whole numbers from ``low`` to ``high``, both included; ``None`` is no limit.

    Raises :class:`ConfigError` for anything else.
    """

    name = "integer"

    def __init__(self, low: int | None = None, high: int | None = None) -> None:
        super().__init__(low, high)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            number: int = super().convert(value, param, ctx)
        except click.BadParameter as error:
            raise refused(param, value, f"a whole number{_range(self)}") from error
        return number


class Number(click.FloatRange):
    """Finite numbers from ``low`` (or above it) to ``high``; raises :class:`ConfigError` for others."""

    name = "float"

    def __init__(self, low: float, high: float | None = None, *, above: bool = False) -> None:
        super().__init__(low, high, min_open=above)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number."""
        try:
            number: float = super().convert(value, param, ctx)
            if math.isfinite(number):
                return number
        except click.BadParameter as error:
            raise refused(param, value, f"a number{_range(self)}") from error
        raise refused(param, value, f"a number{_range(self)}")


def _range(kind: click.IntRange | click.FloatRange) -> str:
    if kind.min is None:
        return ""
    if kind.max is not None:
        return f" from {kind.min:g} to {kind.max:g}"
    return f" above {kind.min:g}" if kind.min_open else f" of at least {kind.min:g}"
