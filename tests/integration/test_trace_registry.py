"""Leases on traces, with real sinks."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_files import LIMIT_SECONDS, counter_ids, payload, rows, segment, segments, text, trace_settings

from forwardpass.config.settings import CaptureMode, Fsync
from forwardpass.trace.registry import TraceHandle, TraceRegistry
from forwardpass.trace.sink import TraceSink
from forwardpass.wire.keys import Endpoint

BACKEND = Endpoint("dynamo", "backend", "generate")
PREFILL = Endpoint("dynamo", "prefill", "generate")


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[TraceRegistry]:
    """A registry that writes below the test's folder."""
    registry = TraceRegistry(trace_settings(tmp_path))
    yield registry
    registry.close(LIMIT_SECONDS)


def lease(registry: TraceRegistry, producer: str = "77", endpoint: Endpoint = BACKEND) -> TraceHandle:
    """Return a lease that must be there."""
    handle = registry.acquire(producer, endpoint)
    assert handle is not None
    return handle


def test_endpoints_of_a_producer_share_one_trace(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-50: one queue, one writer and one file; each row carries the endpoint it came through."""
    handles = [lease(registry, endpoint=endpoint) for endpoint in (BACKEND, PREFILL, BACKEND)]
    for counter, handle in enumerate(handles):
        assert handle.offer(payload(counter))
    for handle in handles:
        handle.release()

    assert segments(tmp_path) == [segment(tmp_path, 0)]
    assert [row["event"]["source"]["component"] for row in rows(tmp_path)] == [
        "backend",
        "prefill",
        "backend",
    ]
    assert handles[0].counts() == handles[2].counts()
    assert handles[0].counts().written == 3
    assert handles[0].files() == (str(segment(tmp_path, 0)),)


def test_retention_is_shared(tmp_path: Path) -> None:
    """TRACE-50: the limit of segments is the producer's, however many endpoints write."""
    registry = TraceRegistry(trace_settings(tmp_path, roll_bytes=1, max_segments=2))
    handles = [lease(registry), lease(registry, endpoint=PREFILL)]
    for counter in range(6):
        handles[counter % 2].offer(payload(counter))
    registry.close()

    assert counter_ids(tmp_path) == [4, 5]


def test_producers_are_apart(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-50: each producer has files of its own, named after it, and its own counts."""
    one, other = lease(registry, "1"), lease(registry, "a/b")
    one.offer(payload(1))
    other.offer_many([payload(2), payload(3)])
    one.release()
    other.release()

    assert counter_ids(tmp_path, "1") == [1]
    assert counter_ids(tmp_path, "a_b") == [2, 3]
    assert {row["event"]["source"]["producer_id"] for row in rows(tmp_path, "a_b")} == {"a/b"}
    assert (one.counts().written, other.counts().written) == (1, 2)


def test_the_last_release_closes(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-51: a trace goes on while somebody holds it; the last release writes everything and closes."""
    first, second = lease(registry), lease(registry)
    first.release()
    assert not first.offer(payload(0))
    assert first.offer_many([payload(0)]) == 0
    assert second.offer(payload(1))
    second.release()
    second.release()
    first.release()

    assert counter_ids(tmp_path) == [1]
    assert not second.offer(payload(2))
    counts = second.counts()
    assert counts.dropped == {"closed": 3}
    assert counts.offered == counts.written + counts.dropped_total


def test_a_new_lease_begins_a_new_segment(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-51: after the last release a new lease gets a new writer at the next index."""
    for counter in range(3):
        handle = lease(registry)
        handle.offer(payload(counter))
        handle.release()

    assert [path.name[-15:-9] for path in segments(tmp_path)] == ["000000", "000001", "000002"]
    assert counter_ids(tmp_path) == [0, 1, 2]


def test_a_lease_twice_released_counts_once(registry: TraceRegistry) -> None:
    """Releasing a handle again takes nothing from the others."""
    first, second = lease(registry), lease(registry)
    first.release()
    first.release()

    assert second.offer(payload(1))


def test_a_new_lease_waits_for_the_old_writer(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-51: a lease asked for while the trace closes comes after everything of the old one is written."""
    old = lease(registry)
    for _ in range(40):
        old.offer_many([payload(counter) for counter in range(200)])
    written: list[int] = []

    def reopen() -> None:
        handle = lease(registry)
        written.append(old.counts().written + old.counts().pending)
        handle.offer(payload(1))
        handle.release()

    thread = threading.Thread(target=old.release)
    thread.start()
    reopen()
    thread.join(LIMIT_SECONDS)

    assert old.counts().pending == 0
    assert written[0] in (8000, 8001)
    assert sum(len(text(path).splitlines()) for path in segments(tmp_path)) == 8001


def test_leases_survive_a_storm(registry: TraceRegistry, tmp_path: Path) -> None:
    """TRACE-51: threads that acquire, offer and release at random lose no row and share no file."""
    each = 30

    def work(rank: int) -> None:
        for counter in range(each):
            handle = lease(registry)
            handle.offer(payload(counter, rank=rank))
            handle.release()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_SECONDS)
    registry.close()

    fpms = [row["event"]["fpm"] for row in rows(tmp_path)]
    newest = {(fpm["dp_rank"], fpm["counter_id"]) for fpm in fpms}
    assert len(newest) == len(fpms)
    assert {rank for rank, _ in newest} <= {0, 1, 2, 3}
    assert len(segments(tmp_path)) <= 4


def test_a_failed_start_is_final(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """TRACE-52: a producer that cannot be written stays off, said once, even if the folder is repaired."""
    (tmp_path / "x").write_text("")
    registry = TraceRegistry(trace_settings(tmp_path / "x"))
    with caplog.at_level(logging.WARNING):
        assert registry.acquire("77", BACKEND) is None
        (tmp_path / "x").unlink()
        assert registry.acquire("77", PREFILL) is None
        registry.close()
        assert registry.acquire("77", BACKEND) is None
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert "DYN_FPM_OUTPUT_PATH or its option wants a prefix in a folder" in caplog.text
        assert "is off; serving goes on" in caplog.text
        other = registry.acquire("78", BACKEND)

    assert other is not None
    assert len(caplog.records) == 1
    other.release()


def test_the_start_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A trace that begins says once who is recorded, how, where and how much is kept."""
    registry = TraceRegistry(trace_settings(tmp_path, mode=CaptureMode.SAMPLED, sample_interval_seconds=2.5))
    with caplog.at_level(logging.INFO, "forwardpass.trace"):
        lease(registry)
        lease(registry, endpoint=PREFILL)
    registry.close()

    assert [record.getMessage() for record in caplog.records] == [
        f"recording forward passes of dynamo.backend, producer 77, to {tmp_path}/fpm.*: "
        "the newest every 2.5 s, 4 segments of 268435456 bytes"
    ]


def test_closing_the_registry_closes_every_trace(tmp_path: Path) -> None:
    """TRACE-53: a shutdown writes what was accepted, whoever still holds a handle, and may be repeated."""
    registry = TraceRegistry(trace_settings(tmp_path))
    handles = [lease(registry, str(number)) for number in range(3)]
    for handle in handles:
        handle.offer(payload(1))
    registry.close()
    registry.close()

    assert [counter_ids(tmp_path, str(number)) for number in range(3)] == [[1]] * 3
    assert not any(handle.offer(payload(2)) for handle in handles)
    for handle in handles:
        handle.release()


def test_a_trace_that_is_being_closed_is_not_revived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRACE-51: while the registry closes on a slow disk, a lease given back beside others does not make
    the closing trace look open: whoever comes next gets one that accepts.
    """
    registry = TraceRegistry(trace_settings(tmp_path, fsync=Fsync.FLUSH))
    first, second = lease(registry), lease(registry)
    real_sync, reached, proceed = os.fsync, threading.Event(), threading.Event()

    def slow_sync(descriptor: int) -> None:
        reached.set()
        proceed.wait(LIMIT_SECONDS)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", slow_sync)
    first.offer(payload(1))
    closing = threading.Thread(target=registry.close)
    closing.start()
    assert reached.wait(LIMIT_SECONDS)
    first.release(0.0)
    monkeypatch.setattr(os, "fsync", real_sync)
    third = lease(registry)

    assert third.offer(payload(2))
    proceed.set()
    closing.join(LIMIT_SECONDS)
    second.release()
    third.release()
    assert counter_ids(tmp_path) == [1, 2]


def test_a_folder_that_hangs_holds_up_no_other_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOSS-13: while one producer's folder is being proven, others are leased, written, released and closed;
    whoever wants the same producer waits, and a close of the registry closes what is opened late.
    """
    registry = TraceRegistry(trace_settings(tmp_path))
    first = lease(registry)
    real_sync, reached, proceed = os.fsync, threading.Event(), threading.Event()

    def hanging_sync(descriptor: int) -> None:
        if threading.current_thread().name == "fpm-trace-78":
            reached.set()
            assert proceed.wait(LIMIT_SECONDS)
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", hanging_sync)
    late: list[TraceHandle] = []
    waiting = [threading.Thread(target=lambda: late.append(lease(registry, "78"))) for _ in range(2)]
    for thread in waiting:
        thread.start()
    assert reached.wait(LIMIT_SECONDS)
    first.offer(payload(1))
    second = lease(registry)
    other = lease(registry, "79")
    other.release()
    first.release()
    second.release()
    written = counter_ids(tmp_path)
    nobody_yet = list(late)
    closing = threading.Thread(target=registry.close, args=(LIMIT_SECONDS,))
    closing.start()
    proceed.set()
    for thread in [closing, *waiting]:
        thread.join(LIMIT_SECONDS)

    assert (written, nobody_yet) == ([1], [])
    assert len(late) == 2
    for handle in late:
        handle.release()
    assert not any(thread.is_alive() for thread in [closing, *waiting])


def test_an_opening_that_is_interrupted_decides_nothing(
    registry: TraceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-52: Ctrl-C while a trace is opened is no failure of its folder; the next one opens it."""

    def interrupted(self: TraceSink) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(TraceSink, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            registry.acquire("77", BACKEND)

    lease(registry).release()
