"""Measure one engine with Dynamo's self-benchmark and with ours, in turn, and compare them point by point.

    python scripts/compare_reference_bench.py MODEL [--runs 5] [--output DIR] [--json FILE]

Both run on the same vLLM, with the same options and the same points file. What is compared is each point's
wall time: the median over the runs of one program, over that of the other. Needs an environment that has
vLLM, Dynamo with what its worker imports, and this package; ``.venv-reference`` with the packages that
docs/explanation/benchmark-truth.md names has all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from demo_vllm import ENVIRONMENT, free_port, say

ENGINE = (
    *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"),
    *("--max-num-batched-tokens", "256", "--benchmark-mode", "agg"),
)
START_SECONDS = 300.0
STOP_SECONDS = 60.0
PREFILLS = [(tokens, batch, read) for tokens in (16, 64, 128, 256) for batch in (1, 2) for read in (0, 256)]
DECODES = [(batch, batch * context) for batch in (1, 2, 4, 8, 16) for context in (16, 128, 512, 1024)]
Place = tuple[str, int, int, int]
"""Type, batch size, new tokens, tokens read."""
LOOPBACK = (
    "DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "VLLM_NIXL_SIDE_CHANNEL_HOST",
)  # fmt: skip


def points() -> dict[str, Any]:
    """Return the points file."""
    return {
        "schema_version": 1,
        "prefill": [
            {"batch_size": batch, "total_prefill_tokens": tokens, "total_kv_read_tokens": read * batch}
            for tokens, batch, read in PREFILLS
        ],
        "decode": [{"batch_size": batch, "total_kv_read_tokens": total} for batch, total in DECODES],
    }


def environment(folder: Path) -> dict[str, str]:
    """Return what both programs get."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("DYN_", "FORWARDPASS_"))}
    planes = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "kv"), "DYN_REQUEST_PLANE": "tcp"}
    return {
        **kept,
        **ENVIRONMENT,
        **planes,
        **dict.fromkeys(LOOPBACK, "127.0.0.1"),
        "DYN_EVENT_PLANE": "zmq",
        "DYN_BENCH_KV_WARMUP": "off",
        "DYN_FORWARDPASS_METRIC_PORT": str(free_port(20_400)),
    }


def measure(who: str, model: str, folder: Path, manifest: Path) -> dict[Place, float]:
    """Let one program measure the engine once; return seconds by place."""
    folder.mkdir(parents=True)
    output = folder / "bench.json"
    given = (*ENGINE, "--benchmark-points-file", str(manifest), "--benchmark-output-path", str(output))
    if who == "forwardpass":
        port = ("--host", "127.0.0.1", "--port", str(free_port(18_100)))
        command = [sys.executable, "-m", "forwardpass", "vllm", "serve", model, *port, *given]
    else:
        command = [sys.executable, "-m", "dynamo.vllm", "--model", model, *given]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command, env=environment(folder), stdout=log, stderr=log, start_new_session=True
        )
    try:
        return places(await_file(folder / "bench_merged.json", process, folder / "log"))
    finally:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def await_file(path: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """Return the merged document when it is there."""
    deadline = time.monotonic() + START_SECONDS
    while not path.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no {path}; the log ends with:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.1)
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def places(document: Mapping[str, Any]) -> dict[Place, float]:
    """Return each point's time by its place."""
    found: dict[Place, float] = {}
    for row in document["results"]:
        point, passes = row["point"], row["fpms"]
        place = (
            point["point_type"],
            point["batch_size"],
            point["total_prefill_tokens"],
            point["total_kv_read_tokens"],
        )
        found[place] = float(passes[0]["wall_time"])
    return found


def compare(runs: Mapping[str, list[dict[Place, float]]]) -> dict[str, Any]:
    """Return the ratios, ours over theirs, and how much each program differs from itself."""
    ours, theirs = runs["forwardpass"], runs["reference"]
    if {frozenset(run) for run in (*ours, *theirs)} != {frozenset(ours[0])}:
        raise SystemExit("the programs did not measure the same points")
    rows = []
    for place in ours[0]:
        mine, other = [run[place] for run in ours], [run[place] for run in theirs]
        rows.append(
            {
                "point_type": place[0],
                "batch_size": place[1],
                "new_tokens": place[2],
                "read_tokens": place[3],
                "ours_ms": 1e3 * statistics.median(mine),
                "theirs_ms": 1e3 * statistics.median(other),
                "ratio": statistics.median(mine) / statistics.median(other),
                "ours_spread": (max(mine) - min(mine)) / statistics.median(mine),
                "theirs_spread": (max(other) - min(other)) / statistics.median(other),
            }
        )
    return {
        "runs": len(ours),
        "points": rows,
        "summary": {kind: summed(rows, kind) for kind in ("prefill", "decode")},
    }


def summed(rows: list[dict[str, Any]], kind: str) -> dict[str, float]:
    """Return the middle and the ends of one kind's ratios, and the usual spread of each program."""
    chosen = [row for row in rows if row["point_type"] == kind]
    ratios = sorted(row["ratio"] for row in chosen)
    return {
        "points": len(chosen),
        "median_ratio": statistics.median(ratios),
        "least_ratio": ratios[0],
        "greatest_ratio": ratios[-1],
        "ours_spread": statistics.median(row["ours_spread"] for row in chosen),
        "theirs_spread": statistics.median(row["theirs_spread"] for row in chosen),
    }


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="of each program (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("build/compare-bench"), metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    folder = arguments.output.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    manifest = folder / "points.json"
    manifest.write_text(json.dumps(points()))
    runs: dict[str, list[dict[Place, float]]] = {"reference": [], "forwardpass": []}
    for turn in range(arguments.runs):
        order = ("reference", "forwardpass") if turn % 2 == 0 else ("forwardpass", "reference")
        for who in order:
            runs[who].append(measure(who, arguments.model, folder / f"{turn}-{who}", manifest))
            say(f"run {turn + 1} of {arguments.runs}: {who} measured {len(runs[who][-1])} points")
    result = compare(runs)
    text = json.dumps(result, indent=1)
    if arguments.json is not None:
        arguments.json.write_text(text)
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
