"""The special cases of the source inside real vLLM engines: every pass is checked where it happened."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stream_subscriber import Subscriber

from forwardpass.testing.ports import free_port
from forwardpass.wire.schema import ScheduledRequestMetrics

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(500)]

SCRIPT = Path(__file__).parent / "watched_run.py"
LIMIT_SECONDS = 240
STALL_SECONDS = 2.6
DRAFTS = 3
NO_DRAFTS = "Cannot inspect kernel parameters"
"""What vLLM 0.30's rejection sampler says where Triton is off."""
NUMBER = r"[0-9]{3}-[0-9]{4}-[a-f]{2,6}"
NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": DRAFTS,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}


def prompt(length: int, start: int = 0, period: int = 400) -> list[int]:
    """Return token ids that repeat after ``period``."""
    return [20 + start + index % period for index in range(length)]


def requests(count: int, *, tokens: int, **more: Any) -> list[dict[str, Any]]:
    """Return requests of different lengths."""
    return [
        {"prompt": prompt(40 + 17 * number, start=3 * number), "tokens": tokens + number, **more}
        for number in range(count)
    ]


def loops(count: int) -> list[dict[str, Any]]:
    """Return greedy requests that repeat themselves, so that n-grams are found and accepted."""
    return [{"prompt": prompt(50 + number, number, period=12), "tokens": 50} for number in range(count)]


def grammars() -> list[dict[str, Any]]:
    """Return two plain requests that run, and three with a grammar that come while they do."""
    plain = requests(2, tokens=60)
    return plain + [
        {"prompt": prompt(30 + number, 50 * number), "tokens": 40, "at": 5, "regex": NUMBER + f"{number}?"}
        for number in range(3)
    ]


class Said:
    """What each case said, and what the streamed one's subscriber got."""

    def __init__(self, cases: dict[str, dict[str, Any]], stream: Subscriber) -> None:
        self.cases = cases
        self.stream = stream

    def __getitem__(self, name: str) -> dict[str, Any]:
        case = self.cases[name]
        if NO_DRAFTS in case.get("error", ""):
            pytest.skip(f"this release verifies no drafts on a CPU, its own scheduler neither ({NO_DRAFTS})")
        assert "error" not in case, case["error"]
        return case


def run_cases(model: str, environment: dict[str, str], cases: list[dict[str, Any]]) -> dict[str, Any]:
    """Run ``cases`` in one process and return what each said; nothing of it is left behind."""
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), model, *map(json.dumps, cases)],
        env=environment | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        # A stage that waits for another one does not see that its engine is gone, and spins for ever.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == 0, stderr[-3000:]
    lines = [line.removeprefix("RESULT ") for line in stdout.splitlines() if line.startswith("RESULT ")]
    return {said["name"]: said for said in map(json.loads, lines)}


@pytest.fixture(scope="module")
def said(vllm: object, tiny_model: str, vllm_environment: dict[str, str]) -> Said:
    """Run every case but one in one process, one engine after the other."""
    scarce = {"block_size": 32, "num_gpu_blocks_override": 48, "max_num_batched_tokens": 128}
    drafted = {
        "speculative_config": {"method": "draft_model", "model": tiny_model, "num_speculative_tokens": DRAFTS}
    }
    doubtful = loops(3) + [{**each, "temperature": 1.0} for each in loops(3)]
    port = free_port()
    stream = Subscriber(port)
    cases: list[dict[str, Any]] = [
        {
            "name": "stalled", "streamed": 1, "requests": requests(12, tokens=3), "idle_seconds": 0.5,
            "stall": {"at": 0, "seconds": STALL_SECONDS}, "settle_seconds": 1.0,
            "env": {"DYN_FORWARDPASS_METRIC_PORT": str(port)},
        },
        {"name": "scarce", "requests": requests(8, tokens=190), "engine": scarce},
        {"name": "scarce-async", "async": 1, "requests": requests(8, tokens=190), "engine": scarce},
        {"name": "grammar", "requests": grammars()},
        {"name": "grammar-async", "async": 1, "requests": grammars()},
        {"name": "plain", "requests": loops(3), "dummy_batches": 3},
        {"name": "drafted-async", "async": 1, "requests": doubtful, "engine": drafted},
        {
            "name": "aborted-async", "async": 1, "requests": requests(6, tokens=40),
            "abort": {"at": 30, "requests": ["r1", "r4"]},
        },
        {"name": "ngram", "requests": loops(3), "engine": {"speculative_config": NGRAM}},
    ]  # fmt: skip
    found = run_cases(tiny_model, vllm_environment, cases)
    stream.stop()
    return Said(found, stream)


