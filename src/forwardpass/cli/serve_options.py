"""Knows the options of the commands that start an engine, and how to tell them from the engine's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from forwardpass.cli.own_options import split_own
from forwardpass.config import variables as v

if TYPE_CHECKING:
    from forwardpass.cli.serving import ServeRequest

__all__ = ["OPTIONS", "PORTLESS", "OptionTable", "ServeCommand", "make_request", "serve_options"]

OptionTable = Mapping[str, tuple[v.Variable, str]]

OPTIONS: OptionTable = {
    "--fpm-output": (v.OUTPUT_PATH, "PREFIX"),
    "--fpm-mode": (v.MODE, "sampled|full"),
    "--fpm-sample-interval-ms": (v.SAMPLE_INTERVAL_MS, "MS"),
    "--fpm-roll-bytes": (v.ROLL_BYTES, "BYTES"),
    "--fpm-max-segments": (v.MAX_SEGMENTS, "N"),
    "--fpm-producer-id": (v.PRODUCER_ID, "ID"),
    "--fpm-port": (v.METRIC_PORT, "BASE"),
    "--fpm-endpoint": (v.ENDPOINT, "NAMESPACE.COMPONENT.NAME"),
    "--fpm-plane": (v.PLANE, "URL"),
}
"""Our options that stand for a variable, with what they take; the option wins over the variable."""
PORTLESS: OptionTable = {name: row for name, row in OPTIONS.items() if row[0] is not v.METRIC_PORT}
"""The same for an engine whose stream has no port of ours."""

_ALIASES = {"--fpm-producer-id": ("--producer-id",), "--fpm-plane": ("--plane",)}
_REST = "forwardpass.rest"


class ServeCommand(click.Command):
    """A command that takes its own options out and leaves everything else alone."""

    prefixes: tuple[str, ...] = ("--fpm-", "--no-fpm-")
    """An unknown option that begins so is a typing error in one of ours."""
    usage_pieces: tuple[str, ...] = ()
    """What the usage line says after the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the engine's arguments in ``ctx.meta`` and parse ours."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        flags = {
            name for option in options if option.is_flag for name in (*option.opts, *option.secondary_opts)
        }
        values = {name for option in options if not option.is_flag for name in option.opts}
        own, rest = split_own(args, values=values, flags=flags, prefixes=self.prefixes)
        ctx.meta[_REST] = rest
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line: ours and the engine's options may stand in any order."""
        return list(self.usage_pieces)


def _parameter(option: str) -> str:
    """Return the name that click passes an option's value under."""
    return option[2:].replace("-", "_")


def serve_options(table: OptionTable) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Return the decorator that gives a command ``table``'s options, the switch of the trace and quiet."""

    def decorate(command: Callable[..., int]) -> Callable[..., int]:
        command = click.option(
            "--fpm-quiet",
            "quiet",
            is_flag=True,
            help="Warnings only: no line at start, no summary at the end.",
        )(command)
        for name, (variable, metavar) in reversed(list(table.items())):
            text = f"{variable.meaning}  [{variable.name}]"
            names = (name, *_ALIASES.get(name, ()), _parameter(name))
            command = click.option(*names, metavar=metavar, help=text)(command)
        return click.option(
            "--fpm-trace/--no-fpm-trace",
            "trace",
            default=None,
            help=f"Generate forward passes and record them, or record nothing.  [{v.FPM_TRACE.name}]",
        )(command)

    return decorate


def make_request(
    ctx: click.Context, table: OptionTable, trace: bool | None, quiet: bool, given: Mapping[str, Any]
) -> ServeRequest:
    """Return what the command line said; ``given`` has the values of ``table``'s options."""
    from forwardpass.cli.serving import ServeRequest

    texts = {variable.name: given[_parameter(name)] for name, (variable, _) in table.items()}
    flags = {variable: text for variable, text in texts.items() if text is not None}
    names = {variable.name: name for name, (variable, _) in table.items()}
    return ServeRequest(tuple(ctx.meta[_REST]), trace, flags, names, quiet)
