"""Knows the commands and loads only the one that was asked for.

The exit codes are those of :class:`Exit` for every command but ``vllm serve`` and ``sglang serve``, which
give the server's own.
"""

from __future__ import annotations

import codecs
import errno
import importlib
import io
import os
import sys
from enum import IntEnum
from typing import Any

import click

from forwardpass import __version__

__all__ = ["Exit", "LazyGroup", "main"]


class Exit(IntEnum):
    """The exit codes of every command."""

    DONE = 0
    """Done."""
    FINDING = 1
    """A finding: damage, a difference, nothing arrives."""
    USAGE = 2
    """Wrong use or setting."""
    INPUT = 3
    """Input missing or unreadable."""
    PARTIAL = 4
    """Only a partial result."""
    INTERRUPTED = 130
    """Interrupted."""


_MAX_MESSAGE = 2000
"""Characters of an error that are shown; file names in it may be a stranger's."""

_HELP_INSTEAD: tuple[type, ...] = tuple(filter(None, [getattr(click.exceptions, "NoArgsIsHelpError", None)]))
"""Raised by click 8.2 and newer for a group without a command; older ones print the help themselves."""

# name -> (where the click command is, its one line of help); importing all of them would take seconds
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("forwardpass.cli.demo:demo", "Record a simulated engine for a few seconds and sum it up."),
    "mock": ("forwardpass.cli.mock:mock", "Run the simulated engine and publish its forward passes."),
    "vllm": ("forwardpass.cli.vllm:vllm", "Start stock vLLM with every forward pass recorded."),
    "sglang": ("forwardpass.cli.sglang:sglang", "Start stock SGLang with every forward pass recorded."),
    "trtllm": ("forwardpass.cli.trtllm:trtllm", "Record a TensorRT-LLM server from its statistics."),
    "record": ("forwardpass.cli.record:record", "Record the streams of engines that run already."),
    "collect": ("forwardpass.cli.collect:collect", "Collect the forward passes of a fleet from JetStream."),
    "tail": ("forwardpass.cli.tail:tail", "Show live forward passes, as a table or JSON lines."),
    "trace": ("forwardpass.cli.trace:trace", "List, print, sum up and verify trace files."),
    "bench": ("forwardpass.cli.bench:bench", "Plan, run and judge self-benchmarks of an engine."),
    "doctor": ("forwardpass.cli.doctor:doctor", "Find out why nothing arrives."),
    "env": ("forwardpass.cli.env:env", "Show each setting, its value and where it came from."),
}


class LazyGroup(click.Group):
    """A click group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the command names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; a reader of its output that has seen enough (``| head``) is no failure."""
        from forwardpass.cli.output import ending_quietly

        with ending_quietly():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="forwardpass")
def cli() -> None:
    """The flight recorder for LLM inference engines.

    Exit codes of every command: 0 done; 1 a finding (damage, nothing arrives); 2 wrong use or setting;
    3 input missing or unreadable; 4 only a partial result; 130 interrupted. `vllm serve` and
    `sglang serve` give the server's own.

    \b
    Examples:
      forwardpass demo
      forwardpass vllm serve MODEL --fpm-trace
      forwardpass COMMAND --help
    """


def main() -> None:
    """Run the command line; errors of this package become one line and an exit code."""
    from forwardpass.errors import ConfigError, ForwardPassError

    _open_missing_streams()
    _encode_any_text()
    try:
        code = cli.main(standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, _HELP_INSTEAD):
            error.show()
        else:
            _say(_usage_line(error))
        sys.exit(Exit.USAGE)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(Exit.INTERRUPTED)
    except ConfigError as error:
        _say(f"{error}; nothing was started")
        sys.exit(Exit.USAGE)
    except (ForwardPassError, OSError) as error:
        code = _failed(error)
    sys.exit(code if isinstance(code, int) else Exit.DONE)


def _open_missing_streams() -> None:
    """Let a process started with a closed stdout or stderr write into nothing.

    The null device also takes the free descriptor, which a trace file would get otherwise.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115


def _encode_any_text() -> None:
    """Let any text be written in any locale: UTF-8 where the locale says ASCII, else with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding="utf-8" if ascii_only else None, errors="backslashreplace")


def _say(text: str) -> None:
    from forwardpass.cli.terminal import printable

    click.echo(f"forwardpass: {printable(text, _MAX_MESSAGE)}", err=True)


def _usage_line(error: click.ClickException) -> str:
    """Return what is wrong with a command line, and where it says what would be right."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context is not None else "forwardpass"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; nothing was started (see {command} --help)"


def _failed(error: Exception) -> Exit:
    """Say what an error was about. One that names no file is about our own output."""
    if isinstance(error, OSError) and error.filename is None and error.errno in (errno.ENOSPC, errno.EIO):
        _say(f"the output cannot be written: {error.strerror}")
        return Exit.PARTIAL
    _say(str(error))
    return Exit.INPUT
