"""Knows the command that judges what workers said after a benchmark: ``bench probe``.

Exit codes: 0 every worker replied and they agree; 1 anything else; 2 wrong use; 3 a file cannot be read or
written.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from forwardpass.artifact.check_merged import check_merged
from forwardpass.artifact.findings import Problem
from forwardpass.artifact.names import sidecar_path
from forwardpass.artifact.probe import ProbeFailed, ProbeReplies, ProbeSkipped
from forwardpass.artifact.probe_view import ProbeResult
from forwardpass.artifact.read import Kind, read_artifact, read_bytes
from forwardpass.artifact.rules import Level
from forwardpass.artifact.sidecar import NoSidecar, Sidecar, build_sidecar, sidecar_beside, write_sidecar
from forwardpass.atomic import remove_stale
from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.cli.bench_launch import ask_ranks, replies_of
from forwardpass.cli.bench_mock import GRAPHS
from forwardpass.cli.bench_validate import problem_line
from forwardpass.cli.main import Exit
from forwardpass.cli.output import ending_quietly, say, write_json, write_lines
from forwardpass.cli.recording import stop_on_signals
from forwardpass.cli.summary_view import counted
from forwardpass.cli.terminal import printable
from forwardpass.config.settings import Sources
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_worker import Job
from forwardpass.errors import ConfigError, MalformedArtifact, UnknownSchema

__all__ = ["probe"]

_LINE = 1000
"""Characters of a line that is shown; values in it may be a worker's."""
_AGREED = "worker_probe"


