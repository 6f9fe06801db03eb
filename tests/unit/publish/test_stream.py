"""A stream's numbers, identity and heartbeats, with a fake socket and a clock the test moves."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import pytest

from forwardpass.config.settings import HeartbeatMode, PublisherSettings
from forwardpass.counters import Counters, DropReason
from forwardpass.publish.stream import StreamTask
from forwardpass.testing.clock import ManualClock
from forwardpass.wire.codec import decode_strict
from forwardpass.wire.schema import ForwardPassMetrics, QueuedRequestMetrics, ScheduledRequestMetrics

QUEUE = QueuedRequestMetrics(num_prefill_requests=3, sum_prefill_tokens=90)


@dataclass
class FakeSocket:
    """Keeps what is sent, and drops when told why."""

    sent: list[tuple[int, ForwardPassMetrics]] = field(default_factory=list)
    drop: DropReason | None = None
    lingers: list[float] = field(default_factory=list)
    forgotten: bool = False

    def open(self) -> int:
        return 20380

    def send(self, seq: int, payload: bytes) -> DropReason | None:
        if self.drop is None:
            self.sent.append((seq, decode_strict(payload)))
        return self.drop

    def close(self, linger_seconds: float) -> None:
        self.lingers.append(linger_seconds)

    def forget(self) -> None:
        self.forgotten = True

    @property
    def sequence(self) -> list[int]:
        return [seq for seq, _ in self.sent]


@dataclass
class Stream:
    """A task that is open, and what it stands on."""

    task: StreamTask
    socket: FakeSocket
    counters: Counters
    clock: ManualClock

    def tick(self, seconds: float = 0.0, queued: int = 0) -> float:
        """Let time pass and tick."""
        self.clock.advance(seconds)
        return self.task.tick(self.clock.monotonic(), queued)


def stream(**settings: object) -> Stream:
    """Return an open stream of rank 2 with worker id 77."""
    chosen = PublisherSettings(**{"worker_id": "77", **settings})  # type: ignore[arg-type]
    socket, counters, clock = FakeSocket(), Counters(), ManualClock()
    task = StreamTask(socket, chosen, dp_rank=2, counters=counters, clock=clock)
    task.open()
    return Stream(task, socket, counters, clock)


def passes(count: int) -> list[ForwardPassMetrics]:
    """Return forward passes that differ."""
    return [
        ForwardPassMetrics(
            wall_time=0.01 * (number + 1),
            scheduled_requests=ScheduledRequestMetrics(num_decode_requests=number + 1),
        )
        for number in range(count)
    ]


# --- sequence ----------------------------------------------------------------------------------------


def test_the_sequence_begins_at_zero_and_is_also_the_counter_id() -> None:
    """WIRE-08, WIRE-32: Every message takes the next value, in frame 2 and in counter_id alike."""
    it = stream()
    it.task.take(passes(3))

    assert it.socket.sequence == [0, 1, 2]
    assert [message.counter_id for _, message in it.socket.sent] == [0, 1, 2]
    assert it.counters.delivered == 3


def test_heartbeats_and_passes_share_one_sequence() -> None:
    """WIRE-32: A heartbeat takes the next value as a pass does."""
    it = stream()
    it.task.take(passes(1))
    it.tick(1.0)
    it.task.take(passes(1))

    assert it.socket.sequence == [0, 1, 2]
    assert [message.wall_time for _, message in it.socket.sent] == [0.01, 0.0, 0.01]


@pytest.mark.parametrize("reason", [DropReason.SOCKET_FULL, DropReason.SEND_ERROR])
def test_a_dropped_send_uses_up_its_number(reason: DropReason) -> None:
    """WIRE-32, WIRE-33: What is lost at the socket leaves a gap that subscribers see, and is counted by its
    reason.
    """
    it = stream()
    it.task.take(passes(1))
    it.socket.drop = reason
    it.task.take(passes(2))
    it.socket.drop = None
    it.task.take(passes(1))

    assert it.socket.sequence == [0, 3]
    assert it.counters.snapshot().dropped == {reason.value: 2}
    assert it.counters.delivered == 2


@pytest.mark.parametrize(
    "unencodable",
    [
        ForwardPassMetrics(version=2**70),
        ForwardPassMetrics(wall_time=object()),  # type: ignore[arg-type]
        "not a message",
        None,
    ],
    ids=["integer too large", "foreign object", "text", "none"],
)
def test_what_cannot_be_encoded_is_counted_and_costs_nothing_else(unencodable: object) -> None:
    """WIRE-41: An encode_error uses up its number too; the messages around it go out."""
    it = stream()
    first, last = passes(2)
    it.task.take([first, unencodable, last])  # type: ignore[list-item]

    assert it.socket.sequence == [0, 2]
    assert it.counters.snapshot().dropped == {"encode_error": 1}


def test_a_worker_id_that_is_no_text_is_an_encode_error() -> None:
    """An id with undecodable bytes of the environment loses messages, not the thread."""
    it = stream(worker_id="\udcff")
    it.task.take(passes(1))

    assert it.counters.snapshot().dropped == {"encode_error": 1}


# --- identity ----------------------------------------------------------------------------------------


def test_the_publishers_identity_is_stamped() -> None:
    """WIRE-07: worker_id and dp_rank are the publisher's, in passes and heartbeats."""
    it = stream()
    it.task.take([ForwardPassMetrics(worker_id="engine's", dp_rank=9, wall_time=0.5)])
    it.tick(1.0)

    assert [(message.worker_id, message.dp_rank) for _, message in it.socket.sent] == [("77", 2)] * 2


