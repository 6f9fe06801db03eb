"""What a self-benchmark leaves behind: a server that measured itself against one that never did, in pairs.

Needs an environment with vLLM; measures nothing without. Two ``forwardpass vllm serve`` of the same model
stand side by side; one of them has measured itself before it served. The same batch of completions goes to
one, then to the other, in turn: who waits has nothing to do and takes no time. Everything that could be left
behind is in it: the scheduler class, the middleware, the workers' extension, blocks, statistics.

The interval is a bootstrap over pairs (``intervals.py``); two pairs warm up.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forwardpass.testing.ports import free_port
from harness import Result, from_rounds, is_quick, run_script
from intervals import ratio_interval
from scheduler_load import model_folder
from scheduler_ways import prepare_environment

NEVER, MEASURED = "never measured", "measured itself"
PAIRS, QUICK_PAIRS, WARMUP_PAIRS = 40, 2, 2
REQUESTS, USERS = 48, 8
START_SECONDS = 300.0
ARGUMENTS = (
    *("--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16", "--no-enable-prefix-caching"),
    *("--host", "127.0.0.1", "--fpm-quiet"),
)


class Server:
    """One server, and the batch that is sent to it."""

    def __init__(self, model: str, folder: Path, *more: str) -> None:
        folder.mkdir()
        self._model, self._port = model, free_port(first=18_200, last=19_900)
        ports = ("--port", str(self._port), "--fpm-port", str(free_port(3)))
        command = [sys.executable, "-m", "forwardpass", "vllm", "serve", model, *ARGUMENTS, *ports, *more]
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def wait_until_up(self) -> None:
        """Wait for /health."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if self._ask("GET", "/health", None)[0] == 200:
                    return
            except OSError:
                time.sleep(0.25)
        raise RuntimeError("a server did not start")

    def serve(self) -> float:
        """Send the batch; return the seconds it took."""
        rng = random.Random(7)
        bodies = [
            {
                "model": self._model,
                "prompt": [rng.randrange(3, 1000) for _ in range(rng.randrange(20, 200))],
                "max_tokens": rng.randrange(20, 60),
                "ignore_eos": True,
                "temperature": 0,
            }
            for _ in range(REQUESTS)
        ]
        begin = time.perf_counter()
        with ThreadPoolExecutor(USERS) as pool:
            answers = list(pool.map(lambda body: self._ask("POST", "/v1/completions", body), bodies))
        took = time.perf_counter() - begin
        if any(status != 200 for status, _ in answers):
            raise RuntimeError("not every request was served")
        return took

    def stop(self) -> None:
        """End it and all that it started."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _ask(self, method: str, path: str, body: Any) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"content-type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def both(model: str, folder: Path) -> Iterator[dict[str, Server]]:
    """Start both servers, one after the other: the one that measures itself has the machine to itself."""
    servers = {}
    try:
        benchmark = ("--benchmark-mode", "agg", "--benchmark-output-path", str(folder / "bench.json"))
        for way, more in ((MEASURED, benchmark), (NEVER, ())):
            servers[way] = Server(model, folder / way.replace(" ", "-"), *more)
            servers[way].wait_until_up()
        yield servers
    finally:
        for server in servers.values():
            server.stop()


def main() -> list[Result]:
    """Measure the pairs."""
    try:
        import vllm  # noqa: F401
    except ImportError:
        print("bench_vllm_after_benchmark: skipped: no vllm", file=sys.stderr)
        return []
    prepare_environment()
    pairs = QUICK_PAIRS if is_quick() else PAIRS
    took: dict[str, list[float]] = {NEVER: [], MEASURED: []}
    with tempfile.TemporaryDirectory() as folder, both(model_folder(), Path(folder)) as servers:
        for number in range(-WARMUP_PAIRS, pairs):
            for way in (NEVER, MEASURED) if number % 2 == 0 else (MEASURED, NEVER):
                seconds = servers[way].serve()
                if number >= 0:
                    took[way].append(seconds)
        points = len(json.loads((Path(folder) / "bench_merged.json").read_bytes())["results"])
    interval = ratio_interval(took[NEVER], took[MEASURED])
    note = f"throughput measured/never {interval}; {pairs} pairs of {REQUESTS} requests; {points} points"
    return [from_rounds("vLLM server after a self-benchmark, time per batch", took, unit="s", note=note)]


if __name__ == "__main__":
    run_script(main, __doc__)
