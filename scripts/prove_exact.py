"""Knows how to compare a million random steps of what counts a pass with rational arithmetic.

    python scripts/prove_exact.py [--steps 1000000] [--seed 0]

The walks are those of ``tests/property/exact_walk.py``; each seed is one of them from a new beginning. It
needs no engine. Exit code 1 at the first step that is not equal to the last bit; its seed is printed.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STEPS_PER_SEED = 2_000


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps to compare")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests" / "property"))
    from exact_walk import WALKS

    done: Counter[str] = Counter()
    seed, began = options.seed, time.monotonic()
    while done.total() < options.steps:
        walk = min(WALKS, key=lambda each: done[each.__name__])
        try:
            done[walk.__name__] += walk(seed, STEPS_PER_SEED)
        except AssertionError:
            traceback.print_exc()
            print(f"seed {seed} of {walk.__name__}: not equal", file=sys.stderr)
            return 1
        seed += 1
    parts = ", ".join(f"{name} {steps:,}" for name, steps in sorted(done.items()))
    print(
        f"{done.total():,} steps equal rational arithmetic to the last bit ({parts}); "
        f"seeds {options.seed} to {seed - 1}, {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
