"""The receiving socket, against plain PUB sockets."""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from relay_peers import LIMIT_SECONDS, PlainPublisher, free_url, publishing_at

from forwardpass.errors import ConfigError
from forwardpass.relay.zmq_source import MAX_FRAME_BYTES, Batch, ZmqSource
from forwardpass.wire.frames import Frames


@pytest.fixture
def pair() -> Iterator[tuple[PlainPublisher, ZmqSource]]:
    """Return a publisher and a source that are connected, with nothing under way."""
    url = free_url()
    source = ZmqSource(url)
    with publishing_at(url) as publisher:
        connect(publisher, source)
        with contextlib.closing(source):
            yield publisher, source


def connect(publisher: PlainPublisher, source: ZmqSource) -> None:
    """Publish until something arrives, then read it all."""
    end = time.monotonic() + LIMIT_SECONDS
    while not len(source.receive_many(100)):
        assert time.monotonic() < end, "the subscription did not arrive"
        publisher.send(b"hello")
        time.sleep(0.02)
    publisher.send(b"in sync")
    receive_until(source, lambda batches: b"in sync" in payloads(batches))


def receive_until(source: ZmqSource, done: Callable[[list[Batch]], bool]) -> list[Batch]:
    """Receive until ``done``, or fail."""
    end = time.monotonic() + LIMIT_SECONDS
    batches: list[Batch] = []
    while not done(batches):
        assert time.monotonic() < end, f"only {payloads(batches)} arrived"
        batches.append(source.receive_many(1000))
        time.sleep(0.001)
    return batches


def payloads(batches: list[Batch]) -> list[bytes]:
    return [payload for batch in batches for payload in batch.payloads]


def received_after(publisher: PlainPublisher, source: ZmqSource) -> tuple[list[bytes], list[int]]:
    """Return good payloads and the frame counts of bad messages up to an end mark."""
    publisher.send(b"end")
    batches = receive_until(source, lambda batches: b"end" in payloads(batches))
    return payloads(batches)[:-1], [error.count for batch in batches for error in batch.bad]


