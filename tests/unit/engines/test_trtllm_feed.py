"""Rows of one worker on their way to a publisher, and where they come from."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from trtllm_rows import row

from forwardpass.engines.trtllm.endpoint import parse_endpoint
from forwardpass.engines.trtllm.feed import FeedCounts, StatsFeed
from forwardpass.engines.trtllm.poller import fetch_in_process, poll
from forwardpass.errors import ConfigError


class Taker:
    """Takes passes like a publisher with two ranks."""

    def __init__(self, room: int = 1000) -> None:
        self.passes: list[dict[str, Any]] = []
        self.room = room

    def publish(self, **values: Any) -> bool:
        """Keep one pass, if there is room."""
        if values["dp_rank"] > 1:
            raise RuntimeError(f"dp_rank={values['dp_rank']}: expected 0 to 1")
        if len(self.passes) >= self.room:
            return False
        self.passes.append(values)
        return True


def test_rows_are_published_in_order_with_every_number() -> None:
    """TRT-01: Maps and their JSON, as text or bytes, are the same rows; nothing is published by position."""
    taker = Taker()
    feed = StatsFeed(taker.publish)
    feed.take([row(numGenRequests=3), json.dumps(row(rank=1)), json.dumps(row(numGenRequests=5)).encode()])

    assert [(one["dp_rank"], one["scheduled_num_decode_requests"]) for one in taker.passes] == [
        (0, 3), (1, 3), (0, 5),
    ]  # fmt: skip
    assert taker.passes[0] == {
        "dp_rank": 0,
        "scheduled_num_prefill_requests": 2,
        "scheduled_sum_prefill_tokens": 384,
        "scheduled_sum_prefill_kv_tokens": 128,
        "scheduled_num_decode_requests": 3,
        "scheduled_sum_decode_kv_tokens": 9000,
        "queued_num_prefill_requests": 4,
        "queued_sum_prefill_tokens": 2048,
        "queued_num_decode_requests": 7,
        "queued_sum_decode_kv_tokens": 750,
        "wall_time_secs": 0.0125,
    }
    assert feed.supported is True


@pytest.mark.parametrize(
    "old", [row(numCtxKvTokens=None), {"iter": 1}, [], json.dumps({"iterLatencyMS": 1.0})], ids=str
)
def test_a_build_that_lacks_a_key_is_never_published(old: object, caplog: pytest.LogCaptureFixture) -> None:
    """TRT-02, TRAP-09: The first row decides, one warning names what is missing, and a later row that has
    everything changes nothing.
    """
    taker = Taker()
    feed = StatsFeed(taker.publish)
    with caplog.at_level(logging.WARNING):
        feed.take([old, old, row()])
        feed.take([row()])

    assert taker.passes == []
    assert feed.supported is False
    assert feed.counts() == FeedCounts(rows=4, published=0, refused=0, bad=0, unsupported=4)
    (record,) = caplog.records
    assert "no forward passes are published" in record.getMessage()


def test_a_bad_row_costs_only_itself(caplog: pytest.LogCaptureFixture) -> None:
    """TRT-03: Rows that are wrong, of a rank too many, or no JSON are left out, warned about and counted."""
    taker = Taker(room=2)
    feed = StatsFeed(taker.publish)
    with caplog.at_level(logging.WARNING):
        feed.take([row(), row(numGenRequests=-1), row(rank=2), "{", b"\xff", row(), row()])

    assert len(taker.passes) == 2
    assert feed.counts() == FeedCounts(rows=7, published=2, refused=1, bad=4, unsupported=0)
    assert len(caplog.records) == 1


def test_an_object_of_the_blocking_api_is_polled() -> None:
    """TRT-04: ``get_stats(timeout)`` gives a list; a call that fails is told, and the next one is made."""

    class Engine:
        def __init__(self) -> None:
            self.answers: list[Any] = [[row()], OSError("gone"), [row(), row()]]
            self.stop = asyncio.Event()

        def get_stats(self, timeout: float) -> list[object]:
            answer = self.answers.pop(0)
            if not self.answers:
                loop.call_soon_threadsafe(self.stop.set)
            if isinstance(answer, Exception):
                raise answer
            assert timeout > 0
            return answer

    async def run() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        engine.answers.append([])  # the last poll, after the stop
        await poll(
            fetch_in_process(engine), feed, engine.stop, interval_seconds=0.001, answered=answered.append
        )

    loop: Any = None
    engine, taker, answered = Engine(), Taker(), []
    feed = StatsFeed(taker.publish)
    asyncio.run(run())
    assert len(taker.passes) == 3
    assert answered[:3] == [True, False, True]


def test_an_object_of_the_asynchronous_api_is_polled_to_the_end() -> None:
    """TRT-04: ``get_stats_async`` is preferred; its rows before a timeout are taken, and an engine whose
    build is of no use ends the polling.
    """

    class Engine:
        def get_stats(self, timeout: float) -> list[object]:
            raise AssertionError("the asynchronous one is there")

        async def get_stats_async(self, timeout: float) -> AsyncIterator[object]:
            yield row(numCtxKvTokens=None)
            raise TimeoutError

    feed = StatsFeed(Taker().publish)
    asyncio.run(poll(fetch_in_process(Engine()), feed, asyncio.Event()))

    assert feed.supported is False


def test_an_object_without_statistics_is_an_error_of_the_caller() -> None:
    """TRT-04: Something else than an engine is refused at once."""
    with pytest.raises(TypeError, match="get_stats"):
        fetch_in_process(object())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/metrics"),
        ("http://host", "http://host:80/metrics"),
        ("https://host/", "https://host:443/metrics"),
        ("http://[::1]:8000/metrics", "http://[::1]:8000/metrics"),
        ("http://host:1/worker/0/metrics?x=1", "http://host:1/worker/0/metrics?x=1"),
    ],
)
def test_the_address_of_a_server(url: str, expected: str) -> None:
    """TRT-05: The path is /metrics unless another one is given."""
    assert parse_endpoint(url).url == expected


@pytest.mark.parametrize(
    "url",
    ["", "host:8000", "ftp://host", "http://", "http://host:0", "http://host:70000", "http://user:pw@host",
     "http://host:8000\r\nX: y", "http://ho st", "http://host/a b", "http://host:8000/\n"],
)  # fmt: skip
def test_what_is_no_address_is_refused(url: str) -> None:
    """TRT-05: Other schemes, credentials, and anything that could end up in a header are no address."""
    with pytest.raises(ConfigError) as caught:
        parse_endpoint(url)

    assert caught.value.variable == "--metrics-url"
