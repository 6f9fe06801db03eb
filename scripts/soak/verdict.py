"""Knows how a finished soak is judged: every check run over what it left behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from soak.act import Act
from soak.findings import Findings
from soak.memory import RULE, MemorySample, Trend, side_by_side, trend_of
from soak.page import render_page, render_text
from soak.raw_reader import RawLog
from soak.recorders import Life
from soak.stream_check import StreamSums, check_stream
from soak.token_check import TokenSums, check_tokens
from soak.trace_check import LifeFacts, check_lives

__all__ = ["ActFacts", "Soak", "Verdict", "compare", "judge", "trends_of"]

ALL_KINDS = "the load made what it was meant to make: chunks, queues, preemptions, cache hits, hang-ups"
WHOLE_MINUTES = 2.0
ENGINE_ENDED = "the server stops with status 0 on SIGTERM"
FLAT = "memory is flat in the recorder and in every engine core that was watched for long enough"
ALIKE = "vLLM's other processes grow as they do with vLLM's own scheduler"


@dataclass
class Soak:
    """What was asked for, and what is left of it."""

    folder: Path
    minutes: float
    seed: int
    scheduler: str
    sampled_ms: int
    acts: list[Act] = field(default_factory=list)
    lasting: list[Life] = field(default_factory=list)
    restarted: dict[str, list[Life]] = field(default_factory=dict)
    memory: dict[str, list[MemorySample]] = field(default_factory=dict)


@dataclass
class ActFacts:
    """One act, counted."""

    act: Act
    stream: StreamSums
    tokens: list[TokenSums]


@dataclass
class Verdict:
    """Everything that was found."""

    soak: Soak
    findings: Findings
    acts: list[ActFacts]
    lives: dict[str, list[LifeFacts]]
    trends: list[Trend]
    compared: list[tuple[Trend, Trend]] = field(default_factory=list)
    """Beside those of another run over the same time, for the page."""

    @property
    def ok(self) -> bool:
        """Whether every rule holds."""
        return self.findings.ok

    def text(self) -> str:
        """Return what a terminal shows."""
        return render_text(self)

    def page(self) -> str:
        """Return the page for the documentation, in Markdown."""
        return render_page(self)


def compare(verdict: Verdict, other: dict[str, list[MemorySample]]) -> None:
    """Hold the memory of vLLM's own processes against that of a run with vLLM's own scheduler."""
    verdict.compared.extend(side_by_side(verdict.soak.memory, other))
    for mine, theirs in verdict.compared:
        if not mine.ours:
            verdict.findings.note(ALIKE, mine.grew_no_more_than(theirs), f"{mine}, {theirs} ({RULE})")


def judge(soak: Soak) -> Verdict:
    """Run every check. With vLLM's own scheduler there is memory to look at and nothing else."""
    findings = Findings()
    trends = list(trends_of(soak.memory))
    for act in soak.acts:
        findings.note(ENGINE_ENDED, act.status == 0, f"{act.name}: {act.status}")
    for trend in trends:
        if trend.judged and trend.ours:
            findings.note(FLAT, trend.flat, f"{trend} ({RULE})")
    if soak.scheduler == "stock":
        return Verdict(soak, findings, [], {}, trends)
    logs = [(act, RawLog(act.raw_file)) for act in soak.acts]
    acts = []
    for act, log in logs:
        stream = check_stream(act, log, findings, witnessed=soak.scheduler == "witness")
        acts.append(ActFacts(act, stream, check_tokens(act, stream.phases, findings)))
    _check_load(acts, findings, whole=soak.minutes >= WHOLE_MINUTES)
    lives = {"lasting": check_lives(soak.lasting, logs, findings)}
    for name, of_name in soak.restarted.items():
        sampled_ms = soak.sampled_ms if name == "relay" else 0
        lives[name] = check_lives(of_name, logs, findings, sampled_ms=sampled_ms)
    return Verdict(soak, findings, acts, lives, trends)


def trends_of(memory: dict[str, list[MemorySample]]) -> Iterator[Trend]:
    """Yield the trend of each process that was looked at often enough."""
    for label, samples in memory.items():
        trend = trend_of(label, samples)
        if trend is not None:
            yield trend


def _check_load(acts: list[ActFacts], findings: Findings, *, whole: bool) -> None:
    """Note whether the load met what it was for; a short one on a quick machine never fills the KV."""
    phases = [phase for facts in acts for phase in facts.stream.phases]
    tokens = [sums for facts in acts for sums in facts.tokens]
    made = {
        "queued prompts": any(phase.most_queued for phase in phases),
        "queued contexts": any(phase.most_queued_decodes for phase in phases) or not whole,
        "cache hits": any(sums.cached for sums in tokens),
        "preemptions": any(sums.preempted for sums in tokens) or not whole,
        "hang-ups": any(sums.hung_up for sums in tokens),
        "heartbeats": all(facts.stream.heartbeats for facts in acts),
        "accepted drafts": any(sums.accepted for sums in tokens)
        or not any(facts.act.speculative for facts in acts),
    }
    findings.note(ALL_KINDS, all(made.values()), [name for name, was in made.items() if not was])
