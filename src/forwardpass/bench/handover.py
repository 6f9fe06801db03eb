"""Knows the folder through which a launcher, the server's processes and the ranks of one benchmark talk.

The launcher makes it, names it in one variable, and removes it when the server has ended. Settings go this
way instead of through the engine's own configuration: vLLM makes the key of its compile cache from that, and
an engine that measured itself would have to be compiled anew for each change of a setting.

====================  ===================================================================================
``order.json``        what to measure; there before anything starts
``leader``            the server process that sees to the end, where there are several
``progress.RANK``     how far a rank is; replaced now and then, between points
``stop``              the launcher wants the ranks to end
``served.json``       the document to serve, if there is one
``outcome.json``      how it ended; the last file, and from then on nobody measures
====================  ===================================================================================
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from forwardpass.atomic import write_atomically
from forwardpass.config.handover import BENCH_FOLDER
from forwardpass.errors import BenchError

__all__ = ["Handover", "OnFailure", "Order", "Outcome", "RankProgress", "Verdict"]

_T = TypeVar("_T")
_PROGRESS = re.compile(r"progress\.(\d+)")


class OnFailure(StrEnum):
    """What becomes of the server after a run that nobody can use."""

    STOP = "stop"
    SERVE = "serve"


class Order(Struct, frozen=True):
    """What is to be measured."""

    benchmark: dict[str, Any]
    """As ``bench/engine_config.py`` writes and reads it."""
    on_failure: OnFailure = OnFailure.STOP
    await_server: bool = True
    """A server on this host leads; on a node without one the ranks begin by themselves."""
    prepared: bool = False
    """The engine's configuration was made ready for it."""


class RankProgress(Struct, frozen=True):
    """How far one rank is."""

    settled: int
    """Points with a result or a reason for none."""
    expected: int
    """0 until the ranks have agreed on a grid."""
    point: str = ""
    """The last one that was settled, in words."""


class Verdict(StrEnum):
    """How a benchmark ended."""

    COMPLETE = "complete"
    PARTIAL = "partial"
    """The time was up; what was measured is usable."""
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    REFUSED = "refused"
    """The engine that was to be started cannot be measured so."""


class Outcome(Struct, frozen=True):
    """How it ended, for the launcher and for the other servers."""

    verdict: Verdict
    serving: bool
    """Whether the server goes on to answer requests."""
    message: str = ""
    """What went wrong, in one line."""
    points: int = 0
    """Measured on each rank."""
    skipped: int = 0
    rank_files: tuple[str, ...] = ()
    merged: str | None = None
    worker_probe: str | None = None
    warnings: tuple[str, ...] = ()


class Handover:
    """The folder of one launch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Handover | None:
        """Return the folder that ``environment`` names, if it names one."""
        path = environment.get(BENCH_FOLDER, "")
        return cls(Path(path)) if path else None

    # --- what to do ------------------------------------------------------------------------------------

    def give(self, order: Order) -> None:
        """Write down what to measure."""
        self._write("order.json", order)

    def order(self) -> Order | None:
        """Return what to measure; ``None`` once that has ended. Raises :class:`BenchError` where the folder
        has no order: an engine that was to be measured must not serve without.
        """
        if self.outcome() is not None:
            return None
        found = self._read("order.json", Order)
        if found is None:
            raise BenchError(f"{BENCH_FOLDER}={self.folder} has no order for a benchmark")
        return found

    def ask_to_stop(self) -> None:
        """Ask the ranks to end."""
        (self.folder / "stop").touch()

    def stop_asked(self) -> bool:
        """Say whether the ranks are to end."""
        return (self.folder / "stop").exists()

    # --- what is going on --------------------------------------------------------------------------------

    def lead(self) -> bool:
        """Say whether the caller is the one process that sees to the end: the first to ask is."""
        try:
            os.close(os.open(self.folder / "leader", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    @property
    def led(self) -> bool:
        """Whether a server waits for the ranks: from then on the engine is up."""
        return (self.folder / "leader").exists()

    def report(self, rank: int, progress: RankProgress) -> None:
        """Say how far ``rank`` is. A folder that is gone takes no reports, which ends nothing."""
        path = self.folder / f"progress.{rank}"
        try:
            temporary = path.with_suffix(f".{rank}.tmp")
            temporary.write_bytes(msgspec.json.encode(progress))
            temporary.replace(path)
        except OSError:
            return

    def progress(self) -> dict[int, RankProgress]:
        """Return how far each rank is that has said so."""
        found = {}
        for path in self.folder.glob("progress.*"):
            match = _PROGRESS.fullmatch(path.name)
            progress = self._read(path.name, RankProgress) if match else None
            if match and progress is not None:
                found[int(match[1])] = progress
        return found

    # --- how it ended ----------------------------------------------------------------------------------

    def conclude(self, outcome: Outcome, served: bytes | None = None) -> None:
        """Write down how it ended, and what to serve."""
        if served is not None:
            write_atomically(self.folder / "served.json", [served])
        self._write("outcome.json", outcome)

    def outcome(self) -> Outcome | None:
        """Return how it ended, ``None`` while it goes on."""
        return self._read("outcome.json", Outcome)

    def served(self) -> bytes | None:
        """Return the document to serve."""
        try:
            return (self.folder / "served.json").read_bytes()
        except FileNotFoundError:
            return None

    def _write(self, name: str, value: Struct) -> None:
        write_atomically(self.folder / name, [msgspec.json.encode(value)])

    def _read(self, name: str, kind: type[_T]) -> _T | None:
        try:
            text = (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise BenchError(f"{self.folder / name} cannot be read: {error.strerror}") from error
        return msgspec.json.decode(text, type=kind)
