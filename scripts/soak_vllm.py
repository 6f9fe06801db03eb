"""Soak a real vLLM server on CPU: mixed load, recorders stopped and killed, and then everything counted.

    python scripts/soak_vllm.py [--minutes 30] [--output DIR] [--page FILE]

Memory can be compared with vLLM's own scheduler: first ``--scheduler stock --output OTHER`` for as many
minutes, then the soak with ``--compare OTHER``.

What must hold is printed rule by rule; the exit code is 1 if any rule is broken. Needs the environment
with vLLM (``make soak-vllm MINUTES=30`` makes it). docs/reference/soak.md is such a run's page.
"""

from __future__ import annotations

import argparse
import importlib.util
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from demo_vllm import MODEL, NO_VLLM, ROOT, environment, free_port, say
from soak.act import Act
from soak.engine import Engine, SoakFailed
from soak.gauges import GaugeWatch
from soak.memory import MemorySampler, read_samples
from soak.phases import run_phases
from soak.raw_reader import RawReader
from soak.recorders import Recorder, Restarter
from soak.verdict import Soak, compare, judge

FIRST_FPM_PORT = 21_400
LIFE_SECONDS = ((2.0, 30.0), (4.0, 90.0))
"""Least and most seconds of a life, each with what it is never shortened below."""
LOOK_SECONDS = 2.0
SAMPLED_MS = 1000
ROLL_BYTES = 2_000_000
SPECULATIVE_SHARE = 0.2
"""Of the time; the rest goes to an engine without speculative decoding."""
SHORT_MINUTES = 5.0
"""Below this, phases and lives are shorter in proportion."""
SPECULATIVE_FROM_MINUTES = 2.0
"""Below this there is no second engine."""
PAGE_MINUTES = 30.0
PAGE = ROOT / "docs" / "reference" / "soak.md"


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=30.0, help="load, start-up aside (default: 30)")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "soak", metavar="DIR")
    parser.add_argument(
        "--page",
        type=Path,
        metavar="FILE",
        help=f"write a page (default: docs/reference/soak.md from {PAGE_MINUTES:.0f} minutes on)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the load and the moments of restarts")
    parser.add_argument(
        "--scheduler",
        choices=("witness", "product", "stock"),
        default="witness",
        help="stock: vLLM's own, to compare memory with; nothing is recorded then",
    )
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="DIR",
        help="a run with --scheduler stock, for the page",
    )
    parser.add_argument("--judge", action="store_true", help="only judge again what is in the output folder")
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell lets its background ignore the first
        signal.signal(number, signal.default_int_handler)
    if importlib.util.find_spec("vllm") is None:
        say(NO_VLLM.format(python=sys.executable).replace("demo-vllm", "soak-vllm"))
        return 3
    try:
        return _soak(arguments)
    except SoakFailed as error:
        say(f"soak-vllm: {error}")
        return 1
    except KeyboardInterrupt:
        return 130


def _soak(arguments: argparse.Namespace) -> int:
    kept = arguments.output / "soak.pickle"
    if arguments.judge:
        soak: Soak = pickle.loads(kept.read_bytes())
    else:
        soak = _make(arguments)
        kept.write_bytes(pickle.dumps(soak))
    verdict = judge(soak)
    if arguments.compare is not None:
        compare(verdict, read_samples(arguments.compare / "memory.csv"))
    say(verdict.text())
    page = arguments.page or (PAGE if soak.minutes >= PAGE_MINUTES else None)
    if page is not None:
        page.write_text(verdict.page(), encoding="utf-8")
        say(f"written: {page}")
    return 0 if verdict.ok else 1


def _make(arguments: argparse.Namespace) -> Soak:
    folder: Path = arguments.output.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "traces").mkdir(parents=True)
    make_model = [sys.executable, str(ROOT / "scripts" / "make_tiny_model.py"), str(MODEL)]
    subprocess.run(make_model, check=True, timeout=300, env=environment())
    soak = Soak(folder, arguments.minutes, arguments.seed, arguments.scheduler, SAMPLED_MS)
    _run(soak)
    return soak


