"""Knows the commands of the self-benchmark."""

from __future__ import annotations

import click

from forwardpass.cli.bench_diff import diff
from forwardpass.cli.bench_merge import merge
from forwardpass.cli.bench_plan import plan
from forwardpass.cli.bench_probe import probe
from forwardpass.cli.bench_run import run
from forwardpass.cli.bench_show import show
from forwardpass.cli.bench_validate import validate_command

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Plan, run and judge self-benchmarks: measured passes of an engine that serves nobody yet.

    Exit code 1 for a finding, 2 for a wrong use or setting, 3 for a file that cannot be read; each command
    says what its others mean.

    \b
    Examples:
      forwardpass bench plan --engine mock
      forwardpass bench run --engine mock --dp 4
      forwardpass bench validate /tmp/benchmark_results*.json
      forwardpass bench show /tmp/benchmark_results_merged.json
      forwardpass bench diff before_merged.json after_merged.json
    """


for _command in (plan, run, merge, validate_command, probe, show, diff):
    bench.add_command(_command)
