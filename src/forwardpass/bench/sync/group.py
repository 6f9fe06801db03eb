"""Knows how a rank takes part in every agreement of a run: it waits, within deadlines, until all agree.

The engine's thread calls it at idle steps, so each call blocks. A rank alone needs no socket and gets the
same answers.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.bench.sync import decisions
from forwardpass.bench.sync import messages as m
from forwardpass.bench.sync.rounds import Coordinator, Follower, Legs, Own, RoundKind, RoundSpec, Sends
from forwardpass.clock import Clock, SystemClock
from forwardpass.errors import BenchError, ConfigError, PeerAborted, SyncError

__all__ = ["Group", "GroupResult", "Link", "StageVerdict", "open_group"]

R = TypeVar("R", bound=m.FromFollower)
A = TypeVar("A", bound=m.FromZero)


class Link(Protocol):
    """How a rank reaches others; bytes go in order, or not at all."""

    def send(self, rank: int, payload: bytes) -> bool:
        """Send without waiting; say whether it could be."""
        ...

    def receive(self, seconds: float) -> tuple[bytes, Sequence[bytes]] | None:
        """Return the sender's identity and frames of one message; wait at most so long."""
        ...

    def close(self, linger_seconds: float) -> None:
        """Close, waiting at most so long until what was sent has left. Idempotent."""
        ...


class GroupResult(NamedTuple):
    """What all ranks measured at one point."""

    rank_results: tuple[m.RankResult, ...]
    """Sorted by rank; the same values on every rank."""
    stop_requested: bool
    """Whether any rank wants to stop, so that all do."""


class StageVerdict(NamedTuple):
    """How far all ranks are with their warm-up chains."""

    all_done: bool
    ok: bool | None
    """Whether every rank has built its own; ``None`` until all are done."""


