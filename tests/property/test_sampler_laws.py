"""Sampled mode against a plain reading of its rules, for any traffic."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.errors import WireError
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Offered, encode_rows
from forwardpass.trace.sampler import FullRecorder, Intake, SampledRecorder
from forwardpass.wire.codec import encode
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

INTERVAL = 5.0
SOURCES = [
    TraceSource("dynamo", "backend", "42"),
    TraceSource("dynamo", "a", "42"),
    TraceSource("dynamo", "backend", "42"),
]
WORKERS = ["", "9", "10", "§dp_rank", "ªcounter_id", "w" * 40]


class Rules:
    """The rules as they are written down: validate everything at once, keep the newest, write at ticks."""

    def __init__(self) -> None:
        self.next_tick = INTERVAL
        self.pending: dict[tuple[str, str, str, str, int], tuple[Offered, dict[str, Any]]] = {}
        self.last: dict[tuple[str, str, str, str, int], int] = {}

    def message(self, item: Offered) -> None:
        try:
            document = validate_payload(item[2])
        except WireError:
            return
        source = item[0]
        key = (
            source.namespace,
            source.component,
            source.producer_id,
            document["worker_id"],
            document["dp_rank"],
        )
        if document["counter_id"] != self.last.get(key):
            self.pending[key] = (item, document)

    def tick(self, now: float) -> bytes:
        if now < self.next_tick:
            return b""
        self.next_tick = now + INTERVAL
        return self.flush()

    def flush(self) -> bytes:
        rows = []
        for key in sorted(self.pending):
            item, document = self.pending[key]
            self.last[key] = document["counter_id"]
            rows.append((item, document))
        self.pending.clear()
        return encode_rows([item for item, _ in rows], [document for _, document in rows], "sampled", 0)


def usual(metrics: ForwardPassMetrics) -> bytes:
    return encode(metrics)


def newer_schema(metrics: ForwardPassMetrics) -> bytes:
    return msgspec.msgpack.encode({**msgspec.to_builtins(metrics), "extra": [1]})


def nested_newer_schema(metrics: ForwardPassMetrics) -> bytes:
    document = msgspec.to_builtins(metrics)
    return msgspec.msgpack.encode(
        {**document, "scheduled_requests": {**document["scheduled_requests"], "x": 1}}
    )


def reordered(metrics: ForwardPassMetrics) -> bytes:
    return msgspec.msgpack.encode(dict(reversed(msgspec.to_builtins(metrics).items())))


def long_rank(metrics: ForwardPassMetrics) -> bytes:
    """The rank in a longer form than needed: the same stream begins with other bytes."""
    return encode(metrics).replace(
        b"\xa7dp_rank" + bytes([metrics.dp_rank]), b"\xa7dp_rank\xcc" + bytes([metrics.dp_rank])
    )


def key_twice(metrics: ForwardPassMetrics) -> bytes:
    """A map that says at its end that it is somebody else's: the last one counts."""
    return b"\x88" + encode(metrics)[1:] + b"\xa9worker_id\xa19"


def key_twice_for_another(metrics: ForwardPassMetrics) -> bytes:
    """A map of seven entries with one key twice, and so without a required one."""
    return encode(metrics).replace(b"\xa9wall_time\xcb" + bytes(8), b"\xa9worker_id\xa19")


def torn(metrics: ForwardPassMetrics) -> bytes:
    return encode(metrics)[:-1]


def negative(metrics: ForwardPassMetrics) -> bytes:
    return encode(msgspec.structs.replace(metrics, wall_time=-1.0))


def garbage(metrics: ForwardPassMetrics) -> bytes:
    return b"\xc1\x00"


messages = st.builds(
    ForwardPassMetrics,
    worker_id=st.sampled_from(WORKERS[:3]) | st.sampled_from(WORKERS),
    dp_rank=st.integers(0, 2),
    counter_id=st.integers(0, 3),
)
layouts = st.sampled_from(
    [usual] * 6 + [newer_schema, nested_newer_schema, reordered, long_rank]
) | st.sampled_from([key_twice, key_twice_for_another, torn, negative, garbage])
payloads = st.builds(lambda layout, metrics: layout(metrics), layouts, messages)
batches = st.lists(st.tuples(st.sampled_from(SOURCES), st.integers(0, 9), payloads), min_size=1, max_size=50)
waits = st.sampled_from([0.0, 0.1, 2.5, 5.0, 12.0])
events = st.lists(st.tuples(waits, batches), max_size=12)


def text_of(intake: Intake) -> bytes:
    """Return the rows that would be written."""
    return encode_rows(intake.offered, intake.bodies, "sampled", 0)


@settings(max_examples=200, deadline=None)
@given(events)
def test_sampled_mode_writes_what_its_rules_say(traffic: list[tuple[float, list[Offered]]]) -> None:
    """TRACE-32 and TRACE-33: the same rows at the same ticks as the rules read literally."""
    rules, recorder = Rules(), SampledRecorder(INTERVAL, 0.0)
    now = 0.0
    for wait, batch in traffic:
        now += wait
        assert text_of(recorder.due(now)) == rules.tick(now)
        for item in batch:
            rules.message(item)
        assert not recorder.observe(list(batch)).bodies

    assert text_of(recorder.drain()) == rules.flush()


@settings(max_examples=100, deadline=None)
@given(events)
def test_sampled_mode_accounts_for_every_payload(traffic: list[tuple[float, list[Offered]]]) -> None:
    """Each observed payload becomes a row, is passed over or is refused, exactly once."""
    recorder = SampledRecorder(INTERVAL, 0.0)
    now, observed, settled = 0.0, 0, 0
    for wait, batch in traffic:
        now += wait
        observed += len(batch)
        for intake in (recorder.due(now), recorder.observe(list(batch))):
            settled += len(intake.bodies) + intake.sampled_out + len(intake.refused)
            assert len(intake.bodies) == len(intake.offered)
        assert settled <= observed

    last = recorder.drain()
    assert settled + len(last.bodies) + last.sampled_out + len(last.refused) == observed


@settings(max_examples=100, deadline=None)
@given(batches)
def test_full_mode_writes_every_valid_payload(batch: list[Offered]) -> None:
    """TRACE-31: full mode writes exactly the valid payloads, in order, whatever surrounds them."""
    expected = []
    for item in batch:
        try:
            expected.append((item, validate_payload(item[2])))
        except WireError:
            continue
    intake = FullRecorder().observe(list(batch))

    assert text_of(intake) == encode_rows([i for i, _ in expected], [d for _, d in expected], "sampled", 0)
    assert len(intake.bodies) + len(intake.refused) == len(batch)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=30))
def test_any_bytes_are_recorded_or_refused(data: list[bytes]) -> None:
    """Whatever is offered, nothing is raised and nothing is lost from the account."""
    items: list[Offered] = [(SOURCES[0], 0, payload) for payload in data]
    sampled = SampledRecorder(INTERVAL, 0.0)
    kept = sampled.observe(list(items))
    last = sampled.drain()
    full = FullRecorder().observe(items)

    assert len(full.bodies) + len(full.refused) == len(data)
    assert kept.sampled_out + len(kept.refused) + last.sampled_out + len(last.refused) + len(
        last.bodies
    ) == len(data)