@pytest.fixture(scope="module")
def staged(vllm: object, tiny_model: str, vllm_environment: dict[str, str]) -> dict[str, Any]:
    """Run two pipeline stages, each a worker process of its own, in synchronous order, short of everything.

    vLLM on CPU makes the second stage's receiving buffers in a dummy batch, which it leaves out where
    nothing is compiled: the first dummy stands for that one.
    """
    engine = {
        "pipeline_parallel_size": 2, "distributed_executor_backend": "mp", "max_model_len": 512,
        "max_num_seqs": 6, "block_size": 32, "num_gpu_blocks_override": 22,
    }  # fmt: skip
    case = {
        "name": "staged", "requests": requests(8, tokens=60), "engine": engine, "dummies_first": 1,
        "abort": {"at": 60, "requests": ["r1"]},
    }  # fmt: skip
    environment = vllm_environment | {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    found: dict[str, Any] = run_cases(tiny_model, environment, [case])["staged"]
    assert "error" not in found, found["error"]
    return found


WATCHED = pytest.mark.parametrize(
    "name",
    [
        "scarce",
        "scarce-async",
        "grammar",
        "grammar-async",
        "plain",
        "drafted-async",
        "aborted-async",
        "ngram",
    ],
)


def rows(case: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Return (pass, request) for every request of every pass."""
    return [(each, row) for each in case["passes"] for row in each["requests"].values()]


def decodes(each: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the requests of a pass whose prompt was computed before it (without preemption)."""
    return [row for row in each["requests"].values() if row["before"] >= row["prompt"]]


@WATCHED
def test_every_pass_of_a_real_engine_is_counted_right(said: Said, name: str) -> None:
    """ENG-04, ENG-05, ENG-08: What each message says of the pass and of the queue is what the live requests
    said when it was scheduled and when it was over; nothing failed, and no pass is missing.
    """
    case = said[name]

    assert case["scheduler"] == "WatchedScheduler"
    assert case["async"] is name.endswith("async")
    assert case["failures"] == 0
    assert len(case["passes"]) > 10
    assert [each for each in case["passes"] if not (each["right"] and each["queue_right"])] == []
    assert min(each["wall_time"] for each in case["passes"]) > 0


@pytest.mark.parametrize("name", ["scarce", "scarce-async"])
def test_preemption_for_lack_of_blocks(said: Said, name: str) -> None:
    """CASE-05, CASE-06, TRAP-16: Real requests lose their blocks, wait as decodes and come back as prefills
    of what they knew (D-1, D-2); more is computed than there were prompts.
    """
    case = said[name]
    computed = sum(each["scheduled"]["sum_prefill_tokens"] for each in case["passes"])
    prompts = sum(len(request["prompt"]) for request in requests(8, tokens=190))

    assert case["preemptions"] > 0
    assert any("PREEMPTED" in each["statuses"] and each["queue"][1] for each in case["passes"])
    assert computed > prompts - sum(case["cached"].values())
    assert {len(tokens) for tokens in case["outputs"].values()} == set(range(190, 198))


@WATCHED
def test_passes_overlap_where_the_case_says_so(said: Said, name: str) -> None:
    """CASE-16: An asynchronous engine schedules a pass while another is in flight, no other does."""
    in_flight = {each["in_flight"] for each in said[name]["passes"]}

    assert in_flight == ({0, 1} if name.endswith("async") else {0})


def assert_periods(case: dict[str, Any]) -> None:
    """Check that passes which overlap take their period: each less than from its schedule until its output
    was taken in, and all together much less than their spans.
    """
    overlapping = [each for each in case["passes"] if each["in_flight"]]

    assert len(overlapping) > 10
    assert [each for each in overlapping if each["wall_time"] >= each["taken_in"]] == []
    assert sum(each["wall_time"] for each in overlapping) < 0.9 * sum(each["span"] for each in overlapping)


@pytest.mark.parametrize("name", ["scarce-async", "drafted-async"])
def test_wall_time_is_a_period_where_passes_overlap(said: Said, name: str) -> None:
    """CASE-16, ENG-03: A pass that was scheduled before the last output came takes from that output to its
    own, less than from its schedule to its output.
    """
    assert_periods(said[name])


def test_passes_of_pipeline_stages_are_counted_right(staged: dict[str, Any]) -> None:
    """CASE-16, ENG-01, ENG-02: With a batch in each of two stages, in synchronous order, each output is
    reported with what its own batch had and with what waits then, preempted and aborted requests included.
    """
    passes = staged["passes"]
    gone = [each for each, row in rows(staged) if row["known"] is None]

    assert (staged["synchronous"], staged["failures"]) == (True, 0)
    assert [each for each in passes if not (each["right"] and each["queue_right"])] == []
    assert sum(each["in_flight"] == 1 for each in passes) > 100
    assert max(each["in_flight"] for each in passes) == 1
    assert staged["preemptions"] > 0
    assert gone
    assert any("PREEMPTED" in each["statuses"] and each["queue"][1] for each in passes)
    assert {name: len(tokens) for name, tokens in staged["outputs"].items() if name != "r1"} == {
        f"r{number}": 60 + number for number in range(8) if number != 1
    }


def test_wall_time_of_pipeline_stages_is_a_period_too(staged: dict[str, Any]) -> None:
    """CASE-16, ENG-03: A batch goes through two stages, and an output comes after each: that is the time."""
    assert_periods(staged)


@pytest.mark.parametrize("name", ["grammar", "grammar-async"])
def test_structured_output(said: Said, name: str) -> None:
    """CASE-09: While its grammar is compiled a request is a queued prefill; then it runs as any other, and
    its answer obeys the grammar.
    """
    case = said[name]
    waited = [each for each in case["passes"] if "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR" in each["statuses"]]
    texts = [case["texts"][f"r{number}"] for number in (2, 3, 4)]

    assert waited
    assert all(each["queue"][0] >= 1 for each in waited)
    assert [text for text in texts if not re.match(NUMBER, text)] == []


@pytest.mark.parametrize("name", ["ngram", "drafted-async"])
def test_speculative_requests_are_counted_once_and_drafts_nowhere(said: Said, name: str) -> None:
    """CASE-07: A decode with drafts is one decode; prefill tokens are without drafts."""
    case = said[name]

    assert 0 < case["accepted"] <= case["drafts"]
    for each in case["passes"]:
        counted, decoding = ScheduledRequestMetrics(**each["scheduled"]), decodes(each)
        prefilling = [row for row in each["requests"].values() if row["before"] < row["prompt"]]
        assert counted.num_decode_requests == len(decoding)
        assert counted.sum_decode_kv_tokens == sum(row["before"] for row in decoding)
        assert counted.num_prefill_requests == len(prefilling)
        assert counted.sum_prefill_tokens == sum(row["tokens"] - row["drafts"] for row in prefilling)
        assert counted.sum_prefill_kv_tokens == sum(row["before"] for row in prefilling)
    # vLLM counts those of passes that it looked at; a request may have ended while one was in flight.
    assert sum(row["drafts"] for _, row in rows(case)) >= case["drafts"]


def test_accepted_drafts_are_the_passes_that_were_saved(said: Said) -> None:
    """CASE-07: n-gram drafts change how many passes there are, not what is generated; each context is all
    known tokens but the one that is being computed.
    """
    case = said["ngram"]
    generated = sum(map(len, case["outputs"].values()))
    decoded = sum(each["scheduled"]["num_decode_requests"] for each in case["passes"])

    assert case["outputs"] == said["plain"]["outputs"]
    assert decoded < generated - len(case["outputs"])
    assert [
        row for each in case["passes"] for row in decodes(each) if row["before"] != row["known"] - 1
    ] == []


def test_async_speculation_overstates_the_context_by_no_more_than_its_drafts(said: Said) -> None:
    """CASE-07, TRAP-17: With a pass in flight the scheduler counts drafts as computed that may be rejected
    yet: the context is never too small, and too large by the drafts of that pass at most.
    """
    case = said["drafted-async"]
    excess = [
        (row["before"] - (row["known"] - 1), DRAFTS * each["in_flight"])
        for each in case["passes"]
        for row in decodes(each)
        if row["known"] is not None
    ]

    assert case["accepted"] < case["drafts"], "some drafts have to be rejected"
    assert [pair for pair in excess if not 0 <= pair[0] <= pair[1]] == []
    assert any(over for over, _ in excess)


def test_a_dummy_batch_makes_no_message(said: Said) -> None:
    """CASE-11, ENG-11: What vLLM runs on a rank without work, so that the others can go on, goes past the
    scheduler: no pass is reported and no queue.
    """
    assert said["plain"]["reported_of_dummies"] == 0


def test_requests_aborted_in_flight_were_counted(said: Said) -> None:
    """CASE-12: The pass that was under way when a request was aborted still reports it."""
    case = said["aborted-async"]
    gone = [each for each, row in rows(case) if row["known"] is None]

    assert gone
    for each in gone:
        assert each["scheduled"]["num_decode_requests"] == len(decodes(each))
    assert len(case["outputs"]["r1"]) < 41


def test_a_long_pass_leaves_the_real_queue_in_the_heartbeats(said: Said) -> None:
    """CASE-14, TRAP-15: While one pass takes seconds, the first one of an idle engine too, the stream says
    once a second what waits, and never that the engine were idle (D-3).
    """
    assert said["stalled"]["failures"] == 0
    messages = [metrics for _, metrics in said.stream.messages]
    first = next(index for index, metrics in enumerate(messages) if metrics.wall_time > 1)
    slow = messages[first]
    during = [m for m in messages[:first] if m.queued_requests.num_prefill_requests]

    assert slow.wall_time >= STALL_SECONDS
    assert len(during) >= 2
    assert {metrics.scheduled_requests for metrics in during} == {ScheduledRequestMetrics()}
    assert {metrics.wall_time for metrics in during} == {0.0}
    assert {metrics.queued_requests.num_prefill_requests for metrics in during} == {
        slow.queued_requests.num_prefill_requests
    }
    assert messages[first - 1].queued_requests.num_prefill_requests > 0
