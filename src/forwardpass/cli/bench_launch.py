"""Knows how the ranks of a simulated worker are started and watched, and what is made of their files."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.names import merged_path, rank_path, sidecar_path
from forwardpass.artifact.probe import ProbeReplies
from forwardpass.artifact.read import read_artifact
from forwardpass.artifact.run import PathSource
from forwardpass.artifact.sidecar import build_sidecar, write_sidecar
from forwardpass.atomic import remove_stale
from forwardpass.engines.mock.bench_worker import Job, Progress

__all__ = ["BenchResult", "RankEnd", "ask_ranks", "finish", "replies_of", "run_ranks"]

WORKER = ("-m", "forwardpass.engines.mock.bench_worker")
STOP_SECONDS = 15.0
"""Longest wait for a rank that was asked to end; then it is killed."""
LEG_SECONDS = 10.0
LEGS_TO_NOTICE = 3
"""How many legs of an agreement the others have to end by themselves when one rank has failed."""


class RankEnd(Struct, frozen=True):
    """How one rank's process ended."""

    rank: int
    path: str
    exit_code: int
    error: str = ""
    reply: dict[str, Any] | None = None
    """What its worker says of itself; ``None`` if it said nothing."""


class BenchResult(Struct, frozen=True):
    """What a run came to: the files, and how they ended. One with skipped points is not merged."""

    status: str
    """complete, partial or failed."""
    points: int
    skipped: int
    rank_files: tuple[str, ...]
    merged: str | None
    """``None`` where the ranks gave nothing to merge."""
    worker_probe: str | None
    errors: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()
    """Each skipped point and why."""


async def run_ranks(
    jobs: Sequence[Job], on_progress: Callable[[int, Progress], None], stop: asyncio.Event
) -> list[RankEnd]:
    """Run one process for each job to its end; ``stop`` asks all of them to end, and waits for their files.

    What an earlier run left under the names of this one is removed first.
    """
    base = Path(jobs[0].config.output_path)
    for path in (merged_path(base), sidecar_path(merged_path(base))):
        remove_stale(path)
    for job in jobs:
        remove_stale(rank_path(base, job.rank))  # a rank that never comes to write one must not seem to have
    return await _run_all(jobs, on_progress, stop)


async def ask_ranks(jobs: Sequence[Job], stop: asyncio.Event) -> list[RankEnd]:
    """Ask one process for each job what its worker runs, and measure nothing. No file is touched."""
    asked = [msgspec.structs.replace(job, probe_only=True) for job in jobs]
    return await _run_all(asked, lambda rank, progress: None, stop)


async def _run_all(
    jobs: Sequence[Job], on_progress: Callable[[int, Progress], None], stop: asyncio.Event
) -> list[RankEnd]:
    end = asyncio.Event()
    ranks = [asyncio.create_task(_run_rank(job, on_progress, end)) for job in jobs]
    legs = [job.leg_seconds or LEG_SECONDS for job in jobs]
    watch = asyncio.create_task(_end_all(ranks, stop, end, LEGS_TO_NOTICE * max(legs)))
    try:
        return list(await asyncio.gather(*ranks))
    finally:
        watch.cancel()


async def _end_all(
    ranks: Sequence[asyncio.Task[RankEnd]], stop: asyncio.Event, end: asyncio.Event, seconds: float
) -> None:
    """Set ``end`` when ``stop`` is set, or ``seconds`` after a rank failed: one that hangs would go on."""
    asked = asyncio.create_task(stop.wait())
    running = set(ranks)
    while running and not stop.is_set():
        done, _ = await asyncio.wait({asked, *running}, return_when=asyncio.FIRST_COMPLETED)
        running -= done
        if any(task.exception() or task.result().error for task in ranks if task.done()):
            await asyncio.wait({asked}, timeout=seconds)
            break
    asked.cancel()
    end.set()


async def _run_rank(job: Job, on_progress: Callable[[int, Progress], None], stop: asyncio.Event) -> RankEnd:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C reaches it once, from us
    )
    ender = asyncio.create_task(_end_when(process, stop))
    error, reply = "", None
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(job))
        process.stdin.close()
        async for line in process.stdout:
            progress = msgspec.json.decode(line, type=Progress)
            error, reply = progress.error or error, progress.reply or reply
            if not progress.error and progress.reply is None:
                on_progress(job.rank, progress)
        code = await process.wait()
    finally:
        ender.cancel()
        if process.returncode is None:
            process.kill()
    path = str(rank_path(Path(job.config.output_path), job.rank))
    return RankEnd(job.rank, path, code, error or (f"exit status {code}" if code else ""), reply)


async def _end_when(process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
    await stop.wait()
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    await asyncio.sleep(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def replies_of(ends: Sequence[RankEnd]) -> list[dict[str, Any]]:
    """Return what the ranks' workers said, in the order of ranks; one that said nothing is missing."""
    return [end.reply for end in ends if end.reply is not None]


def finish(jobs: Sequence[Job], ends: Sequence[RankEnd]) -> BenchResult:
    """Merge the ranks' files, and write what their simulated workers say beside the merged one.

    Raises :class:`~forwardpass.errors.ArtifactError` if files of ranks that ended well do not merge.
    """
    files = tuple(end.path for end in ends)
    errors = tuple(f"rank {end.rank}: {end.error}" for end in ends if end.error)
    if errors:
        return BenchResult("failed", 0, 0, files, None, None, errors)
    head = read_artifact(Path(files[0])).head
    if head["skipped_points"]:  # all ranks skip the same
        return _unmerged(head, files)
    merged = merged_path(Path(jobs[0].config.output_path))
    sidecar = sidecar_path(merged)
    merge = merge_ranks([PathSource(Path(path)) for path in files], output=merged, sidecar=sidecar)
    merge.write()
    document = merge.document()
    probe = build_sidecar(document, ProbeReplies(replies_of(ends)))
    if probe is not None:
        write_sidecar(sidecar, probe)
    coverage = document["coverage"]
    return BenchResult(
        status=document["status"],
        points=coverage["completed_points"] // len(jobs),
        skipped=coverage["skipped_points"] // len(jobs),
        rank_files=files,
        merged=str(merged),
        worker_probe=str(sidecar) if probe is not None else None,
    )


def _unmerged(head: dict[str, Any], files: tuple[str, ...]) -> BenchResult:
    """Return the result of a run that nobody may use: a merge refuses files with skipped points."""
    skips = [
        f"point {row['point']['benchmark_id']} ({row['point']['point_type']}): {row['reason']}"
        for row in head["skipped_points"]
    ]
    coverage = head["coverage"]
    return BenchResult(
        status=head["status"],
        points=coverage["completed_points"],
        skipped=coverage["skipped_points"],
        rank_files=files,
        merged=None,
        worker_probe=None,
        skips=tuple(skips),
    )
