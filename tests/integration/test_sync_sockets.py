"""Real sockets, with peers that are late, stale, foreign, doubled, or not what they say."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.group import Group, open_group
from forwardpass.bench.sync.rounds import Legs
from forwardpass.bench.sync.zmq_link import MAX_MESSAGE_BYTES, ZmqLink, connect_to_zero, listen_on_zero
from forwardpass.errors import (
    ConfigError,
    OutOfLockstep,
    PeerAborted,
    PortUnavailable,
    SyncError,
    SyncTimeout,
)
from forwardpass.testing.ports import free_port

LEGS = Legs(leg=20.0, grace=1.0, first=20.0, linger=1.0)
HASTY = Legs(leg=0.8, grace=0.2, first=0.8, linger=0.2)
DIGEST = "ab" * 32


def group(rank: int, size: int, port: int, legs: Legs = LEGS) -> Group:
    return open_group(rank, size, "127.0.0.1", port, legs=legs)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run each in a thread; return what it gave, or the :class:`SyncError` that it raised."""
    found: list[Any] = [None] * len(works)

    def run(place: int, work: Callable[[], Any]) -> None:
        try:
            found[place] = work()
        except SyncError as error:
            found[place] = error

    threads = [threading.Thread(target=run, args=one) for one in enumerate(works)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


@pytest.fixture
def port() -> int:
    """Return a free port."""
    return free_port()


@pytest.fixture
def stray(port: int) -> Iterator[Callable[[bytes | None], zmq.Socket[bytes]]]:
    """Return what connects one more socket to rank 0, under an identity or none."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    kept: list[zmq.Socket[bytes]] = []

    def connect(identity: bytes | None) -> zmq.Socket[bytes]:
        dealer = context.socket(zmq.DEALER)
        if identity is not None:
            dealer.setsockopt(zmq.ROUTING_ID, identity)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        kept.append(dealer)
        return dealer

    yield connect
    context.destroy(linger=0)


READY = {"benchmark_id": 1, "point_digest": DIGEST, "output_summary": None, "validation_error": None}


@pytest.mark.parametrize(
    ("identity", "payload", "rank", "actual"),
    [
        (b"1", {"type": "ready", "dp_rank": 1, **READY}, 1, "'ready' for point 1"),
        (b"1", {"type": "grid", "dp_rank": 2, **READY}, 1, "$.grid_digest|Object missing"),
        (b"1", {"type": "cleanup_ready", "benchmark_id": 0, "dp_rank": 2}, 1, "dp_rank 2"),
        (None, {"type": "cleanup_ready", "benchmark_id": 0, "dp_rank": 1}, -1, "b'\\x00"),
        (b"9", {"type": "cleanup_ready", "benchmark_id": 0, "dp_rank": 9}, -1, "b'9'"),
        (b"nobody", {}, -1, "b'nobody'"),
    ],
)
def test_a_stale_or_foreign_message_ends_the_run(
    stray: Any, port: int, identity: bytes | None, payload: dict[str, Any], rank: int, actual: str
) -> None:
    """SYNC-02, SYNC-04: A message of an earlier run, of another rank or of a stranger is an error for all,
    which names its sender and what was found.
    """

    def rank_0() -> None:
        with group(0, 3, port) as zero:
            stray(identity).send(json.dumps(payload).encode())
            zero.cleanup()

    with group(2, 3, port) as two:
        errors = together(rank_0, two.cleanup)

    assert isinstance(errors[0], OutOfLockstep)
    assert errors[0].rank == rank
    assert any(errors[0].actual.startswith(one) for one in actual.split("|"))
    assert isinstance(errors[1], PeerAborted)
    assert errors[1].rank == 0
    assert errors[0].actual.splitlines()[0][:20] in errors[1].reason


def test_two_ranks_of_one_name(port: int) -> None:
    """SYNC-02, SYNC-07: Where two believe to be the same rank, only the first is heard, and the rank that
    nobody is, is missing.
    """
    zero, one, again = (group(rank, 3, port, HASTY) for rank in (0, 1, 1))
    errors = together(zero.cleanup, one.cleanup, again.cleanup)
    for each in (zero, one, again):
        each.close()

    assert isinstance(errors[0], SyncTimeout | PeerAborted)
    assert errors[0].missing == (2,)
    assert all(isinstance(error, SyncError) for error in errors)


def test_rank_0_may_come_last(port: int) -> None:
    """SYNC-02: Ranks that connect before rank 0 listens are heard once it does."""
    with group(1, 3, port) as one, group(2, 3, port) as two:
        early = threading.Event()

        def first() -> None:
            early.set()
            one.cleanup()

        def last() -> None:
            early.wait(20)
            with group(0, 3, port) as zero:
                zero.cleanup()

        assert together(last, first, two.cleanup) == [None, None, None]


def test_an_abort_reaches_all(port: int) -> None:
    """SYNC-06: When rank 1 gives up between rounds, rank 0 hears it with its reason in the next, and tells
    rank 2.
    """
    with group(0, 3, port) as zero, group(1, 3, port) as one, group(2, 3, port) as two:
        together(zero.cleanup, one.cleanup, two.cleanup)

        one.abort("no blocks left")
        errors = together(lambda: zero.agree_grid(DIGEST, 1), lambda: two.agree_grid(DIGEST, 1))

    assert isinstance(errors[0], PeerAborted)
    assert (errors[0].rank, errors[0].reason) == (1, "no blocks left")
    assert isinstance(errors[1], PeerAborted)
    assert "rank 1 aborted: no blocks left" in errors[1].reason


def test_a_rank_that_comes_after_the_failure_is_told(port: int) -> None:
    """SYNC-06: Rank 0, which has failed before another has connected, waits for that one and tells it."""
    failed = threading.Event()

    def rank_0() -> None:
        with group(0, 2, port, Legs(linger=20.0)) as zero:
            zero.abort("no dataset")
            failed.set()

    def rank_1() -> None:
        failed.wait(20)
        with group(1, 2, port) as one:
            one.cleanup()

    error = together(rank_0, rank_1)[1]

    assert isinstance(error, PeerAborted)
    assert "no dataset" in error.reason


def test_what_was_sent_last_still_leaves(port: int) -> None:
    """SYNC-02, SYNC-06: Who gives up and closes at once has told the others."""
    with group(0, 2, port) as zero:
        with group(1, 2, port) as one:
            one.abort("over")

        with pytest.raises(PeerAborted, match="over"):
            zero.cleanup()


def test_a_message_without_end_is_not_taken(stray: Any, port: int) -> None:
    """SYNC-04: A peer that sends more than any message has is disconnected, and then missing."""
    with group(0, 2, port, HASTY) as zero:
        stray(b"1").send(b" " * (MAX_MESSAGE_BYTES + 1))

        with pytest.raises(SyncTimeout) as caught:
            zero.cleanup()

    assert caught.value.missing == (1,)


def test_a_taken_port_is_named(port: int) -> None:
    """SYNC-02: A port that another holds is an error with its number."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", port))
        holder.listen()

        with pytest.raises(PortUnavailable) as caught:
            group(0, 2, port)

    assert caught.value.port == port


