"""Knows how a command serves an engine and records it: settings, start, child, drain, last words.

``vllm serve`` and ``sglang serve`` share it. Serving comes first: whatever is wrong with a setting, a port or
a path costs a line and the feature that it belongs to, and the engine runs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from msgspec import Struct

from forwardpass.cli.child import SignalPasser, run_child
from forwardpass.cli.output import say
from forwardpass.cli.recording import Recording, RecordingResult
from forwardpass.cli.summary_view import format_bytes, summary_of_files
from forwardpass.config import variables as v
from forwardpass.config.settings import RelaySettings, Sources
from forwardpass.errors import ConfigError, ForwardPassError
from forwardpass.trace.policy import TraceDecision, announce, decide

__all__ = ["Command", "Resolved", "ServeRequest", "become", "resolve", "serve_recorded"]

logger = logging.getLogger(__name__)

SUMMARY_BYTES = 8_000_000
"""A larger trace is not read again at the end: whoever stops the server waits for that."""

T = TypeVar("T")


class ServeRequest(Struct, frozen=True):
    """What the command line said."""

    arguments: tuple[str, ...]
    """The engine's own, in order."""
    trace: bool | None
    flags: Mapping[str, str]
    """Variable to the text of the option that stands for it."""
    option_names: Mapping[str, str]
    """Variable to the name of that option."""
    quiet: bool


class Command(Struct, frozen=True):
    """What the child is started as."""

    command: tuple[str, ...]
    environment: Mapping[str, str]
    """Its whole environment."""


class Resolved(Struct, Generic[T], frozen=True):
    """The settings of this launch; a feature with an invalid one is off as a unit."""

    trace: TraceDecision
    relay: RelaySettings
    stream: T | None
    """What the engine's own loader returned; ``None`` where a setting of the stream is not accepted."""


def resolve(
    request: ServeRequest, sources: Sources, load: Callable[[Sources], T], opted_in: Callable[[T], bool]
) -> Resolved[T]:
    """Return the settings. What is invalid is named once and turns its feature off, nothing else.

    ``load`` returns those of the engine's stream or raises :class:`ConfigError`; ``opted_in`` says whether
    they alone ask for generation.
    """
    trace = decide(sources, request.trace)
    stream: T | None = None
    relay = RelaySettings()
    try:
        stream, relay = load(sources), RelaySettings.load(sources)
    except ConfigError as error:
        if sources.resolve(v.STRICT).value:
            raise _by_option(error, request) from error
        logger.warning(
            "%s; no forward passes are generated or recorded; serving goes on", _named(error, request)
        )
        return Resolved(TraceDecision(False), RelaySettings(), None)
    if trace.warning is not None:
        # A port asks for generation whatever the trace variable says; then its value is no surprise.
        silent = opted_in(stream) and sources.resolve(v.FPM_TRACE).error is not None
        trace = TraceDecision(
            False, warning=None if silent else f"{_named(trace.warning, request)}; serving goes on"
        )
        announce(trace)
    return Resolved(trace, relay, stream)


def become(command: Command) -> NoReturn:
    """Replace this process by the engine: there is nothing to relay, so there is nothing to stay for."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command.command[0], command.command, command.environment)


async def serve_recorded(
    request: ServeRequest,
    command: Command,
    recording: Recording | None,
    *,
    say_start: Callable[[], None],
    silence: str = "",
    beside: Callable[[SignalPasser], AbstractAsyncContextManager[None]] | None = None,
    served: Callable[[], bool] = lambda: True,
) -> int:
    """Run the engine to its end beside ``recording``, if there is one, and return its exit status.

    ``silence`` is why nothing may arrive, for the last words; ``beside`` is open while the engine runs, and
    ``served`` says afterwards whether it came so far that anything could arrive.
    """
    with SignalPasser() as signals:
        started = recording is not None and await _start(recording, request)
        if started:
            say_start()
        try:
            async with beside(signals) if beside is not None else nullcontext():
                status = await run_child(command.command, command.environment, signals)
        finally:  # also when the child could not be started: the trace is closed here, not at exit
            result = await recording.finish() if recording is not None and started else None
        if result is not None and served() and not request.quiet:
            say(_closing_words(result, silence))
    return status


async def _start(recording: Recording, request: ServeRequest) -> bool:
    """Start it; what cannot be started must not keep the server from serving."""
    try:
        await recording.start()
    except (ForwardPassError, OSError) as error:
        logger.warning("nothing is relayed or recorded: %s; serving goes on", _named(error, request))
        return False
    return True


def _by_option(error: ConfigError, request: ServeRequest) -> ConfigError:
    """Return the error with the option's name for the variable's, where an option gave the value."""
    if error.variable not in request.flags:
        return error
    return ConfigError(request.option_names[error.variable], error.value, error.accepted)


def _named(message: object, request: ServeRequest) -> str:
    """Return a message about a variable with the option's name, where an option gave the value."""
    text = str(message)
    for variable in request.flags:
        text = text.replace(f"{variable}=", f"{request.option_names[variable]}=", 1)
    return text


def _closing_words(result: RecordingResult, silence: str) -> str:
    """Return what there is to say at the end; reading the trace again must not fail the server's exit."""
    if result.received == 0:
        return f"forwardpass: no forward pass arrived{silence}; `forwardpass doctor` looks for the reason"
    files = [path for path in result.files if Path(path).is_file()]
    if not files:
        return f"forwardpass: {result.received:,} messages relayed, none recorded"
    size = sum(Path(path).stat().st_size for path in files)
    if size > SUMMARY_BYTES:
        return (
            f"forwardpass: {result.received:,} messages in {len(files)} files of {format_bytes(size)}; "
            f"`forwardpass trace stats {files[-1]}` sums up the newest"
        )
    try:
        return summary_of_files(files)
    except (ForwardPassError, OSError) as error:
        return f"forwardpass: the trace cannot be summed up: {error}"
