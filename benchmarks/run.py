"""Knows how to run every benchmark here and print one table.

    python benchmarks/run.py [--quick] [--large] [--json PATH] [--check] [WORD ...]

A WORD selects the files whose name contains it.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

from harness import Result, print_table, set_large, set_quick, write_json

FOLDER = Path(__file__).resolve().parent


def find(words: list[str]) -> list[str]:
    """Return the module names of the benchmarks that contain one of ``words`` (all without words)."""
    names = sorted(path.stem for path in FOLDER.glob("bench_*.py"))
    return [name for name in names if not words or any(word in name for word in words)]


def main() -> int:
    """Run and print; exit with 1 if ``--check`` was given and a goal was missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--quick", action="store_true", help="few rounds: do they work at all?")
    parser.add_argument("--large", action="store_true", help="also sizes that take minutes each")
    parser.add_argument("--json", metavar="PATH", help="also write JSON to PATH (- for stdout)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a goal is missed")
    arguments = parser.parse_args()
    set_quick(arguments.quick)
    set_large(arguments.large)
    sys.path.insert(0, str(FOLDER))
    results: list[Result] = []
    for name in find(arguments.words):
        print(f"… {name}", file=sys.stderr, flush=True)
        results += importlib.import_module(name).main()
        if arguments.json and arguments.json != "-":  # what is there survives a failure of the next one
            write_json(results, arguments.json)
    if arguments.json != "-":
        print_table(results)
    if arguments.json == "-":
        write_json(results, arguments.json)
    return int(arguments.check and any(result.met is False for result in results))


if __name__ == "__main__":
    sys.exit(main())
