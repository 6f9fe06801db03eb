"""Knows what the procedures of a run share: settings, content, log, and the point that is measured now."""

from __future__ import annotations

from msgspec import Struct, field

from forwardpass.bench.content.writer import PromptWriter
from forwardpass.bench.limits import EngineLayout
from forwardpass.bench.points import Point
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.samples import Sample
from forwardpass.clock import Clock

__all__ = ["Current", "RunContext", "RunSettings"]


class RunSettings(Struct, frozen=True):
    """What decides how points are run, whatever the engine."""

    warmup_iterations: int = 5
    timeout_seconds: float = 900.0
    """After which no further point begins."""
    point_seconds: float = 8.0
    """Longest wait for a point's passes once all ranks have started it."""
    admission_seconds: float = 10.0
    """Longest wait for the engine to start anything that was injected."""
    real_seed: bool = False
    """Whether prefixes are computed for real before they are read."""
    kv_warmup: bool = True
    """The switch of real KV for decodes; whether the engine is eligible is another matter."""
    giant_threshold: int = 1_000_000
    """Tokens of context from which a decode repeats its steady step."""
    giant_repeats: int = 3
    explicit: bool = False
    """The points come from a file: each of them has to be measured."""


class Current(Struct):
    """The point that is measured now."""

    point: Point
    expected: int
    """Samples of a whole measurement."""
    armed: bool = True
    """It begins with the next pass that has tokens."""
    deadline: float | None = None
    """Monotonic seconds; ``None`` until the ranks have started it."""
    samples: list[Sample] = field(default_factory=list)


class RunContext:
    """What one run's procedures share. The session alone changes ``current`` and the log's counts."""

    def __init__(
        self, settings: RunSettings, layout: EngineLayout, prompts: PromptWriter, log: RunLog, clock: Clock
    ) -> None:
        self.settings = settings
        self.layout = layout
        self.prompts = prompts
        self.log = log
        self.clock = clock
        self._salts = 0
        self.usable_blocks = 0
        """Blocks that requests of this rank may take, the watermark left alone."""
        self.point: Point | None = None
        """The point whose turn it is, from before anything of it is injected; ``None`` before the first."""
        self.current: Current | None = None
        self.stopping = False
        """No further point may begin, whatever the time."""
        self.began = 0.0
        """Monotonic seconds at the first step of the benchmark."""
        self.last_progress = 0.0
        """Monotonic seconds of the last output with tokens, or of the last injection."""
        self.seeded: dict[int, list[int]] = {}
        """Batch size -> tokens of real prefix that each slot has in the cache."""

    def unique_salt(self) -> str:
        """Return a cache salt that nothing else has: a shape that runs twice must not find its own blocks."""
        self._salts += 1
        return f"__bench_point_{self._salts}"

    @property
    def timed_out(self) -> bool:
        """Return whether no further point may begin, as far as this rank's clock says."""
        return self.stopping or self.clock.monotonic() - self.began >= self.settings.timeout_seconds

    @property
    def samples(self) -> list[Sample]:
        """Return the passes of the current point so far."""
        return self.current.samples if self.current is not None else []

    @property
    def started(self) -> bool:
        """Return whether the ranks have started the current point."""
        return self.current is not None and self.current.deadline is not None

    def expired(self) -> bool:
        """Return whether the current point has waited long enough for its passes."""
        deadline = self.current.deadline if self.current is not None else None
        return deadline is not None and self.clock.monotonic() >= deadline

    def stuck(self) -> bool:
        """Return whether the engine has not started what was injected, for far too long."""
        return self.clock.monotonic() - self.last_progress >= self.settings.admission_seconds

    def warmups_begun(self) -> int:
        """Return how many warm-ups there were so far."""
        return len(self.log.warmups)
