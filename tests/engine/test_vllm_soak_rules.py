"""The soak's rules can be broken: a small made-up soak keeps them all, and each fault breaks its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from forwardpass.testing.traces import gzip_member, trace_line
from forwardpass.wire.codec import encode, stamp
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from soak import stream_check, token_check, trace_check
from soak.act import Act
from soak.findings import Findings
from soak.gauges import GaugeReading
from soak.load import Answer
from soak.memory import MemorySample, Trend, trend_of
from soak.phases import Phase, PhaseResult
from soak.raw_reader import Message, RawLog
from soak.recorders import Life
from soak.rows import Spread, WitnessRow

IDLE, WAITING = QueuedRequestMetrics(), QueuedRequestMetrics(1, 30, 0.0)
PROMPT, FIRST, SECOND = (
    ScheduledRequestMetrics(1, 40),
    ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=40),
    ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=41),
)


def message(scheduled: ScheduledRequestMetrics, queued: QueuedRequestMetrics, wall: float) -> Any:
    """Return a message of worker “plain”."""
    return ForwardPassMetrics(
        worker_id="plain", wall_time=wall, scheduled_requests=scheduled, queued_requests=queued
    )


def row(prefill: list[int], decode: list[int], queued: list[int], begin: float, after_empty: int) -> Any:
    """Return what the witness wrote of a pass that was scheduled at ``begin`` and took about 0.1 s."""
    return WitnessRow(
        *(sum(prefill), 0, Spread.of(prefill), Spread.of(decode), Spread.of(queued), Spread()),
        *(1, after_empty, 1, 0, begin, begin + 0.001, begin + 0.1, begin + 0.101),
    )


@dataclass
class Made:
    """A soak of one request: a prompt of 40 tokens, an answer of 3, a heartbeat before and after."""

    messages: list[Any] = field(
        default_factory=lambda: [
            message(ScheduledRequestMetrics(), IDLE, 0.0),
            message(PROMPT, WAITING, 0.1),
            message(FIRST, IDLE, 0.1),
            message(SECOND, IDLE, 0.1),
            message(ScheduledRequestMetrics(), IDLE, 0.0),
        ]
    )
    witnessed: list[Any] = field(
        default_factory=lambda: [
            row([40], [], [30], 10.0, 1),
            row([], [40], [], 10.1, 0),
            row([], [41], [], 10.2, 0),
        ]
    )
    answer: Answer = field(default_factory=lambda: Answer("short chat", 40, 0, 3, 3))
    counters: dict[str, float] = field(
        default_factory=lambda: {
            "prompt_tokens_total": 40.0,
            "generation_tokens_total": 3.0,
            "request_success_total": 1.0,
            "iteration_tokens_total_count": 3.0,
        }
    )
    gauge: GaugeReading = field(default_factory=lambda: GaugeReading(10.2, 10.3, 1.0, 1.0))
    sequences: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    recorded: list[int] = field(default_factory=lambda: [0, 1, 2, 3, 4])
    line: Callable[[bytes], bytes] = bytes
    life: dict[str, Any] = field(default_factory=dict)
    trace: dict[str, Any] = field(default_factory=dict)

    def broken(self, folder: Path) -> set[str]:
        """Judge it, and return the rules that do not hold."""
        raw, witness = folder / "plain.raw", folder / "plain.witness"
        stamped = [
            encode(stamp(metrics, sequence))
            for sequence, metrics in zip(self.sequences, self.messages, strict=True)
        ]
        raw.write_bytes(
            b"".join(
                Message(sequence, 10.0 + 0.1 * place, payload).packed()
                for place, (sequence, payload) in enumerate(zip(self.sequences, stamped, strict=True))
            )
        )
        witness.write_bytes(b"".join(seen.packed() for seen in self.witnessed))
        phase = PhaseResult(Phase("mixed", 1), 0, 4, 9.0, 12.0, [self.answer], [], self.counters, 2)
        act = Act("plain", False, raw, witness, phases=[phase], gauges=[self.gauge])
        findings, log = Findings(), RawLog(raw)
        sums = stream_check.check_stream(act, log, findings, witnessed=True)
        token_check.check_tokens(act, sums.phases, findings)
        trace_check.check_lives([self._life(folder, stamped)], [(act, log)], findings)
        return {finding.rule for finding in findings if not finding.ok}

    def _life(self, folder: Path, stamped: list[bytes]) -> Life:
        lines = []
        for counter in self.recorded:
            metrics = self.messages[counter]
            lines.append(
                trace_line(
                    counter,
                    metrics.scheduled_requests,
                    wall_time=metrics.wall_time,
                    queued=metrics.queued_requests,
                    worker_id="plain",
                )
            )
        path = folder / "recorder-000.4192.000000.jsonl.gz"
        path.write_bytes(gzip_member([self.line(line) for line in lines]))
        relay = {"gaps": 0, "lost": 0, "bad_frames": 0, "receive_errors": 0, "received": len(lines)}
        trace = {"offered": len(lines), "written": len(lines), "sampled_out": 0, "pending": 0, "dropped": {}}
        life = Life("recorder-000", folder / "recorder-000", 1, 9.5, asked=11.5, ended=11.6, status=0)
        life.result = {"trace": {**trace, **self.trace}, "relays": [relay]}
        return replace(life, **self.life)


def changed(made: Made, place: int, **fields: Any) -> None:
    """Change a message."""
    values = {name: getattr(made.messages[place], name) for name in ForwardPassMetrics.__struct_fields__}
    made.messages[place] = ForwardPassMetrics(**{**values, **fields})


def lost_in_the_stream(made: Made) -> None:
    """Leave out the second pass, as if it had not been sent."""
    del made.messages[2], made.sequences[2]
    made.recorded = [0, 1, 2, 3]


FAULTS: dict[str, tuple[Callable[[Made], object], set[str]]] = {
    "a context one too long": (
        lambda made: changed(
            made,
            2,
            scheduled_requests=ScheduledRequestMetrics(num_decode_requests=1, sum_decode_kv_tokens=41),
        ),
        {stream_check.SCHEDULED},
    ),
    "a spread that is none": (
        lambda made: changed(made, 1, scheduled_requests=ScheduledRequestMetrics(1, 40, 0.5)),
        {stream_check.SCHEDULED},
    ),
    "a queue that was not seen": (
        lambda made: changed(made, 2, queued_requests=WAITING),
        {stream_check.QUEUED},
    ),
    "a pass that took too long": (lambda made: changed(made, 2, wall_time=0.2), {stream_check.WALL}),
    "more time than there was": (
        lambda made: changed(made, 2, wall_time=9.0),
        {stream_check.WALL, stream_check.ELAPSED},
    ),
    "a heartbeat with a time": (lambda made: changed(made, 4, wall_time=0.1), {stream_check.NO_WALL}),
    "a number that is no number": (
        lambda made: changed(made, 4, wall_time=float("nan")),
        {stream_check.VALID},
    ),
    "another worker": (lambda made: changed(made, 4, dp_rank=1), {stream_check.NAMED, trace_check.SAME}),
    "a pass that was not sent": (
        lost_in_the_stream,
        {stream_check.WHOLE, stream_check.SEEN, stream_check.SCHEDULED}
        | {token_check.EXACT_DECODE, token_check.VLLM_STEPS, token_check.WITNESS_TOKENS},
    ),
    "a pass that the witness did not see": (lambda made: made.witnessed.pop(), {stream_check.SEEN}),
    "a cached token": (
        lambda made: setattr(made, "answer", Answer("short chat", 40, 1, 3, 3)),
        {token_check.EXACT_PREFILL, token_check.VLLM_HITS},
    ),
    "an answer longer by one": (
        lambda made: setattr(made, "answer", Answer("short chat", 40, 0, 4, 4)),
        {token_check.EXACT_DECODE, token_check.VLLM_ANSWERS},
    ),
    "a gauge of three": (
        lambda made: setattr(made, "gauge", GaugeReading(10.2, 10.3, 3.0, 0.0)),
        {stream_check.GAUGES},
    ),
    "a row that is missing": (
        lambda made: setattr(made, "recorded", [0, 1, 3, 4]),
        {trace_check.DENSE},
    ),
    "a row twice": (
        lambda made: setattr(made, "recorded", [0, 1, 2, 2, 3, 4]),
        {trace_check.ONCE, trace_check.DENSE},
    ),
    "rows missing before the stop": (
        lambda made: setattr(made, "recorded", [0, 1]),
        {trace_check.TERM_END},
    ),
    "rows missing long before the kill": (
        lambda made: (setattr(made, "recorded", [0]), made.life.update(killed=True, asked=14.0)),
        {trace_check.KILL_END},
    ),
    "a row with another number": (
        lambda made: setattr(made, "line", lambda line: line.replace(b"40", b"39")),
        {trace_check.SAME},
    ),
    "a row dropped": (
        lambda made: made.trace.update(dropped={"queue_full": 1}),
        {trace_check.LEDGER},
    ),
    "a row pending": (lambda made: made.trace.update(pending=1), {trace_check.LEDGER}),
    "a recorder that complains": (
        lambda made: made.life.update(words="forwardpass: warning: …"),
        {trace_check.STATUS},
    ),
}


def test_a_right_soak_keeps_every_rule(tmp_path: Path) -> None:
    """What is right breaks nothing."""
    assert Made().broken(tmp_path) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_breaks_its_rule(fault: str, tmp_path: Path) -> None:
    """A fault is found, and by the rules that are there for it."""
    spoil, expected = FAULTS[fault]
    made = Made()
    spoil(made)

    assert made.broken(tmp_path) >= expected


def test_the_witness_reads_its_own_rows(tmp_path: Path) -> None:
    """A row that was written is the row that is read; spreads are exact."""
    seen = row([40, 50], [], [30], 10.0, 1)

    assert WitnessRow.unpacked(seen.packed()) == seen
    assert seen.prefill.variance == 25.0


def test_gauges_of_a_step_without_a_pass_are_not_compared(tmp_path: Path) -> None:
    """A request that waits for its grammar is in vLLM's gauges while no message can be; one that is said to
    wait while others run must be in the stream.
    """
    alone, beside = (
        Made(gauge=GaugeReading(10.2, 10.3, 0.0, 9.0)),
        Made(gauge=GaugeReading(10.2, 10.3, 1.0, 9.0)),
    )

    assert alone.broken(tmp_path) == set()
    assert beside.broken(tmp_path) == {stream_check.GAUGES}


def trend(label: str, grows_mib: float, threads: int = 4) -> Trend:
    """Return the trend of a process over twenty minutes."""
    samples = [
        MemorySample(
            at=60.0 * minute, rss=500_000, pss=0, uss=400_000 + int(1024 * grows_mib * minute / 20),
            threads=threads, files=9,
        )
        for minute in range(21)
    ]  # fmt: skip
    found = trend_of(label, samples)
    assert found is not None
    return found


def test_what_is_ours_must_be_flat() -> None:
    """The recorder and the engine core are held against a fixed limit, the rest of vLLM against itself."""
    assert trend("engine core (plain)", 0.5).flat
    assert not trend("engine core (plain)", 3.0).flat
    labels = ("recorder", "engine core (plain)", "worker (plain)", "API server (plain)")
    assert [trend(label, 0).ours for label in labels] == [True, True, False, False]


def test_the_rest_of_vllm_grows_as_it_does_alone() -> None:
    """It may grow as much as with vLLM's own scheduler and a few MiB more, without another thread."""
    alone = trend("worker (plain)", 30.0)

    assert trend("worker (plain)", 33.0).grew_no_more_than(alone)
    assert not trend("worker (plain)", 60.0).grew_no_more_than(alone)
    assert not trend("worker (plain)", 30.0, threads=5).grew_no_more_than(alone)
    assert trend("worker (plain)", 1.0).grew_no_more_than(trend("worker (plain)", -20.0))
