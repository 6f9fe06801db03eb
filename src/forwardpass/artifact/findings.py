"""Knows how what is wrong with files is collected: all of it, in the order of the checks, each thing once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from forwardpass.artifact.rules import Level, Rule
from forwardpass.artifact.shape import Misfit, Path, found, path_text

__all__ = ["KEPT", "Findings", "Problem"]

KEPT = 10_000
"""Problems that are kept; more are counted only."""


class Problem(Struct, frozen=True, kw_only=True):
    """One thing that is wrong."""

    rule: str
    clause: str
    level: Level
    file: str
    path: str
    """Where in the file, such as ``$.iteration_groups[3].wall_time``."""
    found: str
    accepted: str
    ranks: tuple[int, ...] = ()
    """The ranks concerned, where it concerns some and not all."""
    values: tuple[str, ...] = ()
    """What each of them has, where they differ."""

    def text(self) -> str:
        """Return it as one line."""
        ranks = f" (rank {', '.join(map(str, self.ranks))})" if self.ranks else ""
        where = f"{self.file}: " if self.file else ""
        line = f"{where}{self.path}{ranks}: found {self.found}, expected {self.accepted}"
        return f"{line} [{self.rule}, {self.clause}]"


class Findings:
    """What was found so far, in files checked one after the other."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.total = 0
        self._misfits: dict[tuple[str, str], Level] = {}
        self._seen: set[tuple[str, str, str]] = set()

    def of(self, *levels: Level) -> list[Problem]:
        """Return the problems of some levels, in the order in which they were found."""
        return [problem for problem in self.problems if problem.level in levels]

    def add(
        self,
        rule: Rule,
        file: str,
        path: Path,
        value: Any,
        accepted: str,
        *,
        ranks: Sequence[int] = (),
        values: Sequence[Any] | None = None,
    ) -> None:
        """Note that ``value`` at ``path`` breaks ``rule``, unless it is known not to fit at all.

        What only does not fit the documented format does not hide what a merge refuses.
        """
        known = {self._misfits.get((file, path_text(path[:end]))) for end in range(1, len(path) + 1)}
        if Level.MERGE in known or (known != {None} and rule.level is not Level.MERGE):
            return
        shown = () if values is None else tuple(found(one) for one in values)
        self._note(rule, file, path_text(path), found(value), accepted, tuple(ranks), shown)

    def misfit(
        self, file: str, rule_of: Callable[[Path], Rule], ranks: Sequence[int] = ()
    ) -> Callable[[Misfit], None]:
        """Return what notes the misfits of one file; ``rule_of`` says which rule a path belongs to."""

        def note(one: Misfit) -> None:
            text = path_text(one.path)
            rule = rule_of(one.path)
            self._misfits[file, text] = rule.level
            self._note(rule, file, text, one.found, one.accepted, tuple(ranks), ())

        return note

    def _note(
        self,
        rule: Rule,
        file: str,
        path: str,
        value: str,
        accepted: str,
        ranks: tuple[int, ...],
        values: tuple[str, ...],
    ) -> None:
        key = (rule.name, file, path)
        if key in self._seen:
            return
        self._seen.add(key)
        self.total += 1
        if len(self.problems) < KEPT:
            self.problems.append(
                Problem(
                    rule=rule.name,
                    clause=rule.clause,
                    level=rule.level,
                    file=file,
                    path=path,
                    found=value,
                    accepted=accepted,
                    ranks=ranks,
                    values=values,
                )
            )

    def by_rule(self) -> Mapping[str, int]:
        """Return how many problems each rule has, of those that are kept."""
        counts: dict[str, int] = {}
        for problem in self.problems:
            counts[problem.rule] = counts.get(problem.rule, 0) + 1
        return counts
