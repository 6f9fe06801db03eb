"""Passes published from inside a program: numbers, heartbeats, trace, plane, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from relay_peers import ENDPOINT, LIMIT_SECONDS, subscribe, take_all, tracing, until
from trace_files import rows

from forwardpass.config.settings import HeartbeatMode, PublisherSettings
from forwardpass.errors import ConfigError
from forwardpass.relay.direct import FpmDirectPublisher
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import decode_strict

PASS: dict[str, Any] = {
    "dp_rank": 0,
    "scheduled_num_prefill_requests": 1,
    "scheduled_sum_prefill_tokens": 300,
    "scheduled_sum_prefill_kv_tokens": 64,
    "scheduled_num_decode_requests": 3,
    "scheduled_sum_decode_kv_tokens": 900,
    "queued_num_prefill_requests": 2,
    "queued_sum_prefill_tokens": 70_000,
    "queued_num_decode_requests": 4,
    "queued_sum_decode_kv_tokens": 50,
    "wall_time_secs": 0.0125,
}
SILENT = PublisherSettings(heartbeat_interval_seconds=300.0)


def test_each_rank_counts_from_1_and_all_share_a_publisher(tmp_path: Path) -> None:
    """TRT-06, TRAP-10, TRAP-25: Trace and plane get every pass of both ranks in the order of publication,
    whole, with its own number.
    """

    async def run() -> list[bytes]:
        url, subscriber = await subscribe()
        with tracing(tmp_path) as trace:
            publisher = FpmDirectPublisher(ENDPOINT, "4192", 2, trace=trace, plane_url=url, settings=SILENT)
            await publisher.start()
            for rank in (0, 1, 1, 0, 1):
                assert publisher.publish(**{**PASS, "dp_rank": rank})
            publisher.publish(
                **PASS,
                scheduled_var_prefill_length=1.5,
                scheduled_var_decode_kv_tokens=2,
                queued_var_prefill_length=3.5,
                queued_var_decode_kv_tokens=4.5,
            )
            await publisher.stop(LIMIT_SECONDS)
            assert publisher.counts().delivered == 6
            assert not publisher.publish(**PASS)  # counted as closed
            assert publisher.counts().dropped == {"closed": 1}
        return await take_all(subscriber)

    published = asyncio.run(run())
    written = [line["event"]["fpm"] for line in rows(tmp_path)]
    assert [(one["dp_rank"], one["counter_id"]) for one in written] == [
        (0, 1), (1, 1), (1, 2), (0, 2), (1, 3), (0, 3),
    ]  # fmt: skip
    assert [msgspec.msgpack.decode(payload) for payload in published] == written
    first, last = decode_strict(published[0]), decode_strict(published[-1])
    assert first.worker_id == "4192"
    assert first.scheduled_requests.var_prefill_length == 0.0
    assert last.scheduled_requests.var_decode_kv_tokens == 2.0
    assert last.queued_requests.var_decode_kv_tokens == 4.5


@pytest.mark.parametrize(("mode", "queued"), [(HeartbeatMode.WHEN_IDLE, 2), (HeartbeatMode.ALWAYS_ZERO, 0)])
def test_a_quiet_rank_has_heartbeats_of_its_own(mode: HeartbeatMode, queued: int, tmp_path: Path) -> None:
    """TRT-06, D-3: After an interval each rank speaks, numbered like its passes, with the queue of its last
    pass or, in parity, zeros; not while the engine is not known to be there.
    """
    settings = PublisherSettings(heartbeat=mode, heartbeat_interval_seconds=0.05)

    async def run() -> int:
        with tracing(tmp_path) as trace:
            publisher = FpmDirectPublisher(ENDPOINT, "w", 2, trace=trace, settings=settings)
            publisher.set_alive(False)
            await publisher.start()
            publisher.publish(**PASS)
            await until(lambda: publisher.counts().delivered == 1)
            before = publisher.heartbeats
            publisher.set_alive(True)
            await until(lambda: publisher.heartbeats >= 4)
            await publisher.stop(LIMIT_SECONDS)
            return before

    assert asyncio.run(run()) == 0
    written = [line["event"]["fpm"] for line in rows(tmp_path)]
    beats = [one for one in written if one["wall_time"] == 0.0]
    first = [one for one in beats if one["dp_rank"] == 0]
    other = [one for one in beats if one["dp_rank"] == 1]
    assert [one["counter_id"] for one in first] == list(range(2, 2 + len(first)))
    assert [one["counter_id"] for one in other] == list(range(1, 1 + len(other)))
    assert {one["queued_requests"]["num_prefill_requests"] for one in first} == {queued}
    assert {one["queued_requests"]["num_prefill_requests"] for one in other} == {0}
    assert all(one["scheduled_requests"]["num_decode_requests"] == 0 for one in beats)


@pytest.mark.parametrize("rank", [-1, 2, True, "0", None])
def test_a_rank_that_is_none_of_its_ranks_raises(rank: object) -> None:
    """TRT-07: As in the reference, a bad rank is the caller's error at once, and nothing is published."""
    publisher = FpmDirectPublisher(ENDPOINT, "w", 2)
    with pytest.raises(RuntimeError, match="dp_rank"):
        publisher.publish(**{**PASS, "dp_rank": rank})

    assert publisher.counts().offered == 0


