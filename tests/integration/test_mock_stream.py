"""The simulated engine over real sockets: what a subscriber sees of each fault.

One run of three seconds serves all tests: every rank has a fault of its own, rank 0 has none.
"""

from __future__ import annotations

import socket as sockets
import threading
import time
from contextlib import ExitStack
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import pytest
from raw_stream import LIMIT_SECONDS, Reader, reading

from forwardpass.config.settings import PublisherSettings
from forwardpass.engines.mock.build import build_cluster
from forwardpass.engines.mock.cluster import RankReport
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.faults import parse_fault
from forwardpass.engines.mock.load import realistic
from forwardpass.errors import ConfigError, PortUnavailable, WireError
from forwardpass.testing.ports import free_port
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.frames import Frames
from forwardpass.wire.schema import ForwardPassMetrics
from forwardpass.wire.validate import validate_payload

RANKS = 7
SECONDS = 3.0
SLOW, LOST, GARBAGE, RESTART, PAUSE, TWICE = 1, 2, 3, 4, 5, 6
HEARTBEAT_SECONDS = 0.1
LONG_STEP_SECONDS = 0.7


class Captured(NamedTuple):
    frames: list[list[Frames]]
    """By rank; the last list is that of the duplicate publisher."""
    reports: tuple[RankReport, ...]


def settings(base: int) -> PublisherSettings:
    return PublisherSettings(
        base_port=base, worker_id="41", heartbeat_interval_seconds=HEARTBEAT_SECONDS, strict=True
    )


class Subscriber(threading.Thread):
    """Reads several ports all the time: ZMQ subscribes anew after a reconnect only while somebody reads."""

    def __init__(self, ports: list[int]) -> None:
        super().__init__(daemon=True)
        self.frames: list[list[Frames]] = [[] for _ in ports]
        self._ports = ports
        self._stopping = threading.Event()

    def run(self) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        with ExitStack() as stack:
            readers = [stack.enter_context(reading(port)) for port in self._ports]
            while time.monotonic() < deadline:
                stopping = self._stopping.is_set()
                drained = [self._drain(rank, reader) for rank, reader in enumerate(readers)]
                if stopping and not any(drained):
                    return

    def _drain(self, rank: int, reader: Reader) -> bool:
        got = False
        while (one := reader.read(0.01)) is not None:
            self.frames[rank].append(one)
            got = True
        return got

    def wait_for(self, ranks: int) -> None:
        """Wait until each of the first ``ranks`` ports has spoken."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not all(self.frames[:ranks]):
            assert time.monotonic() < deadline, "the subscriptions did not arrive"
            time.sleep(0.01)

    def stop(self) -> None:
        """Read what is under way, and end."""
        self._stopping.set()
        self.join(LIMIT_SECONDS)


@pytest.fixture(scope="module")
def captured() -> Captured:
    base = free_port(RANKS + 3)
    second = base + RANKS + 2
    texts = [
        f"slow-rank={SLOW}:4@0s",
        f"long-step=0:{LONG_STEP_SECONDS}@1.2s",
        f"lost-frames={LOST}:5@1s",
        f"garbage={GARBAGE}:9@1s",
        f"restart={RESTART}:0.4@1.2s",
        f"pause={PAUSE}:0.6@1s",
        f"duplicate-publisher={TWICE}:{second}@0.5s",
    ]
    faults = tuple(parse_fault(text) for text in texts)
    load = realistic(12.0)
    cluster = build_cluster(MockConfig(), load, settings(base), ranks=RANKS, faults=faults)
    ports = [*range(base, base + RANKS), second]
    subscriber = Subscriber(ports)
    subscriber.start()
    try:
        subscriber.wait_for(RANKS)
        cluster.run(SECONDS)
    finally:
        cluster.close()
        subscriber.stop()
    return Captured(subscriber.frames, cluster.report())


def passes(frames: list[Frames]) -> list[ForwardPassMetrics]:
    decoded = [decode_strict(one.payload) for one in frames]
    return [metrics for metrics in decoded if metrics.wall_time > 0.0]


def jumps(frames: list[Frames]) -> list[int]:
    """Return by how much each sequence differs from what should follow the one before."""
    numbers = pairwise(one.seq for one in frames)
    return [after - before - 1 for before, after in numbers if after - before != 1]


@pytest.mark.parametrize("rank", [0, SLOW, PAUSE, TWICE])
def test_a_rank_speaks_for_itself_without_gaps(captured, rank):
    """Every message of an undisturbed stream is valid, numbered one after the other, and of its own rank."""
    frames = captured.frames[rank]
    rows = [validate_payload(one.payload) for one in frames]

    assert jumps(frames) == []
    assert {(row["worker_id"], row["dp_rank"]) for row in rows} == {("41", rank)}
    assert [row["counter_id"] for row in rows] == [one.seq for one in frames]


def test_everything_that_was_published_arrives(captured):
    """The reader's passes, the publisher's counts and the engine's own count are one number."""
    report = captured.reports[0]

    assert len(passes(captured.frames[0])) == report.published.delivered == report.passes > 50
    assert report.published.dropped == {}