def test_messages_in_order(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """Messages arrive in order with their sequences, whatever their payload is."""
    publisher, source = pair
    first = publisher.seq
    for payload in (b"a", b"", b"\x00" * 1000):
        publisher.send(payload)
    frames = [one for batch in receive_until(source, lambda got: len(payloads(got)) == 3) for one in batch]

    assert frames == [
        Frames(b"", first, b"a"),
        Frames(b"", first + 1, b""),
        Frames(b"", first + 2, b"\x00" * 1000),
    ]


def test_nothing_there(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """Without messages the call returns at once with an empty batch."""
    _, source = pair
    began = time.monotonic()
    batch = source.receive_many(10)

    assert (len(batch), batch.payloads, batch.sequences(), list(batch)) == (0, [], (), [])
    assert time.monotonic() - began < 0.5


def test_limit(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """A call takes at most as many messages as it may; the rest comes with the next."""
    publisher, source = pair
    for number in range(10):
        publisher.send(str(number).encode())
    time.sleep(0.3)

    assert source.receive_many(4).payloads == [b"0", b"1", b"2", b"3"]
    assert len(source.receive_many(0)) == 0
    assert source.receive_many(4).payloads == [b"4", b"5", b"6", b"7"]


SEQ = b"\x00" * 8
BAD = {
    "one frame": ((b"noise",), [1]),
    "one empty frame": ((b"",), [1]),
    "two frames": ((b"topic", b"payload"), [2]),
    "two frames that begin well": ((b"", SEQ), [2]),
    "two empty frames": ((b"", b""), [2]),
    "four frames": ((b"", SEQ, b"payload", b"more"), [4]),
    "nine frames": ((b"x",) * 9, [9]),
    "short sequence": ((b"", b"1234", b"payload"), [3]),
    "empty sequence": ((b"", b"", b"payload"), [3]),
    "long sequence": ((b"", b"123456789", b"payload"), [3]),
}


@pytest.mark.parametrize(("frames", "counts"), list(BAD.values()), ids=list(BAD))
def test_bad_frames_between_good_messages(
    pair: tuple[PlainPublisher, ZmqSource], frames: tuple[bytes, ...], counts: list[int]
) -> None:
    """RELAY-02: A message with the wrong frames is skipped and counted; the ones around it arrive."""
    publisher, source = pair
    publisher.send(b"before")
    publisher.send_frames(*frames)
    publisher.send(b"after")
    good, bad = received_after(publisher, source)

    assert good == [b"before", b"after"]
    assert len(bad) == 1
    assert bad == counts


@pytest.mark.parametrize(("frames", "counts"), list(BAD.values()), ids=list(BAD))
def test_a_bad_message_that_comes_alone(
    pair: tuple[PlainPublisher, ZmqSource], frames: tuple[bytes, ...], counts: list[int]
) -> None:
    """A bad message with nothing behind it is complete by itself: it is counted, and nothing waits."""
    publisher, source = pair
    publisher.send_frames(*frames)
    batches = receive_until(source, lambda got: any(batch.bad for batch in got))
    time.sleep(0.1)

    assert [error.count for batch in batches for error in batch.bad] == counts
    assert len(source.receive_many(10)) == 0


def test_a_topic_is_no_fault(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """Three frames with a topic are a message: the subscription is to everything."""
    publisher, source = pair
    publisher.send_frames(b"topic", SEQ, b"payload")

    assert received_after(publisher, source) == ([b"payload"], [])


def test_any_mixture_of_good_and_bad(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """RELAY-02: Whatever comes between, every good message arrives, in order, and bad ones are counted."""
    publisher, source = pair
    randomness = random.Random(11)
    sent: list[bytes] = []
    bad = 0
    shapes = [frames for frames, _ in BAD.values()]
    for number in range(3000):
        if randomness.random() < 0.4:
            publisher.send_frames(*randomness.choice(shapes))
            bad += 1
        else:
            sent.append(f"good {number}".encode())
            publisher.send(sent[-1])
    good, counted = received_after(publisher, source)
    kept = [payload for payload in good if payload.startswith(b"good")]

    assert kept == sent
    # Neighbours that look like one message together are counted as one; then they are all that is extra.
    assert 0.8 * bad <= len(counted) <= bad
    assert len(good) - len(kept) <= 0.02 * bad


def test_oversize_frame_drops_the_connection(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """A frame beyond the stated limit never enters memory, and the socket says that it needs a new one."""
    publisher, source = pair
    publisher.send(b"x" * MAX_FRAME_BYTES)
    good, _ = received_after(publisher, source)
    assert [len(payload) for payload in good] == [MAX_FRAME_BYTES]
    publisher.send(b"before")
    publisher.send(b"x" * (MAX_FRAME_BYTES + 1))
    broken, got = until_broken(source)
    assert isinstance(broken, OSError)
    assert got == [b"before"]
    source.reopen()
    connect(publisher, source)
    publisher.send(b"after")

    assert received_after(publisher, source) == ([b"after"], [])


def until_broken(source: ZmqSource) -> tuple[OSError | None, list[bytes]]:
    """Receive and look until the socket fails; return the error and what came before it."""
    got: list[bytes] = []
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end:
        source.look()
        try:
            got += source.receive_many(10).payloads
        except OSError as error:
            return error, got
        time.sleep(0.05)
    return None, got


def test_connection_state() -> None:
    """The source knows whether a publisher is there, and counts connections."""
    url = free_url()
    source = ZmqSource(url)
    source.look()
    assert (source.connected, source.connects) == (False, 0)
    states = []
    for _ in range(2):
        publisher = PlainPublisher(url)
        connect(publisher, source)
        source.look()
        states.append((source.connected, source.connects))
        publisher.close()
        end = time.monotonic() + LIMIT_SECONDS
        while source.connected and time.monotonic() < end:
            source.look()
            time.sleep(0.01)
        states.append((source.connected, source.connects))
    source.close()

    assert states == [(True, 1), (False, 1), (True, 2), (False, 2)]


def test_ipc(tmp_path: Path) -> None:
    """IPC endpoints work the same, also when the publisher comes later."""
    url = f"ipc://{tmp_path}/fpm.0"
    source = ZmqSource(url)
    assert len(source.receive_many(1)) == 0
    with publishing_at(url) as publisher:
        connect(publisher, source)
        publisher.send(b"over ipc")
        assert received_after(publisher, source) == ([b"over ipc"], [])
    source.close()


def test_reopen_and_close(pair: tuple[PlainPublisher, ZmqSource]) -> None:
    """A new socket receives again; a closed one raises OSError; closing twice is fine."""
    publisher, source = pair
    source.reopen()
    connect(publisher, source)
    publisher.send(b"again")
    assert received_after(publisher, source) == ([b"again"], [])
    source.close()
    source.close()

    with pytest.raises(OSError):
        source.receive_many(1)


@pytest.mark.parametrize("url", ["tcp://*:1", "inproc://x", "tcp://127.0.0.1:99999", "nonsense"])
def test_wrong_urls(url: str) -> None:
    """A URL that can never work is the operator's error, at once."""
    with pytest.raises(ConfigError):
        ZmqSource(url)


def test_a_stalled_reader_loses_nothing_within_the_high_water_mark() -> None:
    """A reader that stalls finds 50,000 messages in its queue; ten times libzmq's default and more."""
    url = free_url()
    source = ZmqSource(url)
    with publishing_at(url) as publisher:
        connect(publisher, source)
        for number in range(50_000):
            publisher.send(number.to_bytes(4, "big"))
        batches = receive_until(source, lambda got: len(payloads(got)) >= 50_000)
    source.close()

    assert payloads(batches) == [number.to_bytes(4, "big") for number in range(50_000)]


def test_two_processes() -> None:
    """A publisher in another process is read to its last message, after which it is gone."""
    url = free_url()
    script = (
        "import sys, time, zmq; s = zmq.Context().socket(zmq.PUB); s.bind(sys.argv[1]); "
        "sys.stdin.readline(); "
        "[s.send_multipart([b'', i.to_bytes(8, 'big'), b'%d' % i]) for i in range(500)]; s.close(5000)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, url], stdin=subprocess.PIPE, text=True)
    source = ZmqSource(url)
    end = time.monotonic() + LIMIT_SECONDS
    while not source.connected and time.monotonic() < end:
        source.look()
        time.sleep(0.01)
    time.sleep(0.2)  # the subscription follows the handshake
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.close()
    batches = receive_until(source, lambda got: len(payloads(got)) >= 500)
    source.close()

    assert process.wait(LIMIT_SECONDS) == 0
    assert [seq for batch in batches for seq in batch.sequences()] == list(range(500))


@pytest.mark.parametrize(
    "greeting",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, bytes(64)],
    ids=["silent", "http", "ones", "zeros"],
)
def test_a_stranger_on_the_port(greeting: bytes) -> None:
    """A port that speaks no ZMQ gives no payload; when the engine takes the port over, it is joined."""
    url = free_url()
    host, port = url.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as stack:
        with contextlib.closing(socket.create_server((host, int(port)))) as listener:
            source = stack.enter_context(contextlib.closing(ZmqSource(url)))
            listener.settimeout(LIMIT_SECONDS)
            peer, _ = listener.accept()
            with peer, contextlib.suppress(ConnectionError):
                peer.sendall(greeting)
                peer.settimeout(LIMIT_SECONDS)
                peer.recv(1)
        publisher = stack.enter_context(publishing_at(url))
        end = time.monotonic() + LIMIT_SECONDS
        batch = Batch()
        while not batch.payloads and time.monotonic() < end:
            publisher.send(b"real")
            source.look()
            try:
                batch = source.receive_many(1)
            except OSError:
                source.reopen()
            time.sleep(0.02)

        assert batch.payloads == [b"real"]


def test_sources_share_a_context_and_close_apart() -> None:
    """Closing one source leaves the others working."""
    url = free_url()
    first, second = ZmqSource(url), ZmqSource(url)
    with publishing_at(url) as publisher:
        connect(publisher, first)
        connect(publisher, second)
        first.close()
        publisher.send(b"still")
        assert received_after(publisher, second) == ([b"still"], [])
    second.close()
    assert not zmq.Context.instance().closed


def test_shapes_cover_every_number_of_frames() -> None:
    """The table of bad messages has one for each wrong number of frames up to four."""
    numbers = {len(frames) for frames, _ in BAD.values()}

    assert numbers >= set(itertools.chain([1, 2, 3, 4]))
