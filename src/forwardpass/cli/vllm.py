"""Knows the command line of ``forwardpass vllm serve``: which options are ours and which are vLLM's."""

from __future__ import annotations

from collections.abc import Callable

import click

from forwardpass.cli.own_options import split_own
from forwardpass.config import variables as v

__all__ = ["OPTIONS", "ServeCommand", "serve", "vllm"]

OPTIONS: dict[str, tuple[v.Variable, str]] = {
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

_ALIASES = {"--fpm-producer-id": ("--producer-id",), "--fpm-plane": ("--plane",)}
_REST = "forwardpass.rest"


class ServeCommand(click.Command):
    """A command that takes its own options out and leaves everything else alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep vLLM's arguments in ``ctx.meta`` and parse ours."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        flags = {
            name for option in options if option.is_flag for name in (*option.opts, *option.secondary_opts)
        }
        values = {name for option in options if not option.is_flag for name in option.opts}
        own, rest = split_own(args, values=values, flags=flags, prefixes=("--fpm-", "--no-fpm-"))
        ctx.meta[_REST] = rest
        return super().parse_args(ctx, own)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the usage line: ours and vLLM's options may stand in any order."""
        return ["MODEL", "[OPTIONS AND VLLM'S OWN ARGUMENTS]..."]


@click.group()
def vllm() -> None:
    """Start stock vLLM with every forward pass recorded.

    The exit code is the server's.

    \b
    Example:
      forwardpass vllm serve MODEL --fpm-trace
    """


def _parameter(option: str) -> str:
    """Return the name that click passes an option's value under."""
    return option[2:].replace("-", "_")


def _variable_options(command: Callable[..., int]) -> Callable[..., int]:
    for name, (variable, metavar) in reversed(OPTIONS.items()):
        text = f"{variable.meaning}  [{variable.name}]"
        names = (name, *_ALIASES.get(name, ()), _parameter(name))
        command = click.option(*names, metavar=metavar, help=text)(command)
    return command


@vllm.command(cls=ServeCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--fpm-trace/--no-fpm-trace",
    "trace",
    default=None,
    help=f"Generate forward passes and record them, or record nothing.  [{v.FPM_TRACE.name}]",
)
@_variable_options
@click.option(
    "--fpm-quiet", "quiet", is_flag=True, help="Warnings only: no line at start, no summary at the end."
)
@click.pass_context
def serve(ctx: click.Context, /, trace: bool | None, quiet: bool, **given: str | None) -> int:
    """Start stock `vllm serve` with every forward pass recorded.

    MODEL and everything that is not listed below goes to vLLM untouched and in order; see
    `vllm serve --help` and `vllm serve --help=all`. A `--` ends the options listed here. What vLLM reads
    from a `--config` file is respected. The exit code is the server's.

    \b
    Examples:
      forwardpass vllm serve Qwen/Qwen3-0.6B --fpm-trace
      forwardpass vllm serve ./model --port 8000 -dp 2 --fpm-trace --fpm-mode full --fpm-output /var/log/fpm
      DYN_FPM_TRACE=1 forwardpass vllm serve ./model
    """
    from forwardpass.cli.vllm_serve import ServeRequest, serve_vllm

    texts = {variable.name: given[_parameter(name)] for name, (variable, _) in OPTIONS.items()}
    flags = {variable: text for variable, text in texts.items() if text is not None}
    names = {variable.name: name for name, (variable, _) in OPTIONS.items()}
    arguments: list[str] = ctx.meta[_REST]
    return serve_vllm(ServeRequest(tuple(arguments), trace, flags, names, quiet))
