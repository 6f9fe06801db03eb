"""Knows what a check is given: a folder, how long it may take, and where it notes what it found."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from soak.findings import Findings

__all__ = ["Broken", "Check", "Run"]


class Broken(Exception):
    """A rule was found broken of the clause that a run was started to break."""


@dataclass
class Run:
    """One run of one check."""

    folder: Path
    full: bool
    """Whether it is the long form, of ``make torture``, or the short one, of ``make test``."""
    seed: int = 1
    findings: Findings = field(default_factory=Findings)
    facts: dict[str, str] = field(default_factory=dict)
    """Figures for the page: what was done, how often, how large."""
    break_clause: str = ""
    """End, with :class:`Broken`, once a rule of this clause is broken."""
    skipped: dict[str, str] = field(default_factory=dict)
    """What could not be done on this machine, and why."""

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def note(self, rule: str, holds: bool, example: object = "") -> bool:
        """Look at a rule once more. Return ``holds``."""
        self.findings.note(rule, holds, example)
        if not holds and self.break_clause and rule.startswith(self.break_clause):
            raise Broken(rule)
        return holds

    @property
    def patience_seconds(self) -> float:
        """Longest wait for what takes about a second; little where the check is meant to fail."""
        return 1.5 if self.break_clause else 15.0

    def times(self, short: int, full: int) -> int:
        """Return how often something is done in this form."""
        return full if self.full else short

    def sub(self, name: str) -> Path:
        """Return a new folder below the run's own."""
        folder = self.folder / name
        folder.mkdir(parents=True)
        return folder


Check = Callable[[Run], None]
