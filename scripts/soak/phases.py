"""Knows the phases of the load, and where in the stream each of them begins and ends.

Between two phases the load stops until the stream itself says that the engine is idle, so every pass
belongs to one phase and a phase's tokens can be compared with what the API counted for it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial

from forwardpass.wire.codec import decode_strict
from forwardpass.wire.schema import QueuedRequestMetrics, ScheduledRequestMetrics
from soak.engine import Engine, SoakFailed
from soak.load import Answer, Ask, Client, Words
from soak.raw_reader import RawReader

__all__ = ["PHASES", "Phase", "PhaseResult", "run_phases"]

SETTLE_SECONDS = 120.0
MIX = ("short_chat", "short_chat", "one_token", "long_prompt", "shared_prefix", "shared_prefix", "structured")


@dataclass(frozen=True)
class Phase:
    """One kind of load: so many users, each asking, reading and pausing in turn."""

    name: str
    seconds: float
    users: int = 0
    kinds: tuple[str, ...] = ()
    pause: tuple[float, float] = (0.1, 0.9)
    """Seconds that a user waits before asking again."""
    burst: int = 0
    """Requests that are sent all at once, every ``pause``; instead of users."""
    aborts: bool = False


PHASES = (
    Phase("mixed", 40, users=5, kinds=MIX),
    Phase("burst", 12, burst=40, kinds=("short_chat", "shared_prefix", "one_token"), pause=(3.0, 5.0)),
    Phase("structured", 15, users=6, kinds=("structured",)),
    Phase("hang-ups", 25, users=6, kinds=("hung_up", "hung_up", "short_chat", "structured"), aborts=True),
    Phase("scarce KV", 20, users=16, kinds=("long_answer",), pause=(0.2, 4.0)),
    Phase("idle", 4),
)
"""No phase but the last but one can fill the KV: see ``engine.BLOCKS``."""


@dataclass
class PhaseResult:
    """What one phase did, as seen from outside."""

    phase: Phase
    first: int
    last: int
    """Sequences of its first and last message."""
    began: float
    ended: float
    """Monotonic seconds."""
    answers: list[Answer]
    failures: list[str]
    counters: dict[str, float]
    """By how much each of vLLM's own counters rose."""
    most_open: int = 0
    """Most requests that were open at once on the client's side."""


@dataclass
class _Sender:
    """Sends requests and collects what came of them; users share it."""

    client: Client
    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    most_open: int = 0
    _open: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, ask: Ask, *, stream: bool) -> None:
        """Send one request; a failure is kept and does not end the soak."""
        with self._lock:
            self._open += 1
            self.most_open = max(self.most_open, self._open)
        try:
            answer = self.client.send(ask, stream=stream)
            self.answers.append(answer)
        except SoakFailed as error:
            self.failures.append(str(error))
        finally:
            with self._lock:
                self._open -= 1


def run_phases(
    engine: Engine,
    reader: RawReader | None,
    seconds: float,
    scale: float,
    rng: random.Random,
    enough: Callable[[], bool],
) -> Iterator[PhaseResult]:
    """Run a first request, then all phases in turn until ``seconds`` are over, at least once.

    ``scale`` shortens the phases; they go on beyond their time until there is ``enough``. Without a
    ``reader`` the engine has no stream, and a moment's pause ends a phase.
    """
    until = time.monotonic() + seconds
    first = 0
    warm_up = Phase("first request", 0, burst=1, kinds=("short_chat",))
    todo = [warm_up, *PHASES]
    rounds = 0
    while not rounds or time.monotonic() < until or not enough():
        phase = todo.pop(0)
        result = _run(engine, reader, replace(phase, seconds=phase.seconds * scale), first, rng)
        yield result
        first = result.last + 1
        if not todo:
            rounds, todo = rounds + 1, list(PHASES)


def _run(
    engine: Engine, reader: RawReader | None, phase: Phase, first: int, rng: random.Random
) -> PhaseResult:
    before, began = engine.counters(), time.monotonic()
    sender = _Sender(Client(engine.port))
    work = _bursts if phase.burst else _users
    work(phase, sender, rng)
    last = settle(reader, heartbeats=2 if phase.aborts else 1)
    ended, after = time.monotonic(), engine.counters()
    rises = {name: value - before.get(name, 0.0) for name, value in after.items()}
    return PhaseResult(
        phase, first, last, began, ended, sender.answers, sender.failures, rises, sender.most_open
    )


def _users(phase: Phase, sender: _Sender, rng: random.Random) -> None:
    until = time.monotonic() + phase.seconds
    if not phase.users:
        time.sleep(phase.seconds)
        return

    def user(seed: float) -> None:
        own = random.Random(seed)
        words = Words(own)
        while time.monotonic() < until:
            ask = getattr(words, own.choice(phase.kinds))()
            sender.send(ask, stream=own.random() < 0.5)
            time.sleep(min(own.uniform(*phase.pause), max(0.0, until - time.monotonic())))

    seeds = [rng.random() for _ in range(phase.users)]
    _together([partial(user, seed) for seed in seeds])


def _bursts(phase: Phase, sender: _Sender, rng: random.Random) -> None:
    until = time.monotonic() + phase.seconds
    words = Words(rng)
    while True:
        asks = [(getattr(words, rng.choice(phase.kinds))(), rng.random() < 0.5) for _ in range(phase.burst)]
        _together([partial(sender.send, ask, stream=stream) for ask, stream in asks])
        if time.monotonic() >= until:
            return
        time.sleep(rng.uniform(*phase.pause))


def _together(calls: list[Callable[[], None]]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


def settle(reader: RawReader | None, heartbeats: int) -> int:
    """Wait for so many new messages that say "nothing ran, nothing waits"; return the last one's sequence.

    Such a message comes after a second without a pass. After hang-ups two are waited for, for the
    server may learn of one late. Raises :class:`SoakFailed` if they do not come.
    """
    if reader is None:
        time.sleep(1.5 * heartbeats)
        return 0
    began, seen, quiet = time.monotonic(), -1, 0
    while time.monotonic() - began < SETTLE_SECONDS:
        message = reader.last
        if message is not None and message.sequence != seen and message.at > began:
            quiet = quiet + 1 if _is_idle(message.payload) else 0
            seen = message.sequence
            if quiet >= heartbeats:
                return seen
        time.sleep(0.02)
    raise SoakFailed(f"the stream did not come to rest within {SETTLE_SECONDS:.0f} s")


def _is_idle(payload: bytes) -> bool:
    metrics = decode_strict(payload)
    return (metrics.scheduled_requests, metrics.queued_requests) == (
        ScheduledRequestMetrics(),
        QueuedRequestMetrics(),
    )
