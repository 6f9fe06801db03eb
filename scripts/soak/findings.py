"""Knows how findings are collected: how often a rule was looked at, how often it was broken, and examples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Finding", "Findings"]

EXAMPLES = 5


@dataclass
class Finding:
    """One rule."""

    rule: str
    looked: int = 0
    broken: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it was looked at and never broken."""
        return self.looked > 0 and not self.broken

    def __str__(self) -> str:
        state = "ok" if self.ok else ("BROKEN" if self.broken else "NEVER LOOKED AT")
        count = f"{self.looked:,} looked at" + (f", {self.broken:,} broken" if self.broken else "")
        return "\n      ".join([f"{state:<7} {self.rule} ({count})", *self.examples])


class Findings:
    """All rules of one soak, in the order in which they were first looked at."""

    def __init__(self) -> None:
        self._by_rule: dict[str, Finding] = {}

    def note(self, rule: str, holds: bool, example: object = "") -> bool:
        """Look at ``rule`` once more; ``example`` is kept if it does not hold. Return ``holds``."""
        finding = self._by_rule.get(rule) or self._by_rule.setdefault(rule, Finding(rule))
        finding.looked += 1
        if not holds:
            finding.broken += 1
            if len(finding.examples) < EXAMPLES:
                finding.examples.append(str(example))
        return holds

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._by_rule.values())

    @property
    def ok(self) -> bool:
        """Whether every rule holds."""
        return all(finding.ok for finding in self)
