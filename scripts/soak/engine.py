"""Knows how to start a real vLLM server for the soak, find its processes, read its counters and stop it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

from demo_vllm import MODEL, START_SECONDS, STOP_SECONDS, DemoFailed, environment, free_port, request

from soak.rows import WITNESS_FILE

__all__ = ["MAX_BATCHED_TOKENS", "MAX_SEQUENCES", "Engine", "SoakFailed", "session_processes"]

MAX_SEQUENCES = 16
MAX_BATCHED_TOKENS = 256
BLOCK_TOKENS = 32
BLOCKS = 160
"""5,120 tokens of KV: six requests of 600 fit, sixteen of 500 do not."""
SPECULATION = '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'
SCRIPTS = Path(__file__).resolve().parent.parent
SCHEDULERS = {
    "witness": "soak.witness.WitnessedScheduler",
    "product": "forwardpass.engines.vllm.scheduler.ForwardPassScheduler",
    "stock": None,
}

SoakFailed = DemoFailed
"""The soak cannot go on; the text says why."""


class Engine:
    """One server in a session of its own, its words in ``folder/NAME.log``."""

    def __init__(
        self, folder: Path, name: str, fpm_port: int, *, scheduler: str = "witness", speculative: bool = False
    ) -> None:
        self.name = name
        self.port = free_port(18_000)
        self.witness_file = folder / f"{name}.witness"
        self.log = folder / f"{name}.log"
        settings = {
            "DYN_FORWARDPASS_METRIC_PORT": str(fpm_port),
            "DYN_FPM_WORKER_ID": name,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SCRIPTS), os.environ.get("PYTHONPATH")))),
            WITNESS_FILE: str(self.witness_file),
        }
        if scheduler == "stock":
            del settings["DYN_FORWARDPASS_METRIC_PORT"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self._command(SCHEDULERS[scheduler], speculative),
                env={**environment(), **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _command(self, scheduler_class: str | None, speculative: bool) -> list[str]:
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL)),
            *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", str(MAX_SEQUENCES)),
            *("--max-num-batched-tokens", str(MAX_BATCHED_TOKENS), "--block-size", str(BLOCK_TOKENS)),
            *("--num-gpu-blocks-override", str(BLOCKS), "--enable-prompt-tokens-details"),
            *("--host", "127.0.0.1", "--port", str(self.port), "--uvicorn-log-level", "warning"),
            *(("--scheduler-cls", scheduler_class) if scheduler_class else ()),
            *(("--speculative-config", SPECULATION) if speculative else ()),
        ]

    def wait_until_up(self) -> float:
        """Wait for /health; return the seconds that it took. Raises :class:`SoakFailed`."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < START_SECONDS:
            if self.process.poll() is not None:
                raise SoakFailed(f"vLLM ended with status {self.process.returncode}; see {self.log}")
            with contextlib.suppress(OSError):
                if request(self.port, "GET", "/health", None, seconds=5.0)[0] == 200:
                    return waited
            time.sleep(0.25)
        raise SoakFailed(f"vLLM was not up within {START_SECONDS:.0f} s; see {self.log}")

    def counters(self) -> dict[str, float]:
        """Return vLLM's own metrics, each summed over its labels (but for histogram buckets)."""
        status, text = request(self.port, "GET", "/metrics", None, seconds=60.0)
        if status != 200:
            raise SoakFailed(f"/metrics answered with HTTP {status}")
        sums: dict[str, float] = defaultdict(float)
        for name, value in re.findall(r"^vllm:(\w+)(?:\{.*\})? (\S+)$", text, re.MULTILINE):
            if not name.endswith("_bucket"):
                sums[name] += float(value)
        return dict(sums)

    def processes(self) -> dict[str, int]:
        """Return the server's processes by what they are."""
        found = session_processes(self.process.pid)
        return {_role(command, pid == self.process.pid): pid for pid, command in sorted(found.items())}

    def stop(self) -> int:
        """Stop it as an orchestrator would, and return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise SoakFailed(f"vLLM did not stop within {STOP_SECONDS:.0f} s") from error

    def kill(self) -> None:
        """Kill what is left of its session; nothing is after a stop that went well."""
        for pid in session_processes(self.process.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(STOP_SECONDS)


def session_processes(session: int) -> dict[int, str]:
    """Return the live processes of a session and their command lines."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            if int(stat.read_text().rpartition(")")[2].split()[3]) == session:
                command = stat.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(stat.parent.name)] = command.strip()
    return found


def _role(command: str, is_leader: bool) -> str:
    if is_leader:
        return "API server"
    if "EngineCore" in command:
        return "engine core"
    if "Worker" in command:
        return "worker"
    return "resource tracker" if "resource_tracker" in command else "other"
