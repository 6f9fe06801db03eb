"""The decisions of ``record``, without streams."""

from __future__ import annotations

import msgspec
import pytest
from test_live_status import QUIET, TRACE

from forwardpass.cli.main import Exit
from forwardpass.cli.record import exit_code, record_sources
from forwardpass.cli.recording import RecordingResult, draw_id, plane_words
from forwardpass.config import variables as v
from forwardpass.config.settings import CaptureMode, RelaySettings, TraceSettings
from forwardpass.errors import ConfigError
from forwardpass.wire.keys import MAX_PRODUCER_ID, Endpoint

SOME = msgspec.structs.replace(QUIET, received=5)


def result(received: bool = True, dropped: dict[str, int] | None = None, written: int = 2) -> RecordingResult:
    return RecordingResult(
        producer_id="7",
        endpoint=Endpoint(),
        seconds=1.0,
        relays=(SOME if received else QUIET,),
        capture_mode=CaptureMode.FULL,
        trace=msgspec.structs.replace(TRACE, written=written, dropped=dropped or {}),
    )


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (result(), Exit.DONE),
        (result(received=False, written=0), Exit.FINDING),
        (result(dropped={"malformed": 3}), Exit.DONE),
        (result(dropped={"malformed": 5}, written=0), Exit.FINDING),
        (result(dropped={"disk_error": 5}, written=0), Exit.PARTIAL),
        (result(dropped={"disk_error": 3}), Exit.PARTIAL),
        (result(dropped={"queue_full": 1, "malformed": 1}), Exit.PARTIAL),
    ],
)
def test_exit_code(ended: RecordingResult, code: Exit) -> None:
    """No forward pass is 1, lost rows are 4, garbage beside forward passes is no loss of a row."""
    assert exit_code(ended) is code


@pytest.mark.parametrize(
    ("flags", "env", "mode"),
    [
        ({}, {}, "full"),
        ({}, {"DYN_FPM_MODE": "sampled"}, "sampled"),
        ({"mode": "sampled"}, {}, "sampled"),
        ({"mode": "full"}, {"DYN_FPM_MODE": "sampled"}, "full"),
    ],
)
def test_mode(flags: dict[str, str], env: dict[str, str], mode: str) -> None:
    """An explicit command to record means every pass; a flag or the variable says otherwise."""
    assert TraceSettings.load(record_sources(flags, env)).mode == mode


def test_a_blank_mode_variable_is_an_error() -> None:
    """record's default covers an unset variable, not one that is set to nothing."""
    with pytest.raises(ConfigError):
        TraceSettings.load(record_sources({}, {"DYN_FPM_MODE": " "}))


def test_every_flag_reaches_its_setting() -> None:
    """Each flag stands for its variable."""
    texts = {
        "output": "/x/run",
        "sample_interval_ms": "250",
        "roll_bytes": "1000",
        "max_segments": "9",
        "fsync": "flush",
        "producer_id": "abc",
        "endpoint": "a.b.c",
        "plane": "memory:x",
    }
    sources = record_sources(texts, {})
    trace, relay = TraceSettings.load(sources), RelaySettings.load(sources)

    assert (trace.output_prefix, trace.sample_interval_seconds, trace.roll_bytes) == ("/x/run", 0.25, 1000)
    assert (trace.max_segments, trace.fsync) == (9, "flush")
    assert relay == RelaySettings(Endpoint("a", "b", "c"), "memory:x", "abc")


def test_a_wrong_flag_is_refused() -> None:
    """A flag's text that is not accepted names the flag."""
    with pytest.raises(ConfigError) as caught:
        record_sources({"roll_bytes": "1_000"}, {})

    assert caught.value.variable == "--roll-bytes"


def test_ids_are_random_and_small() -> None:
    """An id is decimal text of 1 to 2**53 - 1, different each time (D-29)."""
    ids = {draw_id() for _ in range(200)}

    assert len(ids) == 200
    assert all(one.isdecimal() and 1 <= int(one) <= MAX_PRODUCER_ID for one in ids)


def test_plane_words() -> None:
    """One line says where the streams go: no plane unless one was named (D-31)."""
    assert v.PLANE.name in plane_words(RelaySettings())
    assert "memory:x" in plane_words(RelaySettings(plane_url="memory:x"))