def test_everything_else_is_passed_on_unchanged() -> None:
    """Apart from the identity and the counter, the message is the engine's."""
    it = stream()
    original = ForwardPassMetrics(
        wall_time=0.25,
        scheduled_requests=ScheduledRequestMetrics(1, 2, 3.0, 4, 5, 6, 7.0),
        queued_requests=QueuedRequestMetrics(1, 2, 3.0, 4, 5, 6.0),
    )
    it.task.take([original])
    sent = it.socket.sent[0][1]

    assert (sent.version, sent.wall_time) == (1, 0.25)
    assert sent.scheduled_requests == original.scheduled_requests
    assert sent.queued_requests == original.queued_requests


def test_a_new_worker_id_counts_from_the_next_message() -> None:
    """WIRE-46, D-15: the id may come after the engine has started; the sequence goes on."""
    it = stream(worker_id="")
    it.task.take(passes(1))
    it.task.worker_id = "88"
    it.task.take(passes(1))

    assert [(seq, message.worker_id) for seq, message in it.socket.sent] == [(0, ""), (1, "88")]


def test_without_an_id_of_its_own_the_messages_keep_theirs() -> None:
    """A publisher with an empty id leaves the engine's in place."""
    it = stream(worker_id="")
    it.task.take([ForwardPassMetrics(worker_id="engine's", wall_time=0.5)])

    assert it.socket.sent[0][1].worker_id == "engine's"


def test_an_empty_id_is_warned_about_once(caplog: pytest.LogCaptureFixture) -> None:
    """WIRE-06, D-15: one warning when passes go out without an id, none for heartbeats before that."""
    it = stream(worker_id="")
    it.tick(1.0)
    before = len(caplog.records)
    it.task.take(passes(2))
    it.task.take(passes(2))

    assert before == 0
    assert [record.getMessage().count("DYN_FPM_WORKER_ID") for record in caplog.records] == [1]


# --- heartbeats --------------------------------------------------------------------------------------


def test_a_quiet_stream_sends_the_real_queue_once_per_interval() -> None:
    """WIRE-09, WIRE-42: D-3 when-idle: zero scheduled, wall_time 0.0, the last snapshot; again after each
    interval.
    """
    it = stream()
    it.task.queued = QUEUE
    delays = [it.tick(0.5) for _ in range(8)]
    message = it.socket.sent[0][1]

    assert it.socket.sequence == [0, 1, 2, 3]
    assert it.task.heartbeats == 4
    assert delays[:4] == [0.5, 1.0, 0.5, 1.0]
    assert (message.worker_id, message.dp_rank, message.wall_time) == ("77", 2, 0.0)
    assert message.queued_requests == QUEUE
    assert message.scheduled_requests == ScheduledRequestMetrics()


