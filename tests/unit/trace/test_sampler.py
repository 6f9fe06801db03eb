"""Which payloads are recorded, with values and a clock that tests move."""

from __future__ import annotations

import pytest

from forwardpass.config.settings import CaptureMode
from forwardpass.errors import MalformedPayload
from forwardpass.trace import sampler
from forwardpass.trace.record import TraceSource
from forwardpass.trace.rows import Offered
from forwardpass.trace.sampler import (
    NEWER_LIMIT,
    FullRecorder,
    Intake,
    SampledRecorder,
    make_recorder,
    stream_prefix,
)
from forwardpass.wire.codec import encode
from forwardpass.wire.keys import StreamKey
from forwardpass.wire.schema import ForwardPassMetrics

SOURCE = TraceSource("dynamo", "backend", "42")
BAD = b"\xc1"


def payload(counter: int, worker: str = "w", rank: int = 0) -> bytes:
    """Return a valid message."""
    return encode(ForwardPassMetrics(worker_id=worker, dp_rank=rank, counter_id=counter))


def item(data: bytes, observed: int = 0, source: TraceSource = SOURCE) -> Offered:
    """Return a payload as it was offered."""
    return source, observed, data


def written(intake: Intake) -> list[tuple[str, int, int]]:
    """Return worker, rank and counter of each row."""
    return [
        (body["worker_id"], body["dp_rank"], body["counter_id"])
        if isinstance(body, dict)
        else (body.worker_id, body.dp_rank, body.counter_id)
        for body in intake.bodies
    ]


def test_full_mode_writes_everything_in_order() -> None:
    """TRACE-31: every valid payload, heartbeats and repeats included, in arrival order."""
    recorder = FullRecorder()
    intake = recorder.observe([item(payload(5)), item(BAD), item(payload(5)), item(payload(4))])

    assert written(intake) == [("w", 0, 5), ("w", 0, 5), ("w", 0, 4)]
    assert [type(error) for error in intake.refused] == [MalformedPayload]
    assert intake.sampled_out == 0
    assert len(intake.offered) == 3


def test_full_mode_holds_nothing() -> None:
    """In full mode nothing waits for a time or for the end."""
    recorder = make_recorder(CaptureMode.FULL, 1.0, 0.0)

    assert recorder.due(1e9) == recorder.drain() == Intake()
    assert recorder.seconds_to_due(0.0) == float("inf")


def test_nothing_is_written_before_the_first_interval_ends() -> None:
    """TRACE-33: the first tick comes one interval after the start."""
    recorder = SampledRecorder(5.0, 100.0)
    recorder.observe([item(payload(1))])

    assert written(recorder.due(104.999)) == []
    assert recorder.seconds_to_due(104.0) == pytest.approx(1.0)
    assert written(recorder.due(105.0)) == [("w", 0, 1)]


def test_the_newest_of_an_interval_is_written() -> None:
    """TRACE-32: of several payloads of a stream the newest is written, the others are passed over."""
    recorder = SampledRecorder(5.0, 0.0)
    first = recorder.observe([item(payload(counter)) for counter in range(3)])
    second = recorder.observe([item(payload(3))])
    intake = recorder.due(5.0)

    assert written(intake) == [("w", 0, 3)]
    assert first.sampled_out + second.sampled_out + intake.sampled_out == 3


def test_an_unchanged_counter_is_not_repeated() -> None:
    """TRACE-32: a stream whose counter did not change since its last row writes none."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(7))])
    recorder.due(5.0)
    recorder.observe([item(payload(7))])

    assert written(recorder.due(10.0)) == []


def test_an_unchanged_counter_leaves_what_is_pending() -> None:
    """A payload with the last written counter is ignored; an older pending one stays."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(7))])
    recorder.due(5.0)
    recorder.observe([item(payload(8)), item(payload(7))])

    assert written(recorder.due(10.0)) == [("w", 0, 8)]


