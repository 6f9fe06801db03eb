"""What a running recording says about itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from forwardpass.cli.live_status import SilenceWatch, status_text
from forwardpass.counters import StageCounts
from forwardpass.relay.relay import RelayStats
from forwardpass.trace.sink import TraceCounts

QUIET = RelayStats(
    url="tcp://127.0.0.1:20381",
    dp_rank=1,
    received=0,
    bytes=0,
    bad_frames=0,
    gaps=0,
    lost=0,
    restarts=0,
    trace_refused=0,
    plane=None,
    last_received_unix_ms=None,
    connected=False,
    reconnects=0,
    receive_errors=0,
)
TRACE = TraceCounts(
    offered=10,
    accepted=10,
    written=1234,
    sampled_out=0,
    pending=0,
    dropped={},
    segments=1,
    flushes=1,
    uncompressed_bytes=1,
    compressed_bytes=1,
    last_error=None,
)


def stream(**changes: Any) -> RelayStats:
    return msgspec.structs.replace(QUIET, **changes)


def test_a_stream_that_never_comes_is_said_once() -> None:
    """After three seconds of nothing one line says which stream, what to set and what finds out more."""
    watch = SilenceWatch()
    said = [watch.note(elapsed, [stream()]) for elapsed in (1.0, 2.0, 3.0, 4.0, 60.0)]

    assert [len(lines) for lines in said] == [0, 0, 1, 0, 0]
    assert "tcp://127.0.0.1:20381" in said[2][0]
    assert "DYN_FORWARDPASS_METRIC_PORT=20381" in said[2][0]
    assert "forwardpass doctor" in said[2][0]


def test_a_silent_publisher_is_told_from_none() -> None:
    """A publisher that is connected but silent is described as that."""
    assert "connected, but" in SilenceWatch().note(3.0, [stream(connected=True)])[0]


def test_messages_with_wrong_frames_are_told_from_silence() -> None:
    """A port that sends something else is described as that."""
    assert "no forward passes (7 skipped)" in SilenceWatch().note(3.0, [stream(bad_frames=7)])[0]


def test_a_stream_that_falls_silent_and_comes_back() -> None:
    """A stream that stops is said after ten seconds, and again when it goes on."""
    watch = SilenceWatch()
    assert watch.note(1.0, [stream(received=5, connected=True)]) == []
    assert watch.note(10.0, [stream(received=5)]) == []
    gone = watch.note(11.0, [stream(received=5)])
    assert watch.note(30.0, [stream(received=5)]) == []
    back = watch.note(31.0, [stream(received=6)])
    again = watch.note(41.0, [stream(received=6, connected=True)])

    assert "for 10 s: its publisher is gone" in gone[0]
    assert back == ["tcp://127.0.0.1:20381: receiving now"]
    assert "connected but says nothing" in again[0]


def test_streams_are_watched_apart() -> None:
    """Each stream has its own silence."""
    watch = SilenceWatch()
    other = stream(url="ipc:///tmp/x.0", received=1)

    assert len(watch.note(3.0, [stream(), other])) == 1
    assert "ipc:///tmp/x.0" in watch.note(13.0, [stream(), other])[0]


def test_ipc_advice_has_no_port() -> None:
    """For a stream without a port no port is suggested."""
    line = SilenceWatch().note(3.0, [stream(url="ipc:///tmp/x.0")])[0]

    assert "METRIC_PORT" not in line


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("tcp://127.0.0.1:20380", True),
        ("tcp://localhost:20380", True),
        ("tcp://[::1]:20380", True),
        ("tcp://10.0.0.7:20380", False),
        ("tcp://gpu-7:20380", False),
    ],
)
def test_a_silent_host_elsewhere_may_be_bound_to_its_loopback(url: str, local: bool) -> None:
    """The likeliest reason that another host says nothing is the default bind host, so that is named."""
    line = SilenceWatch().note(3.0, [stream(url=url)])[0]

    assert ("FORWARDPASS_BIND_HOST" in line) is not local


def test_status_line() -> None:
    """One line: time, streams, messages and rate, rows; losses only where there are any."""
    plain = status_text(12.3, [stream(received=3400), stream()], TRACE, 281.4)
    plane = StageCounts(9, 9, 2, 0, {"send_error": 7})
    lossy = msgspec.structs.replace(TRACE, dropped={"queue_full": 4})
    losses = status_text(0.0, [stream(lost=3, plane=plane)], lossy, 0.0)

    assert plain == "12 s  1 of 2 streams  3,400 messages (281/s)  1,234 rows written"
    assert losses.endswith("3 missed  11 dropped")


def test_status_line_without_a_trace() -> None:
    """Without a trace there are no rows to speak of."""
    assert "rows" not in status_text(1.0, [stream(received=1)], None, 1.0)