def test_always_zero_hides_the_queue() -> None:
    """WIRE-43: D-3 always-zero: parity with the reference, even if requests wait."""
    it = stream(heartbeat=HeartbeatMode.ALWAYS_ZERO)
    it.task.queued = QUEUE
    it.tick(1.0)

    assert it.socket.sent == [(0, ForwardPassMetrics(worker_id="77", dp_rank=2))]


def test_the_interval_is_a_setting() -> None:
    """WIRE-44, D-3: 300 ms of silence are enough if the settings say so."""
    it = stream(heartbeat_interval_seconds=0.3)
    it.tick(0.29)
    early = list(it.socket.sequence)
    it.tick(0.011)

    assert early == []
    assert it.socket.sequence == [0]


def test_passes_keep_heartbeats_away() -> None:
    """WIRE-42: A stream with a pass every 0.9 s never sends one."""
    it = stream()
    for _ in range(10):
        it.tick(0.9)
        it.task.take(passes(1))

    assert it.task.heartbeats == 0


def test_no_heartbeat_while_passes_wait_to_be_sent() -> None:
    """A tick that is told of queued items leaves the socket to them, however late it is."""
    it = stream()
    it.tick(5.0, queued=1)

    assert it.socket.sent == []


def test_a_refused_send_does_not_count_as_a_send() -> None:
    """Passes that the socket refuses do not postpone the heartbeat."""
    it = stream()
    it.socket.drop = DropReason.SOCKET_FULL
    it.clock.advance(0.9)
    it.task.take(passes(1))
    it.socket.drop = None
    it.tick(0.1)

    assert it.task.heartbeats == 1
    assert it.socket.sequence == [1]


def test_a_refused_heartbeat_waits_an_interval_and_is_not_counted_as_sent() -> None:
    """It uses up its number, once per interval and not with every tick."""
    it = stream()
    it.socket.drop = DropReason.SOCKET_FULL
    for _ in range(20):
        it.tick(0.1)
    it.socket.drop = None
    it.tick(1.0)

    assert it.task.heartbeats == 1
    assert it.socket.sequence == [2]
    assert it.counters.snapshot().dropped == {}


def test_a_paused_stream_is_silent_and_its_counter_stands_still() -> None:
    """WIRE-45: No heartbeat while paused; after it the sequence goes on without a gap."""
    it = stream()
    it.task.take(passes(1))
    it.task.paused = True
    for _ in range(10):
        it.tick(1.0)
    it.task.paused = False
    it.task.take(passes(1))

    assert it.socket.sequence == [0, 1]


# --- what is said, and the end -----------------------------------------------------------------------


def test_a_full_queue_is_said_by_this_thread(caplog: pytest.LogCaptureFixture) -> None:
    """WIRE-41, TRAP-20, D-10: What the engine's thread lost is warned about here, at most once a minute."""
    it = stream(queue_capacity=10)
    it.counters.refuse(DropReason.QUEUE_FULL, 5)
    it.tick(0.1)
    it.counters.refuse(DropReason.QUEUE_FULL, 5)
    it.tick(0.1)
    it.tick(61.0)
    it.counters.refuse(DropReason.QUEUE_FULL)
    it.tick(0.1)

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "5 forward passes" in messages[0]
    assert "FORWARDPASS_PUBLISH_QUEUE" in messages[0]
    assert "11 forward passes" in messages[1]


def test_close_lingers_less_than_the_time_left() -> None:
    """WIRE-47: Subscribers get what is on its way as long as the deadline allows, and no longer."""
    it = stream()
    it.task.close(it.clock.monotonic() + 2.0)
    it.task.close(it.clock.monotonic() - 1.0)

    assert 1.0 < it.socket.lingers[0] < 2.0
    assert it.socket.lingers[1] == 0.0


def test_a_forked_child_leaves_the_socket_alone() -> None:
    """WIRE-48: forked() makes the socket forget and sends nothing."""
    it = stream()
    it.task.forked()

    assert it.socket.forgotten
    assert (it.socket.sent, it.socket.lingers) == ([], [])


class Late:
    """A message that is built when it is sent, or cannot be."""

    def __init__(self, metrics: ForwardPassMetrics | None) -> None:
        self.metrics = metrics

    def build(self) -> ForwardPassMetrics:
        if self.metrics is None:
            raise RuntimeError("uncountable")
        return self.metrics