def test_a_counter_that_goes_back_is_written() -> None:
    """TRACE-32: a restarted publisher begins at 0 and is written."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(900))])
    recorder.due(5.0)
    recorder.observe([item(payload(0))])

    assert written(recorder.due(10.0)) == [("w", 0, 0)]


def test_a_bad_newest_payload_falls_back_to_the_last_valid() -> None:
    """TRACE-32: the newest *valid* payload is written, wherever the bad ones came."""
    recorder = SampledRecorder(5.0, 0.0)
    bad = payload(3)[:-1]
    recorder.observe([item(payload(1)), item(payload(2)), item(bad)])
    recorder.observe([item(bad)])
    intake = recorder.due(5.0)

    assert written(intake) == [("w", 0, 2)]
    assert len(intake.refused) == 2


def test_rows_come_in_the_order_of_their_streams() -> None:
    """TRACE-32: ascending by namespace, component, producer, worker id, rank."""
    recorder = SampledRecorder(5.0, 0.0)
    other = TraceSource("dynamo", "a-backend", "42")
    recorder.observe(
        [
            item(payload(1, "9", 10)),
            item(payload(2, "9", 9)),
            item(payload(3, "10", 0)),
            item(payload(4, "z", 0), source=other),
        ]
    )

    assert written(recorder.due(5.0)) == [("z", 0, 4), ("10", 0, 3), ("9", 9, 2), ("9", 10, 1)]


def test_a_late_tick_delays_those_after_it() -> None:
    """TRACE-33: after a tick that came late the next one comes a whole interval later; there is no burst."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(1))])
    assert written(recorder.due(23.0)) == [("w", 0, 1)]
    recorder.observe([item(payload(2))])

    assert written(recorder.due(27.9)) == []
    assert written(recorder.due(28.0)) == [("w", 0, 2)]


def test_what_is_pending_at_the_end_is_written() -> None:
    """TRACE-33: a stop writes what the running interval holds."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(1))])

    assert written(recorder.drain()) == [("w", 0, 1)]
    assert written(recorder.drain()) == []


def test_sources_are_streams_of_their_own() -> None:
    """The same worker and rank seen at two endpoints are two streams."""
    recorder = SampledRecorder(5.0, 0.0)
    other = TraceSource("dynamo", "prefill", "42")
    recorder.observe([item(payload(1)), item(payload(1), source=other)])

    assert len(recorder.due(5.0).bodies) == 2


def test_a_payload_keeps_the_time_it_was_observed() -> None:
    """TRACE-12: the row of a sampled payload carries the time of that payload, not of the tick."""
    recorder = SampledRecorder(5.0, 0.0)
    recorder.observe([item(payload(1), 111), item(payload(2), 222)])

    assert [observed for _, observed, _ in recorder.due(5.0).offered] == [222]


def test_unread_payloads_are_bounded() -> None:
    """However many payloads an interval has, only a few per stream are held."""
    recorder = SampledRecorder(1e9, 0.0)
    passed_over = sum(
        recorder.observe([item(payload(counter))]).sampled_out for counter in range(100 * NEWER_LIMIT)
    )

    assert passed_over >= 99 * NEWER_LIMIT - 1


def test_streams_that_went_silent_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that invents worker ids cannot grow the memory without bound; a live stream is not forgotten."""
    monkeypatch.setattr(sampler, "MAX_STREAMS", 10)
    recorder = SampledRecorder(5.0, 0.0)
    for round_number in range(1, 5):
        made_up = [item(payload(1, f"{round_number}-{number}")) for number in range(8)]
        recorder.observe([*made_up, item(payload(1))])
        recorder.due(5.0 * round_number)

    assert len(recorder._streams) <= 18
    assert len(recorder._by_prefix) <= 10


def test_the_usual_layout_tells_its_stream() -> None:
    """The bytes up to the counter are the same for all payloads of a stream and name it."""
    found = stream_prefix(payload(300, "w7", 70_000))

    assert found is not None
    assert found[1] == StreamKey("w7", 70_000)
    assert payload(1, "w7", 70_000).startswith(found[0])
    assert not payload(300, "w7", 70_001).startswith(found[0])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        BAD,
        b"\x88" + payload(1)[1:],
        payload(1)[:20],
        payload(1).replace(b"\xa7version\x01", b"\xa7version\x02"),
        payload(1, "§dp_rank"),
    ],
)
def test_another_layout_has_to_be_read(data: bytes) -> None:
    """A payload whose first bytes do not settle whose it is gives no prefix."""
    assert stream_prefix(data) is None
