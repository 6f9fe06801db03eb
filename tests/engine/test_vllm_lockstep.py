"""Mixture-of-experts ranks behind a real server: they step together, and one without work runs dummies."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from served_vllm import ServedVllm, called_vllm, served

from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(500)]

RANKS = (0, 1)
REQUESTS = 12
LONG = 400
"""Tokens of a request that keeps one rank busy while the other has nothing to do."""
PRETENDED_SECONDS = 0.4
LIMIT_SECONDS = 60.0


class Batch(NamedTuple):
    """A batch that a rank's worker began."""

    at: float
    """On the clock that all processes share, in seconds."""
    tokens: int
    dummy: bool


class Answered(NamedTuple):
    """A request that a rank has answered."""

    rank: int
    prompt: int
    completion: int


class Run(NamedTuple):
    """What two ranks in lock-step did, what was recorded of it, and what clients were told."""

    rows: list[TraceRecord]
    batches: dict[int, list[Batch]]
    answers: list[Answered]
    status: int


class Lockstep:
    """A server with two ranks, and its workers' notes."""

    def __init__(self, server: ServedVllm, notes: Path) -> None:
        self.server = server
        self.notes = notes

    def answer(self, rank: int, words: int, tokens: int) -> Answered:
        """Let ``rank`` answer one request."""
        usage = self.server.post(
            "/v1/completions",
            rank=rank,
            prompt="bada kilo mufa " * words,
            max_tokens=tokens,
            ignore_eos=True,
            temperature=0,
        )["usage"]
        return Answered(rank, usage["prompt_tokens"], usage["completion_tokens"])

    def batches(self, rank: int) -> list[Batch]:
        """Return what the worker of ``rank`` has begun until now."""
        words = [line.split() for line in (self.notes / str(rank)).read_text().splitlines()]
        return [Batch(float(at), 0 if what == "dummy" else int(what), what == "dummy") for at, what in words]

    def pretends(self, rank: int) -> bool:
        """Say whether ``rank`` has run dummies, and nothing else, for a while."""
        batches = self.batches(rank)
        real = max((batch.at for batch in batches if batch.tokens), default=0.0)
        dummies = [batch.at for batch in batches if batch.dummy and batch.at > real]
        return len(dummies) > 20 and dummies[-1] - dummies[0] > PRETENDED_SECONDS


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until ``condition`` holds."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.02)


def drive(ranks: Lockstep) -> list[Answered]:
    """Let each rank work while the other pretends, then both at once."""
    answers = [ranks.answer(rank, 10, 8) for rank in RANKS]
    with ThreadPoolExecutor(REQUESTS) as pool:
        for busy in RANKS:
            long = pool.submit(ranks.answer, busy, 30, LONG)
            wait_for(lambda idle=1 - busy: ranks.pretends(idle))  # type: ignore[misc]
            answers += [ranks.answer(1 - busy, 20, 6), long.result()]
        mixed = [pool.submit(ranks.answer, n % 3 % 2, 4 * n, 10 + 3 * n) for n in range(1, REQUESTS + 1)]
        return answers + [each.result() for each in mixed]


@pytest.fixture(scope="module")
def run(
    vllm: object,
    tiny_experts: str,
    vllm_environment: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Run:
    """Serve a mixture of experts with two ranks, drive them, and stop."""
    folder = tmp_path_factory.mktemp("lockstep")
    notes = folder / "notes"
    notes.mkdir()
    arguments = [
        *("--data-parallel-size", "2", "--api-server-count", "1", "--max-num-seqs", "4"),
        *("--worker-cls", "lockstep_worker.LockstepWorker", "--no-enable-prefix-caching"),
        *("--fpm-trace", "--fpm-mode", "full", "--fpm-output", str(folder / "fpm")),
        *("--fpm-port", str(free_port(4)), "--max-num-batched-tokens", "128"),
    ]
    paths = [called_vllm(folder / "site"), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    environment = vllm_environment | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "LOCKSTEP_NOTES": str(notes),
    }
    with served(tiny_experts, arguments, folder, environment) as server:
        ranks = Lockstep(server, notes)
        answers = drive(ranks)
        status = server.stop()
    rows = list(read_trace(sorted(folder.glob("fpm.*.jsonl.gz"))))
    return Run(rows, {rank: ranks.batches(rank) for rank in RANKS}, answers, status)


def of_rank(run: Run, rank: int) -> list[TraceRecord]:
    return [row for row in run.rows if row.metrics.dp_rank == rank]


def computed(row: TraceRecord) -> int:
    """Return how many tokens a pass computed."""
    scheduled = row.metrics.scheduled_requests
    return scheduled.sum_prefill_tokens + scheduled.num_decode_requests


@pytest.mark.parametrize("rank", RANKS)
def test_each_rank_in_lockstep_has_a_stream_of_its_own(run: Run, rank: int) -> None:
    """ENG-10: Mixture-of-experts ranks publish under their own numbers, each without a gap."""
    counters = [row.metrics.counter_id for row in of_rank(run, rank)]

    assert counters == list(range(counters[0], counters[0] + len(counters)))
    assert {row.metrics.dp_rank for row in run.rows} == set(RANKS)
    assert len({row.metrics.worker_id for row in run.rows}) == 1
    assert run.status == 0


@pytest.mark.parametrize("rank", RANKS)
def test_what_each_rank_answered_is_counted_once_and_there(run: Run, rank: int) -> None:
    """ENG-04, ENG-05: A rank's stream has every prompt token of the requests that it answered, and every
    token that it generated but the first of each, which its prefill gives; so both together have them once.
    """
    scheduled = [row.metrics.scheduled_requests for row in of_rank(run, rank)]
    answers = [answer for answer in run.answers if answer.rank == rank]

    assert len(answers) >= 6
    assert sum(each.sum_prefill_tokens for each in scheduled) == sum(each.prompt for each in answers)
    assert sum(each.num_decode_requests for each in scheduled) == sum(each.completion - 1 for each in answers)


@pytest.mark.parametrize("rank", RANKS)
def test_only_what_a_rank_computed_for_requests_is_a_pass(run: Run, rank: int) -> None:
    """CASE-11, ENG-02, ENG-11: One message for each batch with tokens, in order, of as many as its worker
    got; none for the dummies that a rank without work runs so that the other can go on.
    """
    passes = [row for row in of_rank(run, rank) if row.metrics.wall_time > 0]
    batches = run.batches[rank]

    assert sum(batch.dummy for batch in batches) > 20
    assert [computed(row) for row in passes] == [batch.tokens for batch in batches if batch.tokens]
    assert {computed(row) for row in of_rank(run, rank) if not row.metrics.wall_time} <= {0}


@pytest.mark.parametrize("rank", RANKS)
def test_time_spent_on_dummies_is_not_a_passs(run: Run, rank: int) -> None:
    """CASE-11, ENG-03: The first pass after dummies takes its own time, not theirs."""
    passes = [row for row in of_rank(run, rank) if row.metrics.wall_time > 0]
    began = [batch.at for batch in run.batches[rank] if batch.tokens]
    dummies = [batch.at for batch in run.batches[rank] if batch.dummy]
    waits = [
        (row.metrics.wall_time, at - min(between))
        for row, before, at in zip(passes[1:], began, began[1:], strict=False)
        if (between := [dummy for dummy in dummies if before < dummy < at])
    ]

    assert max(wait for _, wait in waits) > PRETENDED_SECONDS
    assert [took for took, wait in waits if wait > PRETENDED_SECONDS and took >= wait] == []