def _run(soak: Soak) -> None:
    """Start the recorders, play the acts, stop the recorders; everything that was started ends here."""
    with ExitStack() as stack:
        stage = _Stage(soak, stack)
        for name, speculative, share in _acts(soak.minutes):
            act = Act(name, speculative, soak.folder / f"{name}.raw", soak.folder / f"{name}.witness")
            soak.acts.append(act)
            stage.play(act, share * soak.minutes * 60)
        time.sleep(1.0)  # the last bytes on their way to the recorders
    stage.sampler.write(soak.folder / "memory.csv")
    soak.memory = dict(stage.sampler.samples)


def _acts(minutes: float) -> list[tuple[str, bool, float]]:
    if minutes < SPECULATIVE_FROM_MINUTES:
        return [("plain", False, 1.0)]
    return [("plain", False, 1 - SPECULATIVE_SHARE), ("drafts", True, SPECULATIVE_SHARE)]


class _Stage:
    """What all acts share: the port, the recorders, and who looks at memory."""

    def __init__(self, soak: Soak, stack: ExitStack) -> None:
        self._soak = soak
        self._scale = min(1.0, soak.minutes / SHORT_MINUTES)
        self._port = free_port(FIRST_FPM_PORT)
        self._url = f"tcp://127.0.0.1:{self._port}"
        self._rng = random.Random(soak.seed)
        self._go = threading.Event()
        self._restarters: list[Restarter] = []
        self._watched: dict[str, int] = {}
        self.sampler = MemorySampler(self._watched.copy, LOOK_SECONDS * self._scale)
        if soak.scheduler != "stock":
            self._start_recorders(stack)
        self.sampler.start()
        stack.callback(self.sampler.stop)

    def _start_recorders(self, stack: ExitStack) -> None:
        """Start one recorder that lives as long as the soak, and with the first engine two that do not."""
        traces = self._soak.folder / "traces"
        rolling = ("--roll-bytes", str(ROLL_BYTES), "--max-segments", "10000")
        sampled = ("--mode", "sampled", "--sample-interval-ms", str(SAMPLED_MS), "--plane", "memory:soak")
        lasting = Recorder(traces, "lasting", self._url, *rolling)
        self._soak.lasting = lasting.lives
        lasting.start()
        stack.callback(lasting.end, kill=False)
        self._watched["recorder"] = lasting.lives[0].pid
        low, high = (max(least, self._scale * seconds) for least, seconds in LIFE_SECONDS)
        for name, options in (("recorder", rolling), ("relay", sampled)):
            recorder = Recorder(traces, name, self._url, *options)
            self._soak.restarted[name] = recorder.lives
            restarter = Restarter(recorder, (low, high), random.Random(self._rng.random()), self._go)
            restarter.start()
            stack.callback(restarter.stop)
            self._restarters.append(restarter)

    def play(self, act: Act, seconds: float) -> None:
        """Start an engine, give it its load, and stop it."""
        soak = self._soak
        engine = Engine(
            soak.folder, act.name, self._port, scheduler=soak.scheduler, speculative=act.speculative
        )
        try:
            with RawReader(self._url, act.raw_file) as reader:
                act.up_seconds = engine.wait_until_up()
                say(f"{act.name}: up after {act.up_seconds:.0f} s")
                self._go.set()
                self._load(act, engine, None if soak.scheduler == "stock" else reader, seconds)
                act.status = engine.stop()
                time.sleep(0.5)
            act.reader_faults = reader.faults
        finally:
            engine.kill()

    def _load(self, act: Act, engine: Engine, reader: RawReader | None, seconds: float) -> None:
        """Give the engine its load, watching its processes and its gauges."""
        processes = {f"{label} ({act.name})": pid for label, pid in engine.processes().items()}
        self._watched.update(processes)
        gauges = GaugeWatch(engine, LOOK_SECONDS * self._scale)
        gauges.start()
        began = time.monotonic()
        try:
            for result in run_phases(engine, reader, seconds, self._scale, self._rng, self._enough):
                act.phases.append(result)
                passed = (time.monotonic() - began) / 60
                say(f"{passed:6.1f} min  {result.phase.name}: {len(result.answers)} answers")
        finally:
            for label in processes:
                del self._watched[label]
            gauges.stop()
        act.seconds, act.gauges = time.monotonic() - began, gauges.readings

    def _enough(self) -> bool:
        """Say whether each recorder was ended in both ways, or ended as it should not."""
        return all(restarter.restarts >= 2 or restarter.failure for restarter in self._restarters)


if __name__ == "__main__":
    sys.exit(main())
