"""Knows how vLLM's real scheduler is run for a million passes with every message checked, and how it ended.

``make prove-vllm PASSES=1000000``. Every seed is one engine with its own settings and its own random
workload (``tests/engine/proof_workload.py``). The state is kept after every seed, so that a run can be
stopped and goes on where it was: ``--seconds`` ends it early, ``--fresh`` begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "proof.md"
MODEL = ROOT / "build" / "tiny-qwen3"

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "CRITICAL",
}


@dataclass
class State:
    """What was done so far."""

    first_seed: int = 0
    next_seed: int = 0
    passes: int = 0
    empty_steps: int = 0
    requests: int = 0
    generated_tokens: int = 0
    prefill_tokens: int = 0
    seconds: float = 0.0
    coverage: dict[str, int] = field(default_factory=dict)
    miscounts: list[str] = field(default_factory=list)
    vllm: str = ""

    def add(self, result: dict[str, Any]) -> None:
        """Add one seed's result."""
        for name in ("passes", "empty_steps", "requests", "generated_tokens", "prefill_tokens", "seconds"):
            setattr(self, name, getattr(self, name) + result[name])
        self.coverage = dict(Counter(self.coverage) + Counter(result["coverage"]))
        self.miscounts += result["miscounts"]
        self.vllm = result["vllm"]


def run_seed(seed: int) -> dict[str, Any]:
    """Run one engine; return what it did."""
    from proof_ledger import Miscount
    from proof_workload import RandomWorkload
    from vllm import __version__

    began = time.process_time()
    workload = RandomWorkload(str(MODEL), seed)
    miscounts = []
    try:
        workload.run()
    except Miscount as error:
        miscounts.append(str(error))
    engine = workload.engine
    return {
        "passes": engine.passes,
        "empty_steps": engine.empty_steps,
        "requests": engine.ledger.submitted,
        "generated_tokens": engine.proof.generated,
        "prefill_tokens": engine.proof.prefill_tokens,
        "seconds": time.process_time() - began,
        "coverage": dict(engine.coverage),
        "miscounts": miscounts,
        "vllm": __version__,
    }


def prepare() -> None:
    """Set what vLLM reads on import, and import it once, for all processes that are forked from this one."""
    os.environ.update(ENVIRONMENT)
    sys.path.insert(0, str(ROOT / "tests" / "engine"))
    for name in ("proof_workload", "transformers", "vllm.v1.core.sched.async_scheduler"):
        import_module(name)


def prove(state: State, options: argparse.Namespace, kept: Path) -> None:
    """Run seeds until there are enough passes, a miscount, or no time."""
    deadline = time.monotonic() + options.seconds
    with ProcessPoolExecutor(options.jobs) as pool:
        running: set[Any] = set()
        while True:
            while len(running) < options.jobs and wanted(state, options) and time.monotonic() < deadline:
                running.add(pool.submit(run_seed, state.next_seed))
                state.next_seed += 1
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                state.add(future.result())
            kept.write_text(json.dumps(asdict(state)))


def wanted(state: State, options: argparse.Namespace) -> bool:
    """Return whether another seed should run."""
    return state.passes < options.passes and len(state.miscounts) < options.most_miscounts


def page(state: State) -> str:
    """Return the reference page."""
    from proof_cases import table

    return f"""# Proof against vLLM's scheduler

<!-- written by make prove-vllm; do not edit -->

vLLM's real scheduler, driven call by call as its engine core drives it, without worker and model. Every
seed is an engine with settings of its own and a random workload. Every message, built late and with others
as the product does it, and what a heartbeat would say of the queue is compared with counts that share no
code with ours: taken from the live requests, in exact integers, and held against a ledger of what the
clients sent and got back. Over a request's life the
computed tokens must add up (for every admission: known less cached), each context must be all known tokens
but the last, and the requests that wait must be those that were sent and neither run nor have ended. Two
things are asserted at their exact value and not within bounds: under asynchronous scheduling a speculating
request's context exceeds the truth by precisely the drafts that are rejected later (ENG-07), and a paused
session is not counted (D-4), or is where the parity switch says so.

| | |
| --- | --- |
| Date | {time.strftime("%Y-%m-%d")} |
| vLLM | {state.vllm} |
| Seeds | {state.first_seed} to {state.next_seed - 1} |
| Passes | {state.passes:,} |
| Empty steps | {state.empty_steps:,} |
| Requests and sessions | {state.requests:,} |
| Tokens prefilled | {state.prefill_tokens:,} |
| Tokens generated | {state.generated_tokens:,} |
| Processor time | {state.seconds / 60:.0f} min, {1000 * state.seconds / max(1, state.passes):.2f} ms a pass |
| **Miscounts** | **{len(state.miscounts)}** |

Run it again with `make prove-vllm PASSES=1000000`. `make test` runs other seeds and, to show that the check
can fail, the same check on a dozen ways to count wrongly (`tests/engine/test_vllm_proof.py`).

## Coverage

Passes in which a case occurred; the run fails where one is rarer than 1 in 20,000.

{table(Counter(state.coverage))}"""


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--passes", type=int, default=1_000_000, help="how many passes to check")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="stop after so long; the next run goes on"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what was done before")
    parser.add_argument("--most-miscounts", type=int, default=5, help="stop at so many")
    parser.add_argument("--write", action="store_true", help="write docs/reference/proof.md")
    parser.add_argument(
        "--keep", type=Path, default=ROOT / "build" / "proof.json", help="where the state is kept"
    )
    return parser.parse_args()


def main() -> int:
    """Return 0 if nothing was miscounted and every case was covered, 75 if there is more to do, else 1."""
    options = parse()
    if os.environ.get("PYTHONHASHSEED") != "0":  # vLLM frees what was aborted in the order of a set of names
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, "PYTHONHASHSEED": "0"})
    kept: Path = options.keep
    state = State(options.seed, options.seed)
    if kept.exists() and not options.fresh:
        state = State(**json.loads(kept.read_text()))
    prepare()
    maker = ROOT / "scripts" / "make_tiny_model.py"
    subprocess.run([sys.executable, str(maker), str(MODEL)], check=True, timeout=300)
    prove(state, options, kept)
    from proof_cases import missing, table

    coverage = Counter(state.coverage)
    print(table(coverage))
    seeds = f"seeds {state.first_seed} to {state.next_seed - 1}"
    print(f"{state.passes:,} passes, {seeds}, {len(state.miscounts)} miscounts")
    for miscount in state.miscounts:
        print(miscount)
    if state.miscounts:
        return 1
    if state.passes < options.passes:
        print("more to do: run it again")
        return 75
    if options.write:
        PAGE.write_text(page(state))
    rare = missing(coverage, state.passes)
    print("\n".join(["covered too seldom:", *rare] if rare else ["every case was covered"]))
    return 1 if rare else 0


if __name__ == "__main__":
    sys.exit(main())
