"""Knows how a recorder runs beside an engine that vLLM started: until the engine's process is done with it.

Started by ``engines/vllm/companion.py`` as a program of its own, with its order as JSON. Its words go to
the server's stderr; its standard output says one word, and standard input asks it to end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable

import msgspec

from forwardpass.cli.free_streams import free_targets
from forwardpass.cli.logs import log_to_stderr
from forwardpass.cli.recording import Recording, RecordingResult, plane_words
from forwardpass.cli.summary_view import counted
from forwardpass.clock import Clock, SystemClock
from forwardpass.config.settings import RelaySettings, Sources
from forwardpass.engines.vllm.companion import MODULE, READY, RecorderOrder
from forwardpass.engines.vllm.source import SOURCE
from forwardpass.errors import ForwardPassError
from forwardpass.trace.policy import TraceDecision, decide

__all__ = ["Ending", "main"]

logger = logging.getLogger(MODULE)  # not __name__: this file is run as the main module

POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0
"""How long SIGTERM is not obeyed while the parent lives: a service manager that stops a server sends it to
every process at once, and what the engine still does is to be recorded."""


class Ending:
    """Decides when a recorder ends: its parent asks or is gone, or SIGTERM came and the grace is over."""

    def __init__(self, parent_pid: int, clock: Clock, parent: Callable[[], int] = os.getppid) -> None:
        self._parent_pid = parent_pid
        self._clock = clock
        self._parent = parent
        self._asked = False
        self._deadline: float | None = None

    def ask(self) -> None:
        """Note that the parent has asked."""
        self._asked = True

    def terminate(self) -> None:
        """Note a SIGTERM."""
        if self._deadline is None:
            self._deadline = self._clock.monotonic() + GRACE_SECONDS

    @property
    def due(self) -> bool:
        """Whether it is time."""
        # Not the kernel's death signal: that comes when the thread ends that started the child.
        if self._asked or self._parent() != self._parent_pid:
            return True
        return self._deadline is not None and self._clock.monotonic() >= self._deadline


async def _until(ending: Ending) -> None:
    """Return when ``ending`` is due. A second SIGTERM ends the process at once."""
    loop = asyncio.get_running_loop()

    def terminated() -> None:
        ending.terminate()
        loop.remove_signal_handler(signal.SIGTERM)  # the next one has the system's own action

    def asked() -> None:
        loop.remove_reader(stdin)
        ending.ask()

    stdin = sys.stdin.fileno()
    loop.add_signal_handler(signal.SIGTERM, terminated)
    loop.add_reader(stdin, asked)
    while not ending.due:
        await asyncio.sleep(POLL_SECONDS)


async def _record(order: RecorderOrder, sources: Sources) -> None:
    relay, trace = RelaySettings.load(sources), decide(sources)
    targets = free_targets(order.streams, order.base_port, strict=False)
    if not targets:
        return
    recording = Recording(
        targets,
        trace=trace if trace.enabled else TraceDecision(False),
        relay=relay,
        drawn_id=order.worker_id,
        worker_id=order.worker_id,
        sources=sources,
        engine=SOURCE,
    )
    await recording.start()
    if recording.tracing or recording.has_plane:
        _say_start(order, recording, relay)
        os.write(sys.stdout.fileno(), READY)
        await _until(Ending(order.parent_pid, SystemClock()))
        _say_end(await recording.finish())
    else:  # the trace has said why
        await recording.finish()


def _say_start(order: RecorderOrder, recording: Recording, relay: RelaySettings) -> None:
    last = order.base_port + order.first_rank + order.ranks - 1
    logger.info(
        "listening to vLLM (%s role) at %s, worker id %s; %s%s",
        order.role,
        f"port {last}" if order.ranks == 1 else f"ports {last - order.ranks + 1} to {last}",
        order.worker_id,
        "" if recording.tracing else "no trace; ",
        plane_words(relay),
    )


def _say_end(result: RecordingResult) -> None:
    if result.received == 0:
        logger.info("no forward pass arrived; `forwardpass doctor` looks for the reason")
    elif result.trace is not None and result.files:
        newest = result.files[-1]
        logger.info(
            "%s recorded in %s; `forwardpass trace stats %s` sums up the newest",
            counted(result.trace.written, "row"),
            counted(len(result.files), "file"),
            newest,
        )
    else:
        logger.info("%s relayed, none recorded", counted(result.received, "message"))


def main() -> int:
    """Record as ordered on the command line; return the exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process decides when this one ends
    log_to_stderr(logging.INFO)
    order = msgspec.json.decode(sys.argv[1], type=RecorderOrder)
    try:
        asyncio.run(_record(order, Sources()))
    except (ForwardPassError, OSError) as error:
        logger.warning("nothing is relayed or recorded: %s; serving goes on", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
