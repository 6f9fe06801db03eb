"""Knows which requests arrive when: seeded, endless if wanted, and the same every time."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import NamedTuple

from msgspec import Struct

from forwardpass.errors import ConfigError

__all__ = ["Arrival", "Lengths", "Load", "arrivals", "realistic"]

_BURST_SPACING_SECONDS = 0.004


class Arrival(NamedTuple):
    """One request on its way to a rank."""

    at_seconds: float
    """Since the start of the load."""
    prompt_tokens: int
    output_tokens: int
    prefix_id: int = 0
    prefix_tokens: int = 0
    """How much of the prompt is the shared prefix ``prefix_id``; 0 for none."""


class Lengths(Struct, frozen=True):
    """A log-normal distribution of token counts, cut to ``low`` … ``high``."""

    median: int
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0.0 gives the median every time."""
    low: int = 1
    high: int = 4096

    def __post_init__(self) -> None:
        if not (1 <= self.low <= self.median <= self.high and 0.0 <= self.sigma <= 5.0):
            accepted = "1 <= low <= median <= high and 0 <= sigma <= 5"
            raise ConfigError("Lengths", f"{self.low}, {self.median}, {self.high}, {self.sigma}", accepted)

    def draw(self, random: Random) -> int:
        """Return one token count."""
        if not self.sigma:
            return self.median
        return min(self.high, max(self.low, round(self.median * random.lognormvariate(0.0, self.sigma))))


class Load(Struct, frozen=True):
    """The requests of one rank."""

    rate: float
    """Mean requests per second of a Poisson process; 0.0 for none."""
    prompts: Lengths
    """Length of each prompt's own part, without the shared prefix."""
    outputs: Lengths
    prefixes: tuple[int, ...] = ()
    """Lengths of shared prefixes, such as system prompts."""
    prefix_share: float = 0.0
    """Fraction of requests that begin with one of them."""
    burst_size: int = 0
    """Requests that arrive almost at once, besides the others; 0 for no bursts."""
    burst_every_seconds: float = 5.0
    start_seconds: float = 0.0
    """When the first request may arrive."""
    limit: int | None = None
    """Requests in all; ``None`` for an endless load."""

    def __post_init__(self) -> None:
        if not (0.0 <= self.rate < float("inf") and 0.0 <= self.prefix_share <= 1.0):
            raise ConfigError(
                "Load", f"{self.rate}, {self.prefix_share}", "a rate >= 0 and a share of 0 to 1"
            )
        if not 0.0 <= self.start_seconds < float("inf"):
            raise ConfigError("Load.start_seconds", self.start_seconds, "0 seconds or more")
        if self.burst_size and self.burst_every_seconds <= 0.0:
            raise ConfigError("Load.burst_every_seconds", self.burst_every_seconds, "more than 0 seconds")


def arrivals(load: Load, seed: str) -> Iterator[Arrival]:
    """Yield the requests of ``load`` in order of time. The same load and seed give the same requests."""
    steady = _poisson(load.rate, Random(f"{seed}/steady"))
    bursts = _bursts(load.burst_size, load.burst_every_seconds, Random(f"{seed}/bursts"))
    random = Random(f"{seed}/requests")
    for at in islice(heapq.merge(steady, bursts), load.limit):
        yield _request(load, load.start_seconds + at, random)


def realistic(rate: float, *, start_seconds: float = 0.0) -> Load:
    """Return a chat service: ``rate`` requests a second, long-tailed lengths, four system prompts, bursts.

    Every four seconds as many as otherwise in two arrive at once. At a rate of 12 the default rank is well
    used, and its bursts queue and now and then preempt somebody.
    """
    return Load(
        rate=rate,
        prompts=Lengths(320, 1.0, low=8, high=4096),
        outputs=Lengths(120, 0.8, low=1, high=1024),
        prefixes=(96, 256, 512, 1200),
        prefix_share=0.6,
        burst_size=round(2 * rate),
        burst_every_seconds=4.0,
        start_seconds=start_seconds,
    )


def _poisson(rate: float, random: Random) -> Iterator[float]:
    at = 0.0
    while rate > 0.0:
        at += random.expovariate(rate)
        yield at


def _bursts(size: int, every_seconds: float, random: Random) -> Iterator[float]:
    if size <= 0:
        return
    at = 0.0
    for index in count(1):
        at = max(at, (index - 0.5) * every_seconds)  # a burst longer than the interval delays the next
        for _ in range(size):
            at += random.expovariate(1.0 / _BURST_SPACING_SECONDS)
            yield at


def _request(load: Load, at: float, random: Random) -> Arrival:
    prompt, output = load.prompts.draw(random), load.outputs.draw(random)
    if not load.prefixes or random.random() >= load.prefix_share:
        return Arrival(at, prompt, output)
    prefix_id = random.randrange(len(load.prefixes))
    prefix = load.prefixes[prefix_id]
    return Arrival(at, prefix + prompt, output, prefix_id, prefix)
