"""Knows how sure one can be of a ratio that was measured many times on a noisy machine."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from harness import percentile

__all__ = ["Interval", "ratio_interval", "trimmed_mean"]

TRIMMED_SHARE = 0.2
RESAMPLES = 10_000


class Interval(NamedTuple):
    """A ratio and its 95 % interval."""

    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.ratio:.4f}, 95 % interval {self.low:.4f} to {self.high:.4f}"


def trimmed_mean(values: Sequence[float]) -> float:
    """Return the mean of what is left when the lowest and the highest fifth are set aside.

    Another program that runs for a second makes a few pairs useless; it should not decide.
    """
    ordered = sorted(values)
    cut = int(len(ordered) * TRIMMED_SHARE)
    kept = ordered[cut : len(ordered) - cut] or ordered
    return sum(kept) / len(kept)


def ratio_interval(above: Sequence[float], below: Sequence[float], *, seed: int = 1) -> Interval:
    """Return the ratio ``above``/``below`` of pairs, with the interval of a percentile bootstrap over pairs.

    The mean is that of logarithms, so that a ratio and its inverse count alike.
    """
    logs = [math.log(one / other) for one, other in zip(above, below, strict=True)]
    rng = random.Random(seed)
    means = [trimmed_mean(rng.choices(logs, k=len(logs))) for _ in range(RESAMPLES)]
    return Interval(
        math.exp(trimmed_mean(logs)), math.exp(percentile(means, 0.025)), math.exp(percentile(means, 0.975))
    )
