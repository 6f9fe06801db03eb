"""Derived quantities of every trace that the reference wrote."""

from __future__ import annotations

import json
import math
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from forwardpass.analyze.derived import derive, tokens_of
from forwardpass.analyze.iterations import IterationExport, LeftOut
from forwardpass.analyze.kinds import PassKind
from forwardpass.analyze.planner import MAX_SAMPLES, EngineRole, SampleStore, planner_sample
from forwardpass.analyze.ranks import group_ranks, ranks_of_workers
from forwardpass.analyze.summary import summarize
from forwardpass.cli.main import Exit
from forwardpass.cli.trace import trace
from forwardpass.testing.traces import trace_line
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

GOLDEN = Path(__file__).parent
FOLDERS = sorted({path.parent.name for path in GOLDEN.glob("*/fpm.*.jsonl.gz")})


@pytest.fixture(params=FOLDERS)
def records(request: pytest.FixtureRequest) -> list[TraceRecord]:
    """The rows of one folder."""
    return list(read_trace(GOLDEN / str(request.param)))


def test_they_agree_with_the_summary(records: list[TraceRecord]) -> None:
    """DERIVE-01, DERIVE-03, DERIVE-07: What the messages say adds up to what ``trace stats`` says."""
    summary = summarize(records)
    parallel = any(len(ranks) > 1 for ranks in ranks_of_workers(records).values())
    derived = [derive(record.metrics, data_parallel=parallel) for record in records]
    kinds = {kind.kind: kind.passes for kind in summary.kinds}

    assert sum(each.tokens for each in derived) == summary.prefill_tokens + summary.decode_tokens
    assert max(each.queue_depth for each in derived) == summary.queue.max_requests
    assert {kind: sum(each.kind is kind for each in derived) for kind in kinds} == kinds
    assert sum(each.kind is PassKind.HEARTBEAT for each in derived) == summary.heartbeats
    assert all(
        value is None or (math.isfinite(value) and value >= 0)
        for each in derived
        for value in msgspec.structs.astuple(each)[1:]
    )


def test_samples_for_the_planner(records: list[TraceRecord]) -> None:
    """DERIVE-10: Every pass that took time is a sample, no heartbeat is, and at most 64 are kept."""
    for role in EngineRole:
        samples = [planner_sample(record.metrics, role) for record in records]
        kept = SampleStore(sample for sample in samples if sample is not None)

        assert [sample is None for sample in samples] == [r.metrics.wall_time == 0 for r in records]
        assert len(kept.samples) == min(MAX_SAMPLES, sum(sample is not None for sample in samples))


def test_iterations(records: list[TraceRecord]) -> None:
    """DERIVE-12: What the reference wrote is exported as it stands, or left out for heartbeats and missing
    ranks; nothing of it would be refused.
    """
    ranks = ranks_of_workers(records)
    export = IterationExport(ranks)
    iterations = list(export.iterations(records))
    messages = [message for each in iterations for message in each]
    written = [record.fpm for record in records]

    assert export.exported > 0
    assert set(export.left_out) <= {LeftOut.HEARTBEAT, LeftOut.RANK_MISSING}
    assert all(message in written for message in messages)
    assert {len(each) for each in iterations} <= {len(known) for known in ranks.values()}


def test_lockstep_ranks_are_one_iteration() -> None:
    """DERIVE-08, DERIVE-09: The simulator's two ranks run in lockstep: nearly all rows pair up closely.
    Two vLLM engines of a dense model do not, and the skew and the missing ranks say so.
    """
    lockstep = list(group_ranks(_passes("mocker-vllm-full-dp2")))
    dense = list(group_ranks(_passes("vllm-cpu-full-dp2")))

    assert sum(not group.missing for group in lockstep) > 0.9 * len(lockstep)
    assert sorted(group.skew_ms for group in lockstep)[len(lockstep) // 2] <= 5
    assert sum(bool(group.missing) for group in dense) > 0.2 * len(dense)


def _passes(folder: str) -> list[TraceRecord]:
    return [record for record in read_trace(GOLDEN / folder) if record.metrics.wall_time > 0]


def run(*arguments: str) -> tuple[int, str, str]:
    """Run ``trace derive``; return its exit code and what it wrote."""
    result = CliRunner().invoke(trace, ["derive", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout, result.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_command(folder: str) -> None:
    """trace derive gives a line for each row, with what tells it apart and every derived quantity."""
    code, out, err = run(str(GOLDEN / folder))
    rows = list(read_trace(GOLDEN / folder))
    lines = [json.loads(line) for line in out.splitlines()]

    assert (code, err, len(lines)) == (Exit.DONE, "", len(rows))
    assert [line["counter_id"] for line in lines] == [row.metrics.counter_id for row in rows]
    assert [line["tokens"] for line in lines] == [tokens_of(row.metrics) for row in rows]


def test_the_command_for_groups_and_iterations() -> None:
    """--by-rank-group gives skew and imbalance of each group; --iterations one document, and says what it
    left out; with --rank the iterations are of that rank alone.
    """
    folder = str(GOLDEN / "vllm-cpu-full-dp2")
    _, groups, _ = run(folder, "--by-rank-group", "--limit", "3")
    code, iterations, words = run(folder, "--iterations")
    _, alone, _ = run(folder, "--iterations", "--rank", "1")
    _, wide, _ = run(folder, "--by-rank-group", "--max-skew-ms", "0")
    document = json.loads(iterations)

    assert [set(json.loads(line)["counter_ids"]) for line in groups.splitlines()] == [{"0", "1"}] * 3
    assert code == Exit.DONE
    assert {tuple(message["dp_rank"] for message in each) for each in document} == {(0, 1)}
    assert words.startswith(f"{len(document)} iterations; left out: ")
    assert {tuple(message["dp_rank"] for message in each) for each in json.loads(alone)} == {(1,)}
    assert {json.loads(line)["skew_ms"] for line in wide.splitlines()} == {0}


def test_a_trace_without_passes(tmp_path: Path) -> None:
    """No rows give no lines, and an empty document that is still JSON."""
    (tmp_path / "empty.jsonl").write_text("")
    path = str(tmp_path / "empty.jsonl")

    assert run(path)[:2] == (Exit.DONE, "")
    assert json.loads(run(path, "--iterations")[1]) == []


def test_a_worker_id_does_not_drive_the_terminal(tmp_path: Path) -> None:
    """What a stranger named a worker is written with escapes, and reads back as it was."""
    name = "\x1b[31m\x9b2J\u202e"
    (tmp_path / "t.jsonl").write_bytes(trace_line(worker_id=name) + b"\n")
    outputs = [
        run(str(tmp_path / "t.jsonl"), *more)[1].strip()
        for more in ([], ["--by-rank-group"], ["--iterations"])
    ]

    assert all(line.isprintable() for output in outputs for line in output.splitlines())
    assert [json.loads(output)["worker_id"] for output in outputs[:2]] == [name, name]
    assert json.loads(outputs[2])[0][0]["worker_id"] == name