@click.command()
@click.argument("merged", metavar="MERGED")
@click.option("--replies", metavar="FILE", help="What the call returned, as JSON; - is standard input.")
@click.option("--engine", type=click.Choice(("mock",)), help="Ask the ranks of this engine now.")
@click.option("--failed", metavar="TEXT", help="The call failed: the error's type and text.")
@click.option("--skipped", metavar="TEXT", help="The workers were not asked, and why.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
def probe(
    merged: str,
    replies: str | None,
    engine: str | None,
    failed: str | None,
    skipped: str | None,
    as_json: bool,
) -> int:
    """Judge what the workers of a benchmark's engine reply, and write it beside the merged file.

    The replies are those of one collective call after the run: a JSON list with one entry for each worker,
    or a single reply. Whatever is in them is kept; what is no proper reply is marked. With --engine mock
    every rank of the simulated engine is a process, and is asked. The merged file itself is not touched.

    A sidecar of another run is removed in any case, and one of this run replaced.

    Exit code 0 if every worker replied and they agree; 1 if some are missing or differ, replies are not
    proper, or the merged file is not sound; 2 for wrong use; 3 if a file cannot be read or written.

    \b
    Examples:
      forwardpass bench probe benchmark_results_merged.json --replies replies.json
      forwardpass bench probe benchmark_results_merged.json --engine mock --json
      forwardpass bench probe benchmark_results_merged.json --failed 'TimeoutError: no reply in 30 s'
    """
    ways = {"--replies": replies, "--engine": engine, "--failed": failed, "--skipped": skipped}
    _one_of(ways)
    path = Path(merged)
    file = read_artifact(path)
    if file.kind is not Kind.MERGED:
        raise UnknownSchema(file.name, file.kind.value, file.head.get("schema_version"), "a merged file")
    problems = check_merged(file).of(Level.MERGE)
    sidecar = sidecar_path(path)
    if problems:
        return _refused(problems, as_json)
    if isinstance(sidecar_beside(sidecar, file.head), NoSidecar):
        remove_stale(sidecar)  # of another run, or damaged: whatever happens below, it must not stay
    found = build_sidecar(file.head, _outcome(replies, engine, failed, skipped, file.head))
    remove_stale(sidecar)
    if found is None:
        say(printable(f"{path} has no engine block: there is nothing that replies could resolve", _LINE))
    else:
        write_sidecar(sidecar, found)
    with ending_quietly():
        if as_json:
            write_json(_document(sidecar, found))
        elif found is not None:
            write_lines(printable(line, _LINE) for line in _page(sidecar, found))
    return Exit.DONE if found is not None and found.merged.resolution == _AGREED else Exit.FINDING


def _one_of(ways: dict[str, str | None]) -> None:
    """Raise if not exactly one way of getting replies was chosen."""
    given = [option for option, text in ways.items() if text is not None]
    if not given:
        raise ConfigError("--replies", "", "a file; or --engine, --failed or --skipped instead")
    if len(given) > 1:
        raise ConfigError(given[1], ways[given[1]], f"no {given[0]} beside it")
    if not ways[given[0]]:
        raise ConfigError(given[0], "", "a text that is not empty")


def _outcome(
    replies: str | None, engine: str | None, failed: str | None, skipped: str | None, document: dict[str, Any]
) -> ProbeReplies | ProbeFailed | ProbeSkipped:
    if failed is not None:
        return ProbeFailed(failed)
    if skipped is not None:
        return ProbeSkipped(skipped)
    if replies is not None:
        return ProbeReplies(_read_replies(replies))
    assert engine is not None  # one of the four is there
    return asyncio.run(_ask_mock(list(document["dp"]["ranks"])))


def _read_replies(name: str) -> Any:
    """Return the JSON in a file. NaN is read: a worker may reply it, and then its reply is marked."""
    data = sys.stdin.buffer.read() if name == "-" else read_bytes(Path(name))
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        shown = "standard input" if name == "-" else name
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise MalformedArtifact(shown, f"is not JSON: {reason}") from error


async def _ask_mock(ranks: list[int]) -> ProbeReplies | ProbeFailed:
    """Ask a process of each rank; ranks that fail do not reply, and the call fails if none does."""
    environment = BenchEnvironment.load(Sources())
    jobs = [
        Job(
            engine=MockBenchConfig(graph=GRAPHS),
            config=BenchConfig(BenchMode.AGG),
            environment=environment,
            rank=rank,
            size=len(ranks),
        )
        for rank in ranks
    ]
    stop = asyncio.Event()
    with stop_on_signals(stop):
        ends = await ask_ranks(jobs, stop)
    if stop.is_set():
        raise KeyboardInterrupt
    said = replies_of(ends)
    errors = [f"rank {end.rank}: {end.error}" for end in ends if end.error]
    return ProbeFailed("; ".join(errors)) if errors and not said else ProbeReplies(said)


def _refused(problems: list[Problem], as_json: bool) -> int:
    with ending_quietly():
        if as_json:
            write_json({"sidecar": None, "resolution": None, "problems": problems, "probe": None})
        else:
            write_lines(problem_line(problem.text()) for problem in problems)
            write_lines([f"the merged file is not sound: {counted(len(problems), 'problem')}"])
    return Exit.FINDING


def _document(path: Path, sidecar: Sidecar | None) -> dict[str, Any]:
    return {
        "sidecar": None if sidecar is None else str(path),
        "resolution": None if sidecar is None else sidecar.merged.resolution,
        "problems": [],
        "probe": sidecar,
    }


def _page(path: Path, sidecar: Sidecar) -> Iterator[str]:
    result = sidecar.merged
    yield f"{result.resolution}: {_coverage(result)}"
    yield from _resolved(result)
    for name, values in result.worker_probe.disagreements.items():
        yield f"  workers differ in {name}: {json.dumps(values)}"
    for response in result.worker_probe.responses:
        for issue in response.issues:
            yield f"  reply {response.rpc_index}: {issue}"
    for rank, view in sidecar.ranks.items():
        yield f"rank {rank}: {view.resolution}: {_coverage(view)}"
    yield f"written to {path}"


def _coverage(result: ProbeResult) -> str:
    coverage = result.worker_probe.coverage
    ranks, each = coverage.expected_dp_ranks, coverage.expected_workers_per_dp
    expected = None if ranks is None or each is None else len(ranks) * each
    observed = len(coverage.observed_workers)
    workers = f"{observed:,} of {'?' if expected is None else f'{expected:,}'} workers"
    missing = coverage.missing_dp_ranks
    return f"{workers}, none of rank {', '.join(map(str, missing))}" if missing else workers


def _resolved(result: ProbeResult) -> Iterator[str]:
    """Yield what runs, as far as one worker may speak for all."""
    if isinstance(result.resolved, dict):
        mode = result.resolved.get("cudagraph_mode_resolved")
        sizes = len(result.resolved.get("cudagraph_capture_sizes_resolved", []))
        yield f"  graphs: {mode or 'not said'}, {counted(sizes, 'capture size')}"
    attention = result.attention
    if attention and attention.backend_resolved is not None:
        yield f"  attention: {attention.backend_resolved}"
