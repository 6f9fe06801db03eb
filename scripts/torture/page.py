"""Knows how the results of a whole run are shown, on a terminal and as a page of the documentation."""

from __future__ import annotations

import platform
import re
import time
from typing import Any

from torture.mistakes import MISTAKES

__all__ = ["render_page", "render_text"]

_HEAD = """# Torture of the trace writer

Written by `make torture`; run it to write this page anew. It tries to break the
[loss contract](../spec/loss-v1.md): each rule below names the clause that it shows. `make test` runs the same
checks in short forms, and each of the mistakes at the end.
"""


def _results(done: dict[str, dict[str, Any]]) -> list[str]:
    lines = ["| check | what was done | seconds |", "| --- | --- | ---: |"]
    for name, result in done.items():
        figures = "; ".join(f"{what}: {figure}" for what, figure in result["facts"].items())
        skipped = "".join(f"; not done: {what} ({why})" for what, why in result["skipped"].items())
        lines.append(f"| {name} | {figures}{skipped} | {result['seconds']:.0f} |")
    return lines


def _rules(done: dict[str, dict[str, Any]]) -> list[str]:
    rules: dict[str, list[int]] = {}
    for result in done.values():
        for rule in result["rules"]:
            sums = rules.setdefault(rule["rule"], [0, 0])
            sums[0] += rule["looked"]
            sums[1] += rule["broken"]
    lines = ["| clause | rule | looked at | |", "| --- | --- | ---: | --- |"]
    for rule in sorted(rules):
        looked, broken = rules[rule]
        clause, words = rule.split(": ", 1)
        state = "holds" if looked and not broken else f"broken {broken:,} times"
        lines.append(f"| {clause} | {words} | {looked:,} | {state} |")
    return lines


def _mistakes(found: dict[str, bool]) -> list[str]:
    lines = ["| clause | mistake | check | |", "| --- | --- | --- | --- |"]
    for mistake in MISTAKES:
        state = found.get(mistake.words)
        words = "not tried" if state is None else "found" if state else "**not found**"
        lines.append(f"| {mistake.clause} | {mistake.words} | {mistake.check} | {words} |")
    return lines


def render_page(done: dict[str, dict[str, Any]], found: dict[str, bool]) -> str:
    """Return the page in Markdown."""
    kernel = re.match(r"\d+\.\d+", platform.release())
    rules = [rule for result in done.values() for rule in result["rules"]]
    facts = [
        "| | |",
        "| --- | --- |",
        f"| Date | {time.strftime('%Y-%m-%d')} |",
        f"| Machine | one core of a shared machine; Linux {kernel[0] if kernel else ''}, "
        f"Python {platform.python_version()} |",
        f"| Time | {sum(result['seconds'] for result in done.values()) / 60:.0f} minutes |",
        f"| Rules | {len({rule['rule'] for rule in rules})} |",
        f"| **Broken** | **{sum(bool(rule['broken']) for rule in rules)}** |",
    ]
    return "\n".join(
        [
            _HEAD,
            *facts,
            "",
            "## What was done\n",
            *_results(done),
            "",
            "## Rules\n",
            *_rules(done),
            "",
            "## Mistakes\n",
            "Each is put into the product; the check named has to find a rule of the clause broken.\n",
            *_mistakes(found),
            "",
        ]
    )


def render_text(name: str, result: dict[str, Any]) -> str:
    """Return what the terminal shows of one check."""
    lines = [f"{name} ({result['seconds']:.1f} s)"]
    lines += [f"    {what}: {figure}" for what, figure in result["facts"].items()]
    lines += [f"    not done: {what} ({why})" for what, why in result["skipped"].items()]
    for rule in result["rules"]:
        state = "ok    " if rule["looked"] and not rule["broken"] else "BROKEN"
        lines.append(f"    {state} {rule['rule']} ({rule['looked']:,} looked at, {rule['broken']:,} broken)")
        lines += [f"           {example[:400]}" for example in rule["examples"]]
    return "\n".join(lines)
