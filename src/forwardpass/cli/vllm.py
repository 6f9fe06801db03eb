"""Knows the command line of ``forwardpass vllm serve``."""

from __future__ import annotations

from collections.abc import Mapping

import click
import msgspec

from forwardpass.cli.bench_options import SERVE_ROWS, bench_options
from forwardpass.cli.serve_options import OPTIONS, ServeCommand, make_request, serve_options

__all__ = ["serve", "vllm"]


class _Serve(ServeCommand):
    prefixes = ("--fpm-", "--no-fpm-", "--benchmark-", "--no-benchmark-")
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
@bench_options(SERVE_ROWS)
@click.option(
    "--benchmark-on-failure",
    "on_failure",
    type=click.Choice(("stop", "serve")),
    default="stop",
    show_default=True,
    help="Whether the server starts after a self-benchmark that nobody can use.",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    trace: bool | None,
    quiet: bool,
    on_failure: str,
    flags: Mapping[str, str],
    **given: str | None,
) -> int:
    """Start stock `vllm serve` with every forward pass recorded.

    MODEL and everything that is not listed below goes to vLLM untouched and in order; see
    `vllm serve --help` and `vllm serve --help=all`. A `--` ends the options listed here. What vLLM reads
    from a `--config` file is respected. The exit code is the server's.

    With --benchmark-mode the engine measures itself before it serves: points of the grid that `forwardpass
    bench plan` shows, through its own scheduler. The results are files, and the server has them at
    /fpm/perf_metrics. If they cannot be used the server does not start, and the exit code is 4; 2 if this
    engine cannot be measured so, 130 if it was interrupted.

    \b
    Examples:
      forwardpass vllm serve Qwen/Qwen3-0.6B --fpm-trace
      forwardpass vllm serve ./model --port 8000 -dp 2 --fpm-trace --fpm-mode full --fpm-output /var/log/fpm
      DYN_FPM_TRACE=1 forwardpass vllm serve ./model
      forwardpass vllm serve ./model --benchmark-mode agg --benchmark-output-path /var/lib/bench/model.json
    """
    from forwardpass.cli.vllm_serve import serve_vllm

    request = make_request(ctx, OPTIONS, trace, quiet, given)
    return serve_vllm(msgspec.structs.replace(request, flags={**request.flags, **flags}), on_failure)
