"""Knows how to tell our options from those of the program that we start.

Ours are recognised anywhere and taken out; everything else goes through untouched and in order. The
first ``--`` ends our options and is taken out too.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

__all__ = ["split_own"]


def split_own(
    arguments: Sequence[str], *, values: AbstractSet[str], flags: AbstractSet[str], prefixes: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return (ours, the program's).

    ``values`` are our options that take one, ``flags`` those that take none; underscores may stand for
    dashes. An unknown option that starts with one of ``prefixes`` is counted as ours, so that a typing
    error is reported by us and not by a program that takes ten seconds to start.
    """
    own: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--":
            rest += arguments[position:]
            break
        name, equals, value = argument.partition("=")
        name = name.replace("_", "-") if name.startswith("--") else name
        if name in values and not equals:
            own += [name, *arguments[position : position + 1]]
            position += 1
        elif name in values or name.startswith(tuple(prefixes)) or (name in flags and not equals):
            own.append(f"{name}{equals}{value}")
        else:
            rest.append(argument)
    return own, rest
