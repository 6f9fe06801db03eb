"""Knows the options of commands that measure or plan: each stands for the variable that its name says."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import click

from forwardpass.config import bench_variables as v
from forwardpass.config import parse
from forwardpass.config.variables import Variable

__all__ = ["PLAN_ROWS", "RUN_ROWS", "SERVE_ROWS", "bench_options"]

PLAN_ROWS: tuple[Variable, ...] = (
    v.MODE, v.POINTS_FILE, v.PREFILL_NEW_TOKENS, v.PREFILL_KV_READS, v.PREFILL_BATCHES, v.DECODE_KV_READS,
    v.DECODE_BATCHES, v.MAX_BATCH_SIZE, v.COLLECT_IMBALANCED,
)  # fmt: skip
"""What decides which points there are."""
RUN_ROWS: tuple[Variable, ...] = (*PLAN_ROWS, v.WARMUP_ITERATIONS, v.OUTPUT_PATH, v.TIMEOUT)
"""The same, and what decides how they are run."""
SERVE_ROWS: tuple[Variable, ...] = (
    *RUN_ROWS, v.RANDOMIZE_KDA_STATE, v.HYBRID_LIVE_STATE, *(old for old, _ in v.ALIASES)
)  # fmt: skip
"""All that there are."""


def bench_options(rows: Sequence[Variable]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that gives a command an option for each of ``rows``.

    The command gets ``flags``: the texts of the options that were given, by the names of their variables,
    as :class:`~forwardpass.config.settings.Sources` takes them.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def collecting(*arguments: Any, **given: Any) -> Any:
            texts = {row.name: given.pop(row.name.lower()) for row in rows}
            flags = {name: _text(value) for name, value in texts.items() if value is not None}
            return command(*arguments, flags=flags, **given)

        decorated: Callable[..., Any] = collecting
        for row in reversed(rows):
            decorated = _option(row)(decorated)
        return decorated

    return decorate


def _option(row: Variable) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    option, name = v.OPTIONS[row.name], row.name.lower()
    words = f"{row.meaning} [{row.name}{'' if row.default in (None, '', False) else f', {row.default}'}]"
    if row.parse is parse.boolean:
        return click.option(f"{option}/--no-{option[2:]}", name, default=None, help=words)
    metavar = {v.MODE.name: "MODE", v.POINTS_FILE.name: "FILE", v.OUTPUT_PATH.name: "FILE"}.get(row.name, "N")
    return click.option(option, name, metavar=metavar, help=words)


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
