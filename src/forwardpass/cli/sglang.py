"""Knows the command line of ``forwardpass sglang serve``."""

from __future__ import annotations

import click

from forwardpass.cli.serve_options import PORTLESS, ServeCommand, make_request, serve_options

__all__ = ["serve", "sglang"]


class _Serve(ServeCommand):
    usage_pieces = ("[OPTIONS AND SGLANG'S OWN ARGUMENTS]...",)


@click.group()
def sglang() -> None:
    """Start stock SGLang with every forward pass recorded.

    The exit code is the server's.

    \b
    Example:
      forwardpass sglang serve --model-path MODEL --fpm-trace
    """


@sglang.command(cls=_Serve, context_settings={"help_option_names": ["-h", "--help"]})
@serve_options(PORTLESS)
@click.pass_context
def serve(ctx: click.Context, /, trace: bool | None, quiet: bool, **given: str | None) -> int:
    """Start stock `python -m sglang.launch_server` with every forward pass recorded.

    Everything that is not listed below goes to SGLang untouched and in order; its own publisher is switched
    on, with a socket in a temporary folder that is removed at the end. A `--` ends the options listed here.
    What SGLang reads from a `--config` file is respected. A DYN_FORWARDPASS_METRIC_PORT that is set switches
    the publisher on as well, whatever it says, and records nothing by itself.

    The exit code is the server's.

    \b
    Examples:
      forwardpass sglang serve --model-path Qwen/Qwen3-0.6B --fpm-trace
      forwardpass sglang serve --model-path ./model --dp-size 2 --fpm-trace --fpm-output /var/log/fpm
      DYN_FPM_TRACE=1 forwardpass sglang serve --model-path ./model
    """
    from forwardpass.cli.sglang_serve import serve_sglang

    return serve_sglang(make_request(ctx, PORTLESS, trace, quiet, given))
