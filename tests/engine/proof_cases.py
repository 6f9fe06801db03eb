"""Knows which cases a proof must have covered, and how often it did."""

from __future__ import annotations

from collections import Counter

ENGINES = (
    "synchronous, 1 in flight",
    "synchronous, 3 in flight",
    "asynchronous, 2 in flight",
    "asynchronous, 3 in flight",
    "runner V1",
    "runner V2",
    "policy fcfs",
    "policy priority",
    "chunked prefill on",
    "chunked prefill off",
    "prefix caching on",
    "prefix caching off",
    "engine with drafts",
    "engine with structured output",
    "engine with sessions",
    "KV connector, policy recompute",
    "KV connector, policy fail",
    "adapters",
    "throttled prefills",
    "DP rank above 0",
    "parity: paused sessions counted",
)
"""Passes of engines that are so."""

PASSES = (
    "prefill",
    "chunk",
    "prefix hit",
    "embeddings sent",
    "decode",
    "pure decode batch",
    "resumed",
    "recomputed after preemption",
    "output after preemption",
    "output dropped",
    "all preempted",
    "speculative decode",
    "drafts accepted",
    "drafts rejected",
    "padded prefill",
    "context with pending rejections",
    "structured output",
    "deferred grammar",
    "aborted in flight",
    "pass while PAUSED_NEW",
    "pass while PAUSED_ALL",
    "session goes on",
    "turn of a session ended",
    "admitted with KV in hand",
    "synchronous load",
    "synchronous load failed",
    "stop token",
    "one token in all",
    "empty step",
)
"""What the pass itself did or met."""

QUEUES = (
    "prompts wait",
    "both queues hold requests",
    "preempted request waits",
    "grammar not ready",
    "failed in the queue",
    "paused session",
    "input for a session",
    "KV in transit",
    "load starts",
    "load arrives",
    "load failed",
    "load of an aborted request",
    "held blocks freed",
    "aborted while waiting",
    "aborted while running",
    "aborted while paused",
    "queue asked between outputs",
    "built later, with others",
    "recount agrees",
)
"""What the queue held, or what changed it."""

TABLES = {"Engines": ENGINES, "Passes": PASSES, "Queues": QUEUES}
PASSES_PER_CASE = 20_000
"""Of so many passes each case must be in one, at least: a million cover the rarest fifty times."""


def missing(coverage: Counter[str], passes: int) -> list[str]:
    """Return the cases that are covered too seldom."""
    least = max(1, passes // PASSES_PER_CASE)
    return [
        f"{case}: {coverage[case]} of {least}"
        for cases in TABLES.values()
        for case in cases
        if coverage[case] < least
    ]


def table(coverage: Counter[str]) -> str:
    """Return the coverage as Markdown tables."""
    lines: list[str] = []
    for title, cases in TABLES.items():
        lines += [f"### {title}\n", "| case | passes |", "| --- | ---: |"]
        lines += [f"| {case} | {coverage[case]:,} |" for case in cases]
        lines.append("")
    return "\n".join(lines)
