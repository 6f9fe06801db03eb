"""Knows how the trace writer is tortured: every check of the loss contract, short or long, and the mistakes.

    python scripts/torture_trace.py                   # the short forms, as make test runs them
    python scripts/torture_trace.py --full --write    # make torture: 1,000 kills, 50 million records
    python scripts/torture_trace.py --check kills --mistake "rows wait for two seconds"

Exit code 0 if every rule was looked at and holds, else 1.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torture.checks import CHECKS
from torture.mistakes import MISTAKES
from torture.page import render_page, render_text
from torture.run import Broken, Run

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "torture.md"
MISTAKE_SECONDS = 300.0


def run_check(name: str, *, full: bool, seed: int, break_clause: str = "") -> dict[str, Any]:
    """Run one check in a folder of its own; return what it found.

    With ``break_clause`` it ends once a rule of that clause is found broken.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        run = Run(Path(folder), full, seed, break_clause=break_clause)
        with suppress(Broken):
            CHECKS[name](run)
    rules = [
        {"rule": found.rule, "looked": found.looked, "broken": found.broken, "examples": found.examples}
        for found in run.findings
    ]
    seconds = time.monotonic() - began
    return {"seconds": seconds, "facts": run.facts, "skipped": run.skipped, "rules": rules}


def holds(result: dict[str, Any]) -> bool:
    """Say whether every rule was looked at and holds. What could not be done here is no fault."""
    return bool(result["rules"] or result["skipped"]) and all(
        rule["looked"] and not rule["broken"] for rule in result["rules"]
    )


def find_mistakes() -> dict[str, bool]:
    """Try each mistake in a process of its own; return its words -> whether the clause was found broken."""
    found = {}
    for mistake in MISTAKES:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            command = [
                sys.executable,
                str(Path(__file__).resolve()),
                "--check",
                mistake.check,
                "--mistake",
                mistake.words,
            ]
            subprocess.run(
                [*command, "--json", file.name], capture_output=True, timeout=MISTAKE_SECONDS, check=False
            )
            text = Path(file.name).read_text(encoding="utf-8")
        broken = broken_clauses(json.loads(text)) if text else set()
        found[mistake.words] = mistake.clause in broken
        print(
            f"{mistake.clause} {mistake.words}: {'found' if mistake.clause in broken else 'NOT FOUND'}",
            flush=True,
        )
    return found


def broken_clauses(done: dict[str, dict[str, Any]]) -> set[str]:
    """Return the clauses of which a rule is broken."""
    return {
        rule["rule"].partition(":")[0]
        for result in done.values()
        for rule in result["rules"]
        if rule["broken"]
    }


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="append", choices=list(CHECKS), help="run this check alone (repeat)"
    )
    parser.add_argument("--full", action="store_true", help="the long forms, on one core")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--mistake", choices=[m.words for m in MISTAKES], help="put this mistake into the product"
    )
    parser.add_argument("--json", type=Path, help="write what was found here")
    parser.add_argument("--keep", action="store_true", help="keep what --json has of other checks")
    parser.add_argument(
        "--write", action="store_true", help="try the mistakes, too, and write docs/reference/torture.md"
    )
    return parser.parse_args()


def main() -> int:
    """Run what was asked for."""
    options = parse()
    if options.full:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    made = [mistake for mistake in MISTAKES if mistake.words == options.mistake]
    for mistake in made:
        mistake.make()
    done = json.loads(options.json.read_text(encoding="utf-8")) if options.keep else {}
    for name in options.check or CHECKS:
        done[name] = run_check(
            name, full=options.full, seed=options.seed, break_clause=made[0].clause if made else ""
        )
        print(render_text(name, done[name]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(done, indent=1), encoding="utf-8")
    done = {name: done[name] for name in CHECKS if name in done}
    found = find_mistakes() if options.write else {}
    if options.write:
        PAGE.write_text(render_page(done, found), encoding="utf-8")
    ok = all(map(holds, done.values())) and all(found.values())
    print(
        f"{sum(len(result['rules']) for result in done.values())} rules, "
        f"{'all hold' if ok else 'NOT ALL HOLD'}"
    )
    return 0 if ok else 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # a mistake may have left a thread that never ends
