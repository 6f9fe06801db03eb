"""Knows the process of one rank of the simulated engine: a job comes in, a file and lines of progress go out.

``python -m forwardpass.engines.mock.bench_worker`` reads one job from its standard input. It ends with 0 when
the rank's file says ``complete`` or ``partial``, else with 1 and a last line that says why. A rank that ends
well also says what its worker runs; a job may ask for that alone.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import Any, NoReturn

import msgspec
from msgspec import Struct

from forwardpass.bench.config import BenchConfig
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.runlog import RunLog
from forwardpass.bench.sync.group import open_group
from forwardpass.bench.sync.rounds import Legs
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_faults import BenchFault, BenchFaultKind
from forwardpass.engines.mock.bench_faulty import be_missing
from forwardpass.engines.mock.bench_rank import MockRank
from forwardpass.engines.mock.bench_reply import worker_reply
from forwardpass.errors import ForwardPassError

__all__ = ["Interrupted", "Job", "Progress", "main"]


class Interrupted(ForwardPassError):
    """The process was asked to end."""


class Job(Struct, frozen=True, kw_only=True):
    """What one rank is to measure."""

    engine: MockBenchConfig
    config: BenchConfig
    environment: BenchEnvironment
    worker_id: str = ""
    rank: int = 0
    size: int = 1
    master: str = "127.0.0.1"
    port: int = 0
    """Where rank 0 listens for the others."""
    leg_seconds: float | None = None
    """Longest wait of one leg of an agreement, instead of the usual 10; the first takes 30 times as long."""
    slow_factor: float = 1.0
    faults: tuple[BenchFault, ...] = ()
    """All of this rank."""
    probe_only: bool = False
    """Measure nothing; only say what the worker runs."""


class Progress(Struct, frozen=True, omit_defaults=True):
    """One line of progress, or the last line."""

    settled: int = 0
    """Points with a result or a reason for none."""
    expected: int = 0
    measured_seconds: float = 0.0
    """Simulated time so far."""
    error: str = ""
    reply: dict[str, Any] | None = None
    """What the rank's worker says of itself, at the end."""


def main() -> int:
    """Run the job on standard input; return the exit status."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupted)
    try:
        if not job.probe_only:
            _measure(job)
    except ForwardPassError as error:
        _say(Progress(error=str(error) or type(error).__name__))
        return 1
    _say(Progress(reply=worker_reply(job.engine.graph, job.rank)))
    return 0


def _measure(job: Job) -> None:
    rank = MockRank(
        engine=job.engine,
        config=job.config,
        environment=job.environment,
        worker_id=job.worker_id,
        sync_port=job.port,
        slow_factor=job.slow_factor,
        faults=job.faults,
        on_progress=_report,
        on_end=_finish_in_peace,
    )
    legs = Legs()
    if job.leg_seconds is not None:
        legs = Legs(leg=job.leg_seconds, first=30 * job.leg_seconds, linger=job.leg_seconds + 1)
    if any(fault.kind is BenchFaultKind.MISSING_RANK and fault.point is None for fault in job.faults):
        be_missing()
    with open_group(job.rank, job.size, job.master, job.port, legs=legs) as group:
        rank.measure(group)


def _report(log: RunLog) -> None:
    expected = log.grid.expected_points if log.grid is not None else 0
    _say(Progress(log.settled_points, expected, sum(row.wall_time for row in log.measured[-1:])))


def _say(progress: Progress) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(progress) + b"\n")
    sys.stdout.buffer.flush()


def _finish_in_peace() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _interrupted(number: int, frame: FrameType | None) -> NoReturn:
    raise Interrupted(f"ended by {signal.Signals(number).name}")


if __name__ == "__main__":
    sys.exit(main())
