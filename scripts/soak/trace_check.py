"""Knows what must hold for the traces of all recorder lives, against the plain reader's messages.

Rows are read with the product's reader, and for recorders that stopped by themselves once more with
``gzip`` of the standard library, which must find the same lines.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from forwardpass.trace.reader import TraceReader
from forwardpass.trace.record import TraceRecord
from forwardpass.trace.report import ProblemKind
from soak.act import Act
from soak.findings import Findings
from soak.raw_reader import RawLog
from soak.recorders import Life

__all__ = ["TERM_SLACK_SECONDS", "LifeFacts", "check_lives"]

TERM_SLACK_SECONDS = 0.5
"""What a recorder that is asked to stop may miss of what was sent before: bytes still on their way to it."""
KILL_SLACK_SECONDS = 3.0
"""Unflushed rows of a killed recorder: its flush comes each second, and two cores are shared."""
JOIN_SECONDS = 60.0
"""Time that a recorder may take to start on a busy machine before a missing row counts."""

SAME = "each recorded row is the plain reader's message, field by field and in its order"
ONCE = "no producer recorded a counter twice, nor out of order"
APART = "no counter is in the traces of two lives of one recorder"
DENSE = "a full trace has every counter between its first and its last"
TERM_END = f"a stopped recorder has all that was sent up to {TERM_SLACK_SECONDS:g} s before its signal"
KILL_END = f"a killed recorder has all that was sent up to {KILL_SLACK_SECONDS:g} s before its signal"
JOINED = f"a recorder records within {JOIN_SECONDS:g} s of its start"
WATCHED = "a recorder that was there before the engine has its first pass"
SOUND = "the files of a stopped recorder are sound, and gzip of the standard library reads the same lines"
TORN = "the files of a killed recorder have nothing wrong but a torn end"
LEDGER = "a stopped recorder's ledger adds up: offered = written + sampled out, nothing pending or dropped"
RELAYED = "its relay received what its trace was offered, without a gap, a bad frame or an error"
PRODUCER = "each life is a producer of its own"
STATUS = "a stopped recorder ends with status 0 (1 if nothing came), without a warning"
SAMPLED = "a sampled trace has no more rows than intervals, for each engine"


@dataclass
class LifeFacts:
    """What one life left behind."""

    life: Life
    rows: int = 0
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By act: first and last counter."""
    producers: set[str] = field(default_factory=set)
    counts: dict[str, int] = field(default_factory=dict)
    joined_after: float | None = None
    """Seconds from its start to the first message that it has."""
    missed_before_end: float = 0.0
    """Seconds before its signal in which the first message that it lacks was sent; 0.0 if it has all."""
    bytes: int = 0
    text_bytes: int = 0


def check_lives(
    lives: Sequence[Life], acts: Sequence[tuple[Act, RawLog]], findings: Findings, *, sampled_ms: int = 0
) -> list[LifeFacts]:
    """Check the traces of one recorder's lives; ``sampled_ms`` is the interval, 0 for a full trace."""
    logs = {act.name: log for act, log in acts}
    found = []
    for life in lives:
        facts = _read(life, logs, findings)
        found.append(facts)
        for act, log in acts:
            if sampled_ms:
                most = 2 + (life.ended - life.began) * 1000 / sampled_ms
                findings.note(SAMPLED, facts.counts.get(act.name, 0) <= most, facts)
            else:
                _check_range(facts, act, log, findings)
        if life.killed:
            continue
        _check_ledger(facts, findings)
    ends: dict[str, int] = {}
    for facts in found:
        for act_name, (first, last) in facts.ranges.items():
            findings.note(APART, first > ends.get(act_name, -1), (facts.life.name, first, ends))
            ends[act_name] = last
    producers = [producer for facts in found for producer in facts.producers]
    findings.note(PRODUCER, len(producers) == len(set(producers)), producers)
    return found


