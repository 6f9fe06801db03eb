"""Knows what must hold for every message of the raw stream, and compares each pass with the witness.

Nothing here uses a counter of the product's: the messages are those of the plain reader, the passes
those that the witness saw in the engine.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from forwardpass.errors import WireError
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload
from soak.act import Act
from soak.engine import MAX_BATCHED_TOKENS, MAX_SEQUENCES
from soak.findings import Findings
from soak.gauges import QueueLine
from soak.raw_reader import Message, RawLog
from soak.rows import WitnessRow, read_rows

__all__ = ["PhaseSums", "StreamSums", "check_stream"]

WHOLE = "the sequence has no gap from the first message to the last"
VALID = "every message passes the strict validator"
NUMBERED = "counter_id is the sequence in the frame"
NAMED = "every message names its worker, rank 0"
BOUNDED = f"no pass runs more than {MAX_SEQUENCES} requests or {MAX_BATCHED_TOKENS} prefill tokens"
NO_WALL = "a message without a pass has wall_time 0.0"
SEEN = "there are as many passes in the stream as the witness saw"
SCHEDULED = "each pass's scheduled requests are what the witness counted, field by field"
QUEUED = "each pass's queue is what the witness counted, field by field"
WALL = "each wall_time lies within what the witness's clock allows"
ELAPSED = "a phase's wall times add up to no more than it took"
GAUGES = "vLLM's gauges of running and waiting requests are between the stream's numbers around then"
OPEN = "no message counts more requests than the clients had open"


@dataclass
class PhaseSums:
    """What the stream says about one phase."""

    messages: int = 0
    passes: int = 0
    prefill_tokens: int = 0
    decodes: int = 0
    wall_seconds: float = 0.0
    most_scheduled: int = 0
    most_queued: int = 0
    most_queued_decodes: int = 0
    most_counted: int = 0
    """Most requests in one message, scheduled and queued."""
    witnessed: int = 0
    """Passes that a witness saw; 0 without one, and then the next three are 0 as well."""
    samples: int = 0
    """Tokens that were sampled, speculation aside."""
    resumed: int = 0
    """Requests whose lost tokens were all computed again."""
    with_samples: int = 0
    """Passes that gave a token."""

    def add_witnessed(self, row: WitnessRow) -> None:
        """Add what the witness saw of one pass."""
        self.witnessed += 1
        self.samples += row.samples
        self.resumed += row.resumed
        self.with_samples += row.samples > 0


@dataclass
class StreamSums:
    """What the stream of one act says."""

    messages: int = 0
    heartbeats: int = 0
    passes: int = 0
    phases: list[PhaseSums] = field(default_factory=list)


def check_stream(act: Act, log: RawLog, findings: Findings, *, witnessed: bool) -> StreamSums:
    """Look at every message of ``act``, with the witness if there was one; return the sums."""
    sums = StreamSums(messages=len(log), phases=[PhaseSums() for _ in act.phases])
    findings.note(WHOLE, not log.gaps and not act.reader_faults, (log.gaps[:3], act.reader_faults[:3]))
    starts = [phase.first for phase in act.phases]
    rows = read_rows(act.witness_file) if witnessed else iter(())
    before: WitnessRow | None = None
    line = QueueLine()
    for message in log:
        metrics = _read(message, act, findings)
        if metrics is None:
            continue
        phase = sums.phases[max(0, bisect_right(starts, message.sequence) - 1)]
        phase.messages += 1
        line.add(message.at, metrics)
        if not _is_pass(metrics):
            sums.heartbeats += 1
            findings.note(NO_WALL, metrics.wall_time == 0.0, metrics)
            _add_queue(phase, metrics)
            continue
        sums.passes += 1
        _add(phase, metrics)
        findings.note(BOUNDED, _is_bounded(metrics), metrics)
        if (row := next(rows, None)) is not None:
            _compare(metrics, row, before, findings)
            phase.add_witnessed(row)
            before = row
    if witnessed:
        rows_in_all = sum(1 for _ in read_rows(act.witness_file))
        findings.note(SEEN, rows_in_all == sums.passes, (sums.passes, rows_in_all))
    _check_phases(act, sums, findings)
    for reading in act.gauges:
        findings.note(GAUGES, line.explains(reading), (act.name, reading))
    return sums


def _check_phases(act: Act, sums: StreamSums, findings: Findings) -> None:
    for result, phase in zip(act.phases, sums.phases, strict=True):
        took = result.ended - result.began
        name = f"{act.name}, {result.phase.name}"
        findings.note(ELAPSED, phase.wall_seconds <= took, f"{name}: {phase.wall_seconds} s in {took} s")
        if not result.phase.aborts:
            most = (phase.most_counted, result.most_open)
            findings.note(OPEN, most[0] <= most[1], f"{name}: {most[0]} counted, {most[1]} open")


def _read(message: Message, act: Act, findings: Findings) -> ForwardPassMetrics | None:
    try:
        validate_payload(message.payload)
        metrics = decode_strict(message.payload)
    except WireError as error:
        findings.note(VALID, False, f"{message.sequence}: {error}")
        return None
    findings.note(VALID, True)
    findings.note(NUMBERED, metrics.counter_id == message.sequence, metrics)
    findings.note(NAMED, (metrics.worker_id, metrics.dp_rank) == (act.name, 0), metrics)
    return metrics


def _is_pass(metrics: ForwardPassMetrics) -> bool:
    return bool(
        metrics.scheduled_requests.num_prefill_requests or metrics.scheduled_requests.num_decode_requests
    )


def _is_bounded(metrics: ForwardPassMetrics) -> bool:
    scheduled = metrics.scheduled_requests
    ran = scheduled.num_prefill_requests + scheduled.num_decode_requests
    return ran <= MAX_SEQUENCES and scheduled.sum_prefill_tokens <= MAX_BATCHED_TOKENS


def _add(sums: PhaseSums, metrics: ForwardPassMetrics) -> None:
    scheduled = metrics.scheduled_requests
    ran = scheduled.num_prefill_requests + scheduled.num_decode_requests
    sums.passes += 1
    sums.prefill_tokens += scheduled.sum_prefill_tokens
    sums.decodes += scheduled.num_decode_requests
    sums.wall_seconds += metrics.wall_time
    sums.most_scheduled = max(sums.most_scheduled, ran)
    sums.most_counted = max(sums.most_counted, ran)
    _add_queue(sums, metrics)


def _add_queue(sums: PhaseSums, metrics: ForwardPassMetrics) -> None:
    queued = metrics.queued_requests
    waiting = queued.num_prefill_requests + queued.num_decode_requests
    sums.most_queued = max(sums.most_queued, waiting)
    sums.most_queued_decodes = max(sums.most_queued_decodes, queued.num_decode_requests)
    sums.most_counted = max(sums.most_counted, waiting)


def _compare(
    metrics: ForwardPassMetrics, row: WitnessRow, before: WitnessRow | None, findings: Findings
) -> None:
    scheduled = metrics.scheduled_requests
    found = (
        *(scheduled.num_prefill_requests, scheduled.sum_prefill_tokens, scheduled.sum_prefill_kv_tokens),
        *(scheduled.num_decode_requests, scheduled.sum_decode_kv_tokens),
    )
    seen = (row.prefill.n, row.prefill_tokens, row.prefill_kv_tokens, row.decode.n, row.decode.total)
    same = (
        found == seen
        and _close(scheduled.var_prefill_length, row.prefill.variance)
        and _close(scheduled.var_decode_kv_tokens, row.decode.variance)
    )
    findings.note(SCHEDULED, same, (metrics, row))
    findings.note(QUEUED, _queue_is(metrics, row), (metrics, row))
    least, most = _wall_bounds(row, before)
    findings.note(WALL, least <= metrics.wall_time <= most, (metrics.wall_time, least, most))


def _queue_is(metrics: ForwardPassMetrics, row: WitnessRow) -> bool:
    queued = metrics.queued_requests
    found = (
        *(queued.num_prefill_requests, queued.sum_prefill_tokens),
        *(queued.num_decode_requests, queued.sum_decode_kv_tokens),
    )
    prefill, decode = row.queued_prefill, row.queued_decode
    return (
        found == (prefill.n, prefill.total, decode.n, decode.total)
        and _close(queued.var_prefill_length, prefill.variance)
        and _close(queued.var_decode_kv_tokens, decode.variance)
    )


def _wall_bounds(row: WitnessRow, before: WitnessRow | None) -> tuple[float, float]:
    """Return between which values ``wall_time`` must lie, from readings taken around the calls."""
    if row.after_empty or before is None:
        return row.arrived_before - row.scheduled_after, row.arrived_after - row.scheduled_before
    return row.arrived_before - before.arrived_after, row.arrived_after - before.arrived_before


def _close(found: float, expected: float) -> bool:
    return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
