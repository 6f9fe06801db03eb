"""Let a real vLLM server on CPU measure itself before it serves, show the result, and ask it something.

    python scripts/demo_bench.py [--output DIR]

The model is tiny and random, so the numbers are those of this machine's overhead; the points, the passes and
the evidence are as real as any. Needs the environment with vLLM (``make demo-bench`` makes it).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from demo_vllm import (
    DEFAULT_BASE_PORT,
    MODEL,
    DemoFailed,
    Progress,
    Server,
    free_port,
    make_model,
    request,
    run,
    say,
)

from forwardpass.bench.handover import Handover

BAR = 30


class Watched:
    """What a server says of its benchmark, through the folder of its launch."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary

    def words(self) -> str:
        """Return a bar, or nothing while there is no grid."""
        for folder in self._temporary.glob("forwardpass-bench-*"):
            for rank in Handover(folder).progress().values():
                if rank.expected:
                    full = BAR * rank.settled // rank.expected
                    bar = "█" * full + "░" * (BAR - full)
                    return f"measuring {bar} {rank.settled} of {rank.expected} points  {rank.point}"
        return ""


def ask(server: Server) -> None:
    """Ask for a chat completion and for the result. Raises :class:`DemoFailed`."""
    message = {"role": "user", "content": "bada kilo mufa sine"}
    body = {"model": str(MODEL), "messages": [message], "max_tokens": 8}
    status, text = request(server.port, "POST", "/v1/chat/completions", body, seconds=60.0)
    if status != 200:
        raise DemoFailed(f"vLLM answered a chat with HTTP {status}: {text[:500]}")
    answer = json.loads(text)
    tokens, content = answer["usage"]["completion_tokens"], answer["choices"][0]["message"]["content"]
    say(f"\nA chat completion: {tokens} tokens, {content!r}")
    status, text = request(server.port, "GET", "/fpm/perf_metrics", None, seconds=60.0)
    if status != 200:
        raise DemoFailed(f"/fpm/perf_metrics answered with HTTP {status}: {text[:500]}")
    document = json.loads(text)
    backend = document["engine"]["attention"]["backend_resolved"]
    say(
        f"GET /fpm/perf_metrics: {len(text):,} bytes, {document['status']}, "
        f"{len(document['results'])} results, attention backend {backend}"
    )


def show(merged: Path) -> None:
    """Show the result. Raises :class:`DemoFailed`."""
    command = [sys.executable, "-m", "forwardpass", "bench", "show", str(merged)]
    if subprocess.run(command, check=False, timeout=120).returncode:
        raise DemoFailed(f"{merged} cannot be shown")


def demonstrate(folder: Path) -> int:
    """Measure, show, ask, stop; return the exit code."""
    temporary = folder / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    make_model()
    result = folder / "bench.json"
    arguments = ("--benchmark-mode", "agg", "--benchmark-output-path", str(result))
    port = ("--fpm-port", str(free_port(DEFAULT_BASE_PORT)), "--fpm-quiet")
    progress = Progress()
    server = Server(folder, (*arguments, *port), {"TMPDIR": str(temporary.resolve())})
    try:
        server.wait_until_up(progress, Watched(temporary).words)
        merged = result.with_name("bench_merged.json")
        say(f"$ forwardpass bench show {merged}")
        show(merged)
        ask(server)
        return server.stop()
    finally:
        server.kill()


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path, default=Path("demo-output/bench"), metavar="DIR")
    arguments = parser.parse_args()
    return run("demo-bench", lambda: demonstrate(arguments.output))


if __name__ == "__main__":
    sys.exit(main())
