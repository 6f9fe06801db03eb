"""Knows the command line of ``forwardpass vllm serve``."""

from __future__ import annotations

import click

from forwardpass.cli.serve_options import OPTIONS, ServeCommand, make_request, serve_options

__all__ = ["serve", "vllm"]


class _Serve(ServeCommand):
    usage_pieces = ("MODEL", "[OPTIONS AND VLLM'S OWN ARGUMENTS]...")


@click.group()
def vllm() -> None:
    """Start stock vLLM with every forward pass recorded.

    The exit code is the server's.

    \b
    Example:
      forwardpass vllm serve MODEL --fpm-trace
    """


@vllm.command(cls=_Serve, context_settings={"help_option_names": ["-h", "--help"]})
@serve_options(OPTIONS)
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
    from forwardpass.cli.vllm_serve import serve_vllm

    return serve_vllm(make_request(ctx, OPTIONS, trace, quiet, given))