@pytest.mark.parametrize(
    ("master", "bound"),
    [("127.0.0.1", "tcp://127.0.0.1:"), ("localhost", "tcp://127.0.0.1:"), ("192.0.2.1", "tcp://0.0.0.0:")],
)
def test_where_rank_0_listens(port: int, master: str, bound: str) -> None:
    """SYNC-02: Rank 0 binds the master's address where it is its own, and all addresses where it is not."""
    link = listen_on_zero(master, port)
    try:
        assert link._socket.get_string(zmq.LAST_ENDPOINT) == f"{bound}{port}"
    finally:
        link.close(0.0)
        link.close(0.0)
    assert not link.send(1, b"")


@pytest.mark.parametrize("master", ["", "a b", "1.2.3.4;tcp://5.6.7.8", "no-such-host.invalid", "host\n"])
def test_what_is_no_address(port: int, master: str) -> None:
    """SYNC-02: A master that is neither an address nor a known name is refused on every rank."""
    opened: list[Callable[[], ZmqLink]] = [
        lambda: listen_on_zero(master, port),
        lambda: connect_to_zero(master, port, 1),
    ]
    for one in opened:
        with pytest.raises(ConfigError) as caught:
            one()
        assert caught.value.variable == "data_parallel_master_ip"


def test_results_of_every_size_pass(port: int) -> None:
    """SYNC-03, SYNC-23: Results with evidence for thousands of requests go through as they are."""
    evidence = [{"wall_time": 0.5, "hashes": ["é" * 64] * 5000}]
    with group(0, 2, port) as zero, group(1, 2, port) as one:
        got = together(
            lambda: zero.exchange(1, DIGEST, evidence, lambda: False),
            lambda: one.exchange(1, DIGEST, evidence, lambda: False),
        )

    assert got[0] == got[1]
    assert got[0].rank_results == tuple(m.RankResult(rank, tuple(evidence)) for rank in (0, 1))