def test_a_long_step_is_bridged_by_heartbeats(captured):
    """While one pass takes longer than the interval the stream speaks, and then says how long it took."""
    decoded = [decode_strict(one.payload) for one in captured.frames[0]]
    longest = max(range(len(decoded)), key=lambda index: decoded[index].wall_time)
    before = decoded[longest - 3 : longest]

    assert decoded[longest].wall_time >= LONG_STEP_SECONDS
    assert [metrics.wall_time for metrics in before] == [0.0, 0.0, 0.0]


def test_a_slow_rank_has_longer_passes(captured):
    """Four times as long shows in the wall times of that rank alone."""
    slow, normal = (
        median(metrics.wall_time for metrics in passes(captured.frames[rank])) for rank in (SLOW, PAUSE)
    )

    assert slow > 2 * normal


def test_lost_frames_leave_one_gap_of_their_number(captured):
    """ENG-22, WIRE-33: What is lost after numbering is missing in the sequence, and nothing else is."""
    assert jumps(captured.frames[LOST]) == [5]


def test_garbage_stands_in_the_sequence_and_is_refused(captured):
    """ENG-22: Nine payloads are no messages; the numbers go on around them."""
    refused = 0
    for one in captured.frames[GARBAGE]:
        try:
            validate_payload(one.payload)
        except WireError:
            refused += 1

    assert refused == 9
    assert jumps(captured.frames[GARBAGE]) == []


def test_a_restarted_rank_counts_from_zero_on_the_same_port(captured):
    """WIRE-34: The subscriber sees the sequence go back to the beginning, and passes after that."""
    frames = captured.frames[RESTART]
    numbers = [one.seq for one in frames]
    back = [index for index in range(1, len(numbers)) if numbers[index] < numbers[index - 1]]

    assert len(back) == 1
    assert passes(frames[back[0] :])


def test_a_pause_is_silence_without_a_gap(captured):
    """The paused rank refused passes, sent nothing, and went on with the next number."""
    report = captured.reports[PAUSE]

    assert report.published.dropped["paused"] > 5
    assert len(passes(captured.frames[PAUSE])) == report.passes - report.published.dropped["paused"]


def test_a_duplicate_publisher_repeats_the_rank_under_other_numbers(captured):
    """The second port carries the same worker and rank, counted from its own 0."""
    first, second = captured.frames[TWICE], captured.frames[-1]
    numbers = {metrics.wall_time: metrics.counter_id for metrics in passes(first)}
    repeated = passes(second)

    assert len(repeated) > 20
    assert jumps(second) == []
    assert {(metrics.worker_id, metrics.dp_rank) for metrics in repeated} == {("41", TWICE)}
    assert all(metrics.counter_id < numbers[metrics.wall_time] for metrics in repeated)


def test_a_taken_port_stops_the_cluster_and_frees_the_others():
    """Built strictly, a cluster that cannot bind one rank raises and leaves no rank behind."""
    base = free_port(3)
    with sockets.socket() as holder:
        holder.bind(("127.0.0.1", base + 1))
        holder.listen()
        with pytest.raises(PortUnavailable) as caught:
            build_cluster(MockConfig(), realistic(1.0), settings(base), ranks=2)
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", base))

    assert caught.value.port == base + 1


def test_a_fault_of_a_missing_rank_opens_nothing():
    """The mistake is found before any port is bound."""
    base = free_port(1)
    with pytest.raises(ConfigError):
        build_cluster(
            MockConfig(), realistic(1.0), settings(base), ranks=1, faults=(parse_fault("pause=1@1s"),)
        )
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", base))


def test_fast_time_loses_nothing_to_the_publisher():
    """As fast as possible still means as fast as messages can be sent: none is refused for a full queue."""
    base = free_port(1)
    cluster = build_cluster(MockConfig(), realistic(12.0), settings(base), ranks=1, fast=True)
    cluster.run(120.0)
    cluster.close()
    (report,) = cluster.report()

    assert report.passes > 5000
    assert report.published.delivered == report.passes
