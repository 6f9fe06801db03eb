"""Knows how much memory processes hold over time, and what counts as flat."""

from __future__ import annotations

import contextlib
import re
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

__all__ = [
    "RULE",
    "MemorySample",
    "MemorySampler",
    "Trend",
    "read_samples",
    "side_by_side",
    "slope",
    "trend_of",
]

KIB_PER_MIB = 1024
WARM_UP_SHARE = 0.2
MOST_STEP_MIB = 4.0
MOST_SLOPE_KIB = 64.0
MOST_FILES = 2
LEAST_SECONDS = 600.0
"""A shorter run says nothing about a trend."""

OURS = ("engine core", "recorder")
"""How the labels of processes begin in which code of ours works all the time."""

RULE = (
    f"After the first {WARM_UP_SHARE:.0%} of the time a process is flat if its own memory (USS) has a "
    f"Theil–Sen slope under {MOST_SLOPE_KIB:g} KiB a minute and the median of its last fifth is less than "
    f"{MOST_STEP_MIB:g} MiB above the median of its second fifth, and if it has no more threads then "
    f"(medians) and at most {MOST_FILES} more open files, for connections come and go. The recorder and the "
    "engine core must be flat. In vLLM’s API server, worker and resource tracker nothing of ours works; "
    "they grow by themselves, the worker by many MiB (torch’s pools). With ``--compare`` they are held "
    f"against as long a run with vLLM’s own scheduler: no more than {MOST_STEP_MIB:g} MiB above that."
)


@dataclass(frozen=True)
class MemorySample:
    """One look at one process; sizes in KiB."""

    at: float
    rss: int
    pss: int
    uss: int
    threads: int
    files: int


@dataclass(frozen=True)
class Trend:
    """How one process went on after it had warmed up."""

    label: str
    samples: int
    seconds: float
    rss_mib: float
    """The largest resident size."""
    early_mib: float
    late_mib: float
    """Medians of the own memory (USS) in the second and the last fifth."""
    slope_kib: float
    """KiB of own memory a minute."""
    rss_slope_kib: float
    threads: tuple[int, int]
    files: tuple[int, int]
    """Medians in the second and the last fifth."""

    @property
    def ours(self) -> bool:
        """Whether code of ours works in it."""
        return self.label.startswith(OURS)

    @property
    def judged(self) -> bool:
        """Whether it was watched for long enough."""
        return self.seconds >= LEAST_SECONDS

    def grew_no_more_than(self, other: Trend) -> bool:
        """Whether it grew as ``other`` did, the same process of another run."""
        grew = self.late_mib - self.early_mib
        return (
            grew < max(0.0, other.late_mib - other.early_mib) + MOST_STEP_MIB
            and self.threads[1] <= other.threads[1]
        )

    @property
    def flat(self) -> bool:
        """Whether the rule holds."""
        return (
            self.slope_kib < MOST_SLOPE_KIB
            and self.late_mib - self.early_mib < MOST_STEP_MIB
            and self.threads[1] <= self.threads[0]
            and self.files[1] <= self.files[0] + MOST_FILES
        )


class MemorySampler(threading.Thread):
    """Looks at all processes every so many seconds until it is stopped."""

    def __init__(self, processes: Callable[[], dict[str, int]], every_seconds: float) -> None:
        super().__init__(name="memory", daemon=True)
        self.samples: dict[str, list[MemorySample]] = defaultdict(list)
        self._processes, self._every = processes, every_seconds
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until stopped; a process that has just ended is passed over."""
        while not self._ended.wait(self._every):
            for label, pid in self._processes().items():
                with contextlib.suppress(OSError, ValueError):
                    self.samples[label].append(look(pid))

    def stop(self) -> None:
        """Stop looking."""
        self._ended.set()
        self.join(30.0)

    def write(self, path: Path) -> None:
        """Write every look as a line of CSV."""
        with path.open("w", encoding="utf-8") as file:
            file.write("process,seconds,rss_kib,pss_kib,uss_kib,threads,files\n")
            for label, samples in self.samples.items():
                for s in samples:
                    file.write(f"{label},{s.at:.1f},{s.rss},{s.pss},{s.uss},{s.threads},{s.files}\n")


def read_samples(path: Path) -> dict[str, list[MemorySample]]:
    """Return what :meth:`MemorySampler.write` wrote."""
    samples: dict[str, list[MemorySample]] = defaultdict(list)
    for line in path.read_text(encoding="utf-8").splitlines()[1:]:
        label, at, *numbers = line.split(",")
        samples[label].append(MemorySample(float(at), *map(int, numbers)))
    return dict(samples)


def look(pid: int) -> MemorySample:
    """Return what a process holds now. Raises ``OSError`` if it is gone, ``ValueError`` if it is going."""
    folder = Path("/proc") / str(pid)
    sizes = {
        name: int(size)
        for name, size in re.findall(r"^(\w+):\s+(\d+) kB$", (folder / "smaps_rollup").read_text(), re.M)
    }
    threads = re.search(r"^Threads:\s+(\d+)$", (folder / "status").read_text(), re.M)
    if "Pss" not in sizes or threads is None:
        raise ValueError(pid)
    return MemorySample(
        *(time.monotonic(), sizes["Rss"], sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"]),
        *(int(threads[1]), len(list((folder / "fd").iterdir()))),
    )


def side_by_side(
    ours: dict[str, list[MemorySample]], other: dict[str, list[MemorySample]]
) -> list[tuple[Trend, Trend]]:
    """Return the trends of processes that are in both, over as long as both were watched."""
    pairs = []
    for label in ours.keys() & other.keys():
        seconds = min(samples[-1].at - samples[0].at for samples in (ours[label], other[label]))
        first, second = (
            trend_of(label, [s for s in samples if s.at - samples[0].at <= seconds])
            for samples in (ours[label], other[label])
        )
        if first is not None and second is not None:
            pairs.append((first, second))
    return sorted(pairs, key=lambda pair: pair[0].label)


def slope(points: list[tuple[float, float]]) -> float:
    """Return the Theil–Sen slope: the median of the slopes of all pairs. 0.0 for fewer than two points."""
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in combinations(points, 2) if x2 != x1]
    return statistics.median(slopes) if slopes else 0.0


def trend_of(label: str, samples: list[MemorySample]) -> Trend | None:
    """Return the trend of one process, or ``None`` for fewer than ten looks."""
    if len(samples) < 10:
        return None
    began, seconds = samples[0].at, samples[-1].at - samples[0].at

    def part(low: float, high: float) -> list[MemorySample]:
        return [s for s in samples if low <= (s.at - began) / seconds <= high]

    warm, early, late = part(WARM_UP_SHARE, 1.0), part(WARM_UP_SHARE, 0.4), part(0.8, 1.0)
    if not early or not late:
        return None
    return Trend(
        label,
        len(samples),
        seconds,
        max(s.rss for s in samples) / KIB_PER_MIB,
        statistics.median(s.uss for s in early) / KIB_PER_MIB,
        statistics.median(s.uss for s in late) / KIB_PER_MIB,
        slope([(s.at / 60, s.uss) for s in warm]),
        slope([(s.at / 60, s.rss) for s in warm]),
        (
            round(statistics.median(s.threads for s in early)),
            round(statistics.median(s.threads for s in late)),
        ),
        (round(statistics.median(s.files for s in early)), round(statistics.median(s.files for s in late))),
    )