def _read(life: Life, logs: dict[str, RawLog], findings: Findings) -> LifeFacts:
    facts = LifeFacts(life)
    paths = sorted(life.prefix.parent.glob(f"{life.prefix.name}.*.jsonl.gz"))
    if not paths:
        return facts
    reader = TraceReader(paths)
    for record in reader:
        facts.rows += 1
        facts.producers.add(record.source.producer_id)
        act, counter = record.metrics.worker_id, record.metrics.counter_id
        first, last = facts.ranges.get(act, (counter, -1))
        findings.note(ONCE, counter > last, (life.name, counter, last))
        facts.ranges[act] = first, counter
        facts.counts[act] = facts.counts.get(act, 0) + 1
        findings.note(SAME, _same(record, logs.get(act)), (life.name, record.line))
    facts.bytes, facts.text_bytes = reader.report.size, reader.report.text_bytes
    problems = {problem.kind for problem in reader.report.problems()}
    if life.killed:
        findings.note(TORN, problems <= {ProblemKind.TORN_MEMBER}, f"{life.name}: {problems}")
    else:
        lines = sum(gzip.decompress(path.read_bytes()).count(b"\n") for path in paths)
        findings.note(SOUND, not problems and lines == facts.rows, f"{life.name}: {problems} {lines}")
    return facts


def _same(record: TraceRecord, log: RawLog | None) -> bool:
    message = log.get(record.metrics.counter_id) if log is not None else None
    if message is None:
        return False
    sent: dict[str, Any] = msgspec.msgpack.decode(message.payload)
    return msgspec.json.encode(sent) == msgspec.json.encode(record.fpm)


def _check_range(facts: LifeFacts, act: Act, log: RawLog, findings: Findings) -> None:
    life = facts.life
    slack = KILL_SLACK_SECONDS if life.killed else TERM_SLACK_SECONDS
    due = log.last_before(life.asked - slack)
    sent_while_joined = [
        sequence
        for at in (max(life.began + JOIN_SECONDS, log.times[0]), life.asked - slack)
        if (sequence := log.last_before(at)) is not None
    ]
    if act.name not in facts.ranges:
        missed = len(sent_while_joined) == 2 and sent_while_joined[1] > sent_while_joined[0]
        if life.began < log.times[-1] and life.asked > log.times[0]:
            findings.note(JOINED, not missed, f"{life.name} has nothing of {act.name}")
        return
    first, last = facts.ranges[act.name]
    findings.note(DENSE, facts.counts[act.name] == last - first + 1, f"{life.name}: {first} … {last}")
    if due is not None and due >= first:
        rule = KILL_END if life.killed else TERM_END
        findings.note(rule, last >= due, f"{life.name}: last {last}, due {due}")
    message = log.get(first)
    if life.began < log.times[0] - JOIN_SECONDS:
        before_load = log.last_before(act.phases[0].began) or 0
        findings.note(WATCHED, first <= before_load + 1, f"{life.name}: first {first}")
    elif message is not None:
        joined = max(0.0, message.at - max(life.began, log.times[0]))
        findings.note(JOINED, joined < JOIN_SECONDS, f"{life.name}: {joined:.1f} s")
        facts.joined_after = joined
    lacking = log.get(last + 1)
    if lacking is not None and lacking.at < life.asked:
        facts.missed_before_end = life.asked - lacking.at


def _check_ledger(facts: LifeFacts, findings: Findings) -> None:
    life, result = facts.life, facts.life.result
    if result is None:
        findings.note(STATUS, False, f"{life.name}: no result")
        return
    trace, relays = result["trace"], result["relays"]
    kept = trace["written"] + trace["sampled_out"]
    holds = trace["offered"] == kept and not trace["pending"] and not trace["dropped"]
    findings.note(LEDGER, holds and trace["written"] == facts.rows, f"{life.name}: {trace}")
    whole = all(
        not relay["gaps"] and not relay["lost"] and not relay["bad_frames"] and not relay["receive_errors"]
        for relay in relays
    )
    received = sum(relay["received"] for relay in relays)
    findings.note(RELAYED, whole and received == trace["offered"], f"{life.name}: {relays}")
    good = life.status == (0 if facts.rows else 1) and "warning" not in life.words.lower()
    findings.note(STATUS, good, f"{life.name}: {life.status} {life.words}")