class Group:
    """One rank among ``size``. Used by one thread.

    A call that fails raises :class:`SyncError`, having told the others; from then on every call raises the
    same error.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        link: Link | None = None,
        *,
        run_id: str | None = None,
        clock: Clock | None = None,
        legs: Legs | None = None,
    ) -> None:
        """Take part as ``rank``; a ``link`` is needed where there are others. Rank 0 draws a ``run_id``."""
        if not 0 <= rank < size:
            raise ConfigError("dp_rank", rank, f"0 to {size - 1}, of {size} ranks")
        if size > 1 and link is None:
            raise ConfigError("link", None, f"a link to the others of {size} ranks")
        self.rank = rank
        self.size = size
        self.run_id = run_id if rank else run_id or uuid.uuid4().hex
        """Of the run: 32 hexadecimal digits. On other ranks ``None`` until the first point."""
        self._link = link
        self._clock: Clock = clock or SystemClock()
        self._legs = legs or Legs()
        self._failure: SyncError | None = None
        self._linger_seconds = 0.0
        self._untold: list[int] = []
        """Ranks that could not be told of the failure."""

    def agree_capacity(self, envelope: CapacityEnvelope) -> CapacityEnvelope:
        """Return what every rank can hold, from what this one can. Once, and first."""
        report = m.Capacity(benchmark_id=0, dp_rank=self.rank, capacity=envelope)
        return self._run(decisions.CAPACITY, report).capacity

    def agree_grid(self, digest: str, expected_points: int, missing_phases: Iterable[str] = ()) -> None:
        """Return once it is known that all ranks have this grid. Once, before anything is run."""
        report = m.Grid(
            benchmark_id=0,
            dp_rank=self.rank,
            grid_digest=digest,
            expected_points=expected_points,
            missing_phases=tuple(missing_phases),
        )
        self._run(decisions.GRID, report)

    def boundary(self, benchmark_id: int, stop: Callable[[], bool]) -> bool:
        """Return whether all stop before the point ``benchmark_id``: whether any rank wants to.

        ``stop`` says whether this one does; it is asked again until the decision.
        """
        wants = stop()
        report = m.Boundary(benchmark_id=benchmark_id, dp_rank=self.rank, stop_requested=wants)
        return self._run(decisions.BOUNDARY, report, stop, wants).stop_requested

    def go(
        self,
        benchmark_id: int,
        point_digest: str,
        output_summary: Mapping[str, Any] | None,
        validation_error: str | None = None,
    ) -> str:
        """Return the run's id when all ranks are about to run the same pass of the same point.

        ``output_summary`` holds the sums of the pass itself; ``validation_error`` says why it does not fit
        the point, and fails all ranks. Raises :class:`BenchError` for a summary that JSON cannot hold, having
        told the others.
        """
        summary = self._plain(benchmark_id, [] if output_summary is None else [dict(output_summary)])
        report = m.Ready(
            benchmark_id=benchmark_id,
            dp_rank=self.rank,
            point_digest=point_digest,
            output_summary=summary[0] if summary else None,
            validation_error=None if validation_error is None else m.shown(validation_error),
        )
        self.run_id = self._run(decisions.GO, report).run_id
        return self.run_id

    def exchange(
        self, benchmark_id: int, point_digest: str, fpms: Iterable[m.Fpm], stop: Callable[[], bool]
    ) -> GroupResult:
        """Return what all ranks measured, from what this one did, and whether all stop after this point.

        Also what this rank measured comes back as JSON carries it. Raises :class:`BenchError` for what JSON
        cannot hold, having told the others.
        """
        measured = self._plain(benchmark_id, fpms)
        wants = stop()
        report = m.Result(
            benchmark_id=benchmark_id,
            dp_rank=self.rank,
            point_digest=point_digest,
            fpms=measured,
            stop_requested=wants,
        )
        group = self._run(decisions.RESULT, report, stop, wants)
        return GroupResult(group.rank_results, group.stop_requested)

    def stage(self, seq: int, batch: int | None, phase: m.StagePhase, ok: bool | None = None) -> StageVerdict:
        """Return how far all ranks are with the warm-up chains of ``batch`` requests.

        ``seq`` counts the idle steps at which this is asked, and has to be the same on all ranks; ``ok`` is
        given if and only if ``phase`` is ``done``.
        """
        report = m.StageRound(benchmark_id=0, dp_rank=self.rank, seq=seq, batch=batch, phase=phase, ok=ok)
        verdict = self._run(decisions.STAGE, report)
        return StageVerdict(verdict.all_done, verdict.ok)

    def cleanup(self) -> None:
        """Return once no rank has anything left to run. Once, and last."""
        self._run(decisions.CLEANUP, m.CleanupReady(benchmark_id=0, dp_rank=self.rank))
        self._linger_seconds = self._legs.linger

    def abort(self, reason: str) -> None:
        """Tell the others that this rank gives up. Idempotent; does nothing after a failure; never raises."""
        if self._failure is not None:
            return
        text = m.shown(reason)
        self._failure = PeerAborted(RoundKind.NONE, self.rank, text)
        if self.rank:
            self._tell((0,), m.encode(m.Abort(dp_rank=self.rank, error=text)))
        else:
            self._untold = self._tell(range(1, self.size), m.encode(m.Error(error=text)))
        self._linger_seconds = self._legs.linger

    def close(self) -> None:
        """Close the socket.

        If the run ended or failed, waits up to 11 s for the last message to leave. So long rank 0 also tells
        a failure to ranks that were not connected when it happened. Idempotent.
        """
        if self._link is None:
            return
        self._tell_latecomers(self._link)
        self._link.close(self._linger_seconds)

    def _tell_latecomers(self, link: Link) -> None:
        until = self._clock.monotonic() + self._linger_seconds
        while self.rank == 0 and self._untold:
            left = until - self._clock.monotonic()
            got = link.receive(max(left, 0.0))
            if got is not None:  # whoever connects reports at once
                self._untold = self._tell(self._untold, m.encode(m.Error(error=m.shown(str(self._failure)))))
            elif left <= 0:
                self._untold = []

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _plain(self, benchmark_id: int, records: Iterable[m.Fpm]) -> tuple[m.Fpm, ...]:
        """Return ``records`` as JSON carries them, or give up."""
        try:
            return m.plain(records)
        except (TypeError, ValueError) as error:
            found = f"what rank {self.rank} has of point {benchmark_id} is no JSON: {error}"
            self.abort(found)
            raise BenchError(found) from error

    def _run(
        self,
        spec: RoundSpec[R, A],
        report: R,
        stop: Callable[[], bool] = lambda: False,
        stops: bool = False,
    ) -> A:
        if self._failure is not None:
            raise self._failure
        own = Own(self.rank, self.size, self.run_id, stops)
        side = Follower if self.rank else Coordinator
        going: Coordinator[R, A] | Follower[R, A] = side(spec, report, own, stop=stop, legs=self._legs)
        self._send(going, going.start(self._clock.monotonic()))
        while not going.over:
            self._turn(going)
        if going.failure is not None:
            self._fail(going.failure)
        assert going.decision is not None  # a round that is over has one, or a failure
        return going.decision

    def _turn(self, going: Coordinator[Any, Any] | Follower[Any, Any]) -> None:
        assert self._link is not None  # a rank alone is over at once
        left = going.deadline - self._clock.monotonic()
        got = self._link.receive(max(left, 0.0))
        if got is not None:
            identity, frames = got
            self._send(going, going.receive(identity, frames, self._clock.monotonic()))
        elif left <= 0:
            self._send(going, going.expire())

    def _send(self, going: Coordinator[Any, Any] | Follower[Any, Any], sends: Sends) -> None:
        for ranks, payload in sends:
            unreached = self._tell(ranks, payload)
            if going.failure is not None:
                self._untold = unreached
            elif unreached:
                self._send(going, going.gone(unreached[0]))

    def _tell(self, ranks: Iterable[int], payload: bytes) -> list[int]:
        """Send to each of ``ranks``; return those that cannot be reached."""
        link = self._link
        return [] if link is None else [rank for rank in ranks if not link.send(rank, payload)]

    def _fail(self, failure: SyncError) -> NoReturn:
        self._failure = failure
        self._linger_seconds = self._legs.linger
        raise failure


def open_group(
    rank: int,
    size: int,
    master: str,
    port: int,
    *,
    run_id: str | None = None,
    clock: Clock | None = None,
    legs: Legs | None = None,
) -> Group:
    """Return the group of a rank; rank 0 listens at ``port`` of the host ``master``, the others connect.

    One rank alone opens nothing. Raises :class:`PortUnavailable` and :class:`ConfigError`.
    """
    link: Link | None = None
    if size > 1:
        from forwardpass.bench.sync.zmq_link import connect_to_zero, listen_on_zero

        link = connect_to_zero(master, port, rank) if rank else listen_on_zero(master, port)
    return Group(rank, size, link, run_id=run_id, clock=clock, legs=legs)