@pytest.mark.parametrize("value", [-1, 1.5, True, "1", None])
def test_a_number_that_no_reader_would_accept_raises(value: object) -> None:
    """TRT-07: Counts and sums are integers of at least 0, and the error names which one is not."""
    publisher = FpmDirectPublisher(ENDPOINT, "w")
    for name in PASS:
        if name not in ("dp_rank", "wall_time_secs"):
            with pytest.raises(ValueError, match=name):
                publisher.publish(**{**PASS, name: value})


@pytest.mark.parametrize("value", [-0.5, float("nan"), float("inf"), True, "1", None])
@pytest.mark.parametrize("name", ["wall_time_secs", "queued_var_prefill_length"])
def test_a_time_or_variance_is_a_finite_number(name: str, value: object) -> None:
    """TRT-07: So are times and variances that are none."""
    with pytest.raises(ValueError, match=name):
        FpmDirectPublisher(ENDPOINT, "w").publish(**{**PASS, name: value})


def test_a_full_queue_drops_the_newest_and_counts_it() -> None:
    """TRT-06, D-10: Nothing waits for room; what was not accepted is counted by reason."""
    settings = PublisherSettings(heartbeat_interval_seconds=300.0, queue_capacity=3)
    publisher = FpmDirectPublisher(ENDPOINT, "w", settings=settings, clock=ManualClock())

    async def run() -> list[bool]:
        await publisher.start()
        results = [publisher.publish(**PASS) for _ in range(2000)]
        await publisher.stop(LIMIT_SECONDS)
        return results

    results = asyncio.run(run())
    counts = publisher.counts()
    assert results.count(True) == counts.delivered >= 3
    assert counts.dropped == {"queue_full": results.count(False)}


def test_it_is_published_from_any_thread(tmp_path: Path) -> None:
    """TRT-06: Threads that publish at once lose nothing and share a rank's numbers."""

    async def run() -> None:
        with tracing(tmp_path) as trace:
            publisher = FpmDirectPublisher(ENDPOINT, "w", trace=trace, settings=SILENT)
            await publisher.start()

            def publish() -> None:
                for _ in range(200):
                    publisher.publish(**PASS)

            threads = [threading.Thread(target=publish) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_SECONDS)
            publisher.set_worker_id("late")
            publisher.publish(**PASS)
            await publisher.stop(LIMIT_SECONDS)

    asyncio.run(run())
    written = [line["event"]["fpm"] for line in rows(tmp_path)]
    assert [one["counter_id"] for one in written] == list(range(1, 802))
    assert written[-1]["worker_id"] == "late"


def test_a_plane_that_nobody_provides_is_an_error_at_the_start() -> None:
    """TRT-06: Nothing is left open then, and an impossible number of ranks is the caller's error."""
    publisher = FpmDirectPublisher(ENDPOINT, "w", plane_url="no-such-plane:x")
    with pytest.raises(ConfigError):
        asyncio.run(publisher.start())
    with pytest.raises(ValueError, match="dp_size"):
        FpmDirectPublisher(ENDPOINT, "w", 0)
