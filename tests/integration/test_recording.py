"""A recording from start to finish, as commands use it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from relay_peers import LIMIT_SECONDS, free_url, publishing_at, until
from trace_files import counter_ids, trace_settings

from forwardpass.cli.live_status import LiveStatus
from forwardpass.cli.recording import Recording, stop_on_signals
from forwardpass.config.settings import CaptureMode, Fsync, RelaySettings
from forwardpass.errors import ConfigError
from forwardpass.relay.targets import RelayTarget
from forwardpass.trace.policy import TraceDecision
from forwardpass.wire.keys import Endpoint


def make(url: str, folder: Path | None, *, fsync: Fsync = Fsync.NEVER, **relay: object) -> Recording:
    """Return a recording of one stream, with a trace if there is a folder."""
    trace = TraceDecision(False)
    if folder is not None:
        trace = TraceDecision(True, trace_settings(folder, fsync=fsync))
    return Recording(
        [RelayTarget(url, 0)],
        trace=trace,
        relay=RelaySettings(**relay),  # type: ignore[arg-type]
        drawn_id="12",
    )


def test_finish_drains_before_it_closes_the_trace(tmp_path: Path) -> None:
    """What was sent before the stop, and not even received yet, is in the files that the result names."""

    async def run() -> None:
        url = free_url()
        recording = make(url, tmp_path, endpoint=Endpoint("a", "b", "c"))
        await recording.start()
        with publishing_at(url) as publisher:
            while recording.stats()[0].received == 0:
                publisher.send_passes(1)
                await asyncio.sleep(0.02)
            begun = publisher.seq
            publisher.send_passes(20_000)
            publisher.close(linger_ms=10_000)
            result = await recording.finish()

        assert counter_ids(tmp_path, "12")[-20_000:] == list(range(begun, begun + 20_000))
        assert result.trace is not None
        assert result.trace.written == result.received == result.relays[0].received
        assert (result.producer_id, result.endpoint) == ("12", Endpoint("a", "b", "c"))
        assert result.capture_mode is CaptureMode.FULL
        assert result.files == (str(tmp_path / "fpm.12.000000.jsonl.gz"),)
        assert result.seconds > 0

    asyncio.run(run())


def test_a_fixed_producer_id_wins(tmp_path: Path) -> None:
    """The fixed producer id names the files; the drawn one is for the engine alone (D-29)."""
    recording = make(free_url(), tmp_path, producer_id="fixed")

    assert recording.producer_id == "fixed"


def test_without_a_trace(tmp_path: Path) -> None:
    """A decision against tracing leaves relaying as it is, and the result has no files."""

    async def run() -> None:
        url = free_url()
        recording = make(url, None, plane_url="memory:no-trace")
        await recording.start()
        with publishing_at(url) as publisher:
            while recording.stats()[0].received == 0:
                publisher.send_passes(1)
                await asyncio.sleep(0.02)
            result = await recording.finish()
        assert (result.trace, result.files, result.capture_mode) == (None, (), None)
        assert result.received > 0
        assert not recording.tracing

    asyncio.run(run())


@pytest.mark.parametrize(("url", "plane_url"), [(None, "carrier-pigeon:coop"), ("tcp://*:1", None)])
def test_a_start_that_fails_closes_the_trace(tmp_path: Path, url: str | None, plane_url: str | None) -> None:
    """A plane or stream that can never work ends the start with its error and leaves no trace open."""

    async def run() -> None:
        recording = make(url or free_url(), tmp_path, plane_url=plane_url)
        with pytest.raises(ConfigError):
            await recording.start()
        await until(lambda: "fpm-trace-12" not in [thread.name for thread in threading.enumerate()])
        result = await recording.finish()
        assert result.relays == ()
        again = make(free_url(), tmp_path)
        await again.start()
        assert again.tracing
        await again.finish()

    asyncio.run(run())


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    """Where no file can be made the streams are relayed all the same."""

    async def run() -> None:
        (tmp_path / "file").write_text("")
        recording = make(free_url(), tmp_path / "file")
        await recording.start()
        assert not recording.tracing
        assert (await recording.finish()).trace is None

    asyncio.run(run())


async def longest_pause(stop: asyncio.Event) -> float:
    """Return the longest time, in seconds, that the event loop did not come round until ``stop``."""
    longest, last = 0.0, time.monotonic()
    while not stop.is_set():
        await asyncio.sleep(0.002)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest


def test_a_slow_disk_never_stops_the_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRACE-30, D-26: Where every sync takes a second, start, relaying and stop wait for it beside the event
    loop, the plane goes on, and every row is written.
    """
    real_sync, syncs = os.fsync, []

    def slow_sync(descriptor: int) -> None:
        time.sleep(1.0)
        real_sync(descriptor)
        syncs.append(descriptor)

    monkeypatch.setattr(os, "fsync", slow_sync)

    async def run() -> None:
        url, stop = free_url(), asyncio.Event()
        recording = make(url, tmp_path, fsync=Fsync.FLUSH, plane_url="memory:slow-disk")
        watch = asyncio.create_task(longest_pause(stop))
        await asyncio.sleep(0)  # it has begun
        await recording.start()
        assert len(syncs) == 1  # the probe
        with publishing_at(url) as publisher:
            while recording.stats()[0].received == 0:
                publisher.send_passes(1)
                await asyncio.sleep(0.02)
            end = time.monotonic() + 2.5
            while time.monotonic() < end:
                publisher.send_passes(5)
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            stats = recording.stats()[0]
            assert stats.plane is not None
            assert stats.plane.delivered == stats.received
            result = await recording.finish()
        stop.set()

        assert await watch < 0.5
        assert len(syncs) >= 4
        assert result.trace is not None
        assert result.trace.written == result.received
        assert len(counter_ids(tmp_path, "12")) == result.received

    asyncio.run(run())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_only_asks(number: signal.Signals) -> None:
    """SIGINT and SIGTERM set the event and raise nothing; afterwards the old handlers are back."""
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]

    async def run() -> None:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            os.kill(os.getpid(), number)
            await until(stop.is_set)
            assert signal.getsignal(number) is signal.SIG_DFL  # the second one is the system's business
        async with asyncio.timeout(LIMIT_SECONDS):
            await stop.wait()

    asyncio.run(run())

    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_status_line_renews_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the status is one line that is written over and cleared at the end, on stderr."""

    async def run() -> None:
        recording = make(free_url(), None)
        await recording.start()
        await LiveStatus(recording, terminal=True).follow(asyncio.Event(), seconds=1.2)
        await recording.finish()

    asyncio.run(run())
    out, err = capsys.readouterr()

    assert out == ""
    assert err.startswith("\r\x1b[K1 s  0 of 1 stream  0 messages (0/s)")
    assert err.endswith("\r\x1b[K")
    assert "\n" not in err


def test_elsewhere_the_status_is_rare(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal nothing is said within the first seconds, and with quiet never."""

    async def run() -> None:
        recording = make(free_url(), None)
        await recording.start()
        await LiveStatus(recording, terminal=False).follow(asyncio.Event(), seconds=0.3)
        await LiveStatus(recording, quiet=True, terminal=True).follow(asyncio.Event(), seconds=0.6)
        await recording.finish()

    asyncio.run(run())

    assert capsys.readouterr() == ("", "")