def test_a_late_message_is_built_when_it_is_sent() -> None:
    """WIRE-40: Late or not, messages keep their order and take their numbers as they are sent."""
    it = stream()
    one, two, three = passes(3)
    it.task.take([one, Late(two), three])

    assert [metrics.wall_time for _, metrics in it.socket.sent] == [0.01, 0.02, 0.03]
    assert it.socket.sequence == [metrics.counter_id for _, metrics in it.socket.sent] == [0, 1, 2]


def test_a_message_that_cannot_be_built_leaves_a_gap() -> None:
    """Readers see that a pass is missing, it is counted as an internal error, and its neighbours go out."""
    it = stream()
    one, two = passes(2)
    it.task.take([one, Late(None), Late(two)])

    assert it.socket.sequence == [0, 2]
    assert it.counters.snapshot().dropped == {"internal_error": 1}
    assert it.counters.delivered == 2


class Engine:
    """Answers what waits, one answer after the other; asked beyond that, it fails."""

    def __init__(self, *answers: QueuedRequestMetrics | None) -> None:
        self.answers = list(answers)
        self.caught_up = 0

    def waiting_now(self) -> QueuedRequestMetrics | None:
        return self.answers.pop(0)

    def catch_up(self) -> None:
        self.caught_up += 1


def test_a_heartbeat_asks_what_waits() -> None:
    """D-3: With something to ask, a heartbeat has what waits when it is sent, whatever was noted before."""
    it, engine = stream(heartbeat=HeartbeatMode.WHEN_IDLE), Engine(QUEUE, QueuedRequestMetrics())
    it.task.engine = engine
    it.tick(1.0)
    it.tick(1.0)

    assert [metrics.queued_requests for _, metrics in it.socket.sent] == [QUEUE, QueuedRequestMetrics()]


def test_a_heartbeat_goes_out_though_nobody_can_say_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    """D-3: A rank that is alive says so, with the queue as it was last known; one line says what failed."""
    it = stream(heartbeat=HeartbeatMode.WHEN_IDLE)
    it.task.engine = Engine(QUEUE)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            it.tick(1.0)

    assert [metrics.queued_requests for _, metrics in it.socket.sent] == [QUEUE] * 3
    assert len(caplog.records) == 1


def test_what_a_built_message_said_is_remembered() -> None:
    """D-3: If nobody can tell, a heartbeat repeats what the last message said, not what an older one did."""
    it = stream(heartbeat=HeartbeatMode.WHEN_IDLE)
    it.task.engine = Engine()
    it.task.queued = QueuedRequestMetrics(9)
    it.task.take([Late(ForwardPassMetrics(wall_time=0.5, queued_requests=QUEUE))])
    it.tick(1.0)

    assert it.socket.sent[-1][1].queued_requests == QUEUE


def test_an_engine_in_the_middle_of_a_step_is_asked_again() -> None:
    """D-3, TRAP-15: While it cannot tell what waits the heartbeat is late, at once and by half an interval at
    most; then it says what was known last.
    """
    it = stream(heartbeat=HeartbeatMode.WHEN_IDLE)
    it.task.engine = Engine(None, None, QUEUE, *[None] * 200)
    assert it.tick(1.0) == it.tick(0.01) == 0.005
    assert it.socket.sent == []
    it.tick(0.01)
    assert [metrics.queued_requests for _, metrics in it.socket.sent] == [QUEUE]

    it.tick(1.49)
    assert len(it.socket.sent) == 1
    it.tick(0.01)
    assert [metrics.queued_requests for _, metrics in it.socket.sent] == [QUEUE, QUEUE]


def test_a_heartbeat_of_zeros_asks_nobody() -> None:
    """WIRE-43: There is nothing to ask."""
    it = stream(heartbeat=HeartbeatMode.ALWAYS_ZERO)
    it.task.engine = Engine()
    it.tick(1.0)

    assert it.socket.sent[0][1].queued_requests == QueuedRequestMetrics()


@pytest.mark.parametrize("paused", [False, True])
def test_the_engines_own_work_is_done_in_every_tick(paused: bool) -> None:
    """ENG-12: What the engine left to this thread is done also while nothing is published."""
    it, engine = stream(), Engine()
    it.task.engine, it.task.paused = engine, paused
    it.tick(0.0)
    it.tick(0.0, queued=3)

    assert engine.caught_up == 2
