"""Knows how one round of agreement goes, for rank 0 and for the others: reports, answers, acknowledgements.

Every agreement is the same round. Each rank reports; rank 0 checks the reports and answers all; all
acknowledge, in 0, 1 or 2 passes; the last answer lets them go. Nobody goes before all are known to be there,
and every wait has a deadline. What differs is a :class:`RoundSpec`.

Nothing here waits, sends or reads a clock: messages and the time come in, messages to send go out. A round
that fails gives the message that tells the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Generic, NamedTuple, TypeVar

from msgspec import Struct

from forwardpass.bench.sync.messages import (
    Abort,
    Error,
    FromFollower,
    FromZero,
    encode,
    read_from_follower,
    read_from_zero,
    shown,
    type_of,
)
from forwardpass.errors import MalformedPayload, OutOfLockstep, PeerAborted, SyncError, SyncTimeout

__all__ = ["Coordinator", "Follower", "Legs", "Own", "Pass", "RoundKind", "RoundSpec", "Send", "Sends"]

R = TypeVar("R", bound=FromFollower)
A = TypeVar("A", bound=FromZero)


class RoundKind(StrEnum):
    """What is agreed on."""

    CAPACITY = "capacity"
    GRID = "grid"
    GO = "go"
    RESULT = "result"
    BOUNDARY = "boundary"
    STAGE = "stage"
    CLEANUP = "cleanup"
    NONE = "none"
    """Nothing: between rounds."""


class Legs(Struct, frozen=True):
    """How long one waits, in seconds."""

    leg: float = 10.0
    """For one kind of message from all."""
    grace: float = 1.0
    """More for the last answer, so that rank 0 is the one that finds who is missing."""
    first: float = 300.0
    """For the reports of what ranks can hold: before it some load a dataset."""
    linger: float = 11.0
    """For what was sent last (the end, an error) to leave: longer than anyone waits for it."""


class Pass(NamedTuple):
    """An answer of rank 0 and its acknowledgement, which may say anew whether to stop."""

    answer: type[FromZero]
    ack: type[FromFollower]
    asks_stop: bool = False


class Own(NamedTuple):
    """What a rank knows itself."""

    rank: int
    size: int
    run_id: str | None
    """Of rank 0 itself, or as rank 0 has told; ``None`` before the first point."""
    stop: bool = False
    """Whether it wants to stop, as it has reported."""


class RoundSpec(Struct, Generic[R, A], frozen=True):
    """One kind of agreement."""

    kind: RoundKind
    report: type[R]
    passes: tuple[Pass, ...]
    commit: type[FromZero]
    decided_at: int
    """Which answer carries the decision: the index of a pass, or their number for the commit."""
    check: Callable[[Mapping[int, R]], None]
    """Raise :class:`OutOfLockstep` for reports (by rank, 0 first) that cannot lead to a decision."""
    decide: Callable[[Mapping[int, R], Own], A]
    """Return the answer that carries the decision."""
    accept: Callable[[R, A, Own], None]
    """Raise :class:`OutOfLockstep` for a decision that cannot be right for a rank that reported this."""
    long_first: bool = False
    """Whether reports may take as long as the first of all."""
    one_deadline: bool = False
    """Whether rank 0 waits for all legs together no longer than for one."""
    grace: bool = True
    """Whether the others wait a little longer for the last answer."""


class Send(NamedTuple):
    """Bytes for some ranks."""

    ranks: tuple[int, ...]
    payload: bytes


Sends = tuple[Send, ...]


class _Round(Generic[R, A]):
    """What both sides share: where the round is, until when it waits, how it ended."""

    def __init__(
        self, spec: RoundSpec[R, A], report: R, own: Own, stop: Callable[[], bool], legs: Legs
    ) -> None:
        self.spec = spec
        self.decision: A | None = None
        """What all go by, once the round is over."""
        self.failure: SyncError | None = None
        """Why it ended instead."""
        self.over = False
        self.deadline = 0.0
        """When :meth:`expire` is due, in the seconds of the clock that ``now`` comes from."""
        self._report = report
        self._own = own
        self._ask_stop = stop
        self._legs = legs
        self._step = 0
        self._waited = 0.0

    def _sample_stop(self) -> bool:
        """Return whether this rank wants to stop: once it did, it does."""
        self._own = self._own._replace(stop=self._own.stop or self._ask_stop())
        return self._own.stop

    def _wait(self, now: float, seconds: float) -> None:
        self._waited = seconds
        self.deadline = now + seconds

    def _lockstep(self, rank: int, expected: str, actual: str) -> OutOfLockstep:
        return OutOfLockstep(self.spec.kind, rank, expected, actual)

    def _one_frame(self, rank: int, frames: Sequence[bytes]) -> bytes:
        if len(frames) != 1:
            raise self._lockstep(rank, "one frame", f"{len(frames)} frames")
        return frames[0]

    def _fits(self, rank: int, message: Any, expected: type[Any]) -> None:
        """Check type and point of a message."""
        wanted, found = _named(expected, self._report.benchmark_id), _named(message, message.benchmark_id)
        if wanted != found:
            raise self._lockstep(rank, wanted, found)


class Coordinator(_Round[R, A]):
    """Rank 0's side of a round."""

    def __init__(
        self,
        spec: RoundSpec[R, A],
        report: R,
        own: Own,
        *,
        stop: Callable[[], bool] = lambda: False,
        legs: Legs | None = None,
    ) -> None:
        super().__init__(spec, report, own, stop, legs or Legs())
        self._peers = tuple(range(1, own.size))
        self._missing = set(self._peers)
        self._reports: dict[int, R] = {0: report}
        self._stops = False

    def start(self, now: float) -> Sends:
        """Begin to wait for the others' reports. A rank alone has decided at once."""
        self._wait(now, self._legs.first if self.spec.long_first else self._legs.leg)
        return self._advance(now)

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> Sends:
        """Take what a peer sent; return what is to be sent."""
        try:
            self._note(identity, frames)
        except SyncError as error:
            return self.fail(error)
        return self._advance(now)

    def expire(self) -> Sends:
        """Give up: the deadline has passed."""
        return self.fail(
            SyncTimeout(self.spec.kind, sorted(self._missing), type_of(self._awaited()), self._waited)
        )

    def gone(self, rank: int) -> Sends:
        """Give up: what was to be sent to ``rank`` could not be."""
        return self.fail(PeerAborted(self.spec.kind, rank, "it is not connected"))

    def fail(self, error: SyncError) -> Sends:
        """End the round with ``error``, unless it has failed before; tell all but who gave up itself."""
        if self.failure is not None:
            return ()
        self.failure, self.over = error, True
        knows = error.rank if isinstance(error, PeerAborted) else None
        others = tuple(rank for rank in self._peers if rank != knows)
        return (Send(others, encode(Error(error=shown(str(error))))),)

    def _awaited(self) -> type[FromFollower]:
        return self.spec.report if self._step == 0 else self.spec.passes[self._step - 1].ack

    def _note(self, identity: bytes, frames: Sequence[bytes]) -> None:
        rank = _rank_of(identity, self._own.size)
        expected = self._awaited()
        if rank is None:
            raise self._lockstep(-1, f"a rank from 1 to {self._own.size - 1}", shown(repr(identity)))
        try:
            message = read_from_follower(self._one_frame(rank, frames))
        except MalformedPayload as error:
            raise self._lockstep(rank, _named(expected, self._report.benchmark_id), str(error)) from None
        if message.dp_rank != rank:
            raise self._lockstep(rank, f"dp_rank {rank}", f"dp_rank {message.dp_rank}")
        if isinstance(message, Abort):
            raise PeerAborted(self.spec.kind, rank, shown(message.error), sorted(self._missing - {rank}))
        self._fits(rank, message, expected)
        if rank not in self._missing:
            raise self._lockstep(rank, f"one {type_of(expected)!r}", "another")
        self._missing.discard(rank)
        if self._step == 0:
            self._reports[rank] = message  # type: ignore[assignment]  # its type was compared
        elif self.spec.passes[self._step - 1].asks_stop:
            self._stops |= message.stop_requested  # type: ignore[attr-defined]

    def _advance(self, now: float) -> Sends:
        sends: Sends = ()
        while not self.over and not self._missing:
            try:
                answer = self._answer()
            except SyncError as error:
                return sends + self.fail(error)
            if self._peers:
                sends += (Send(self._peers, encode(answer)),)
            self._step += 1
            self.over = self._step > len(self.spec.passes)
            if not self.over:
                self._missing = set(self._peers)
                if not self.spec.one_deadline:
                    self._wait(now, self._legs.leg)
        return sends

    def _answer(self) -> FromZero:
        spec = self.spec
        if self._step == 0:
            self._reports = dict(sorted(self._reports.items()))
            spec.check(self._reports)
        if self._step == spec.decided_at:
            self._stops |= self._sample_stop()
            self.decision = spec.decide(self._reports, self._own._replace(stop=self._stops))
            return self.decision
        answer = spec.passes[self._step].answer if self._step < len(spec.passes) else spec.commit
        return answer(benchmark_id=self._report.benchmark_id)


class Follower(_Round[R, A]):
    """Every other rank's side of a round."""

    def __init__(
        self,
        spec: RoundSpec[R, A],
        report: R,
        own: Own,
        *,
        stop: Callable[[], bool] = lambda: False,
        legs: Legs | None = None,
    ) -> None:
        super().__init__(spec, report, own, stop, legs or Legs())

    def start(self, now: float) -> Sends:
        """Report, and begin to wait for rank 0."""
        self._wait_for_answer(now)
        return (Send((0,), encode(self._report)),)

    def receive(self, identity: bytes, frames: Sequence[bytes], now: float) -> Sends:
        """Take what rank 0 sent; return what is to be sent."""
        try:
            return self._take(frames, now)
        except SyncError as error:
            return self.fail(error)

    def expire(self) -> Sends:
        """Give up: the deadline has passed."""
        return self.fail(SyncTimeout(self.spec.kind, (0,), type_of(self._awaited()), self._waited))

    def gone(self, rank: int) -> Sends:
        """Give up: what was to be sent could not be."""
        return self.fail(PeerAborted(self.spec.kind, rank, "nothing can be sent to it"))

    def fail(self, error: SyncError) -> Sends:
        """End the round with ``error``, unless it has failed before; tell rank 0 if it does not know."""
        if self.failure is not None:
            return ()
        self.failure, self.over = error, True
        if isinstance(error, PeerAborted):
            return ()
        return (Send((0,), encode(Abort(dp_rank=self._own.rank, error=shown(str(error))))),)

    def _awaited(self) -> type[FromZero]:
        passes = self.spec.passes
        return passes[self._step].answer if self._step < len(passes) else self.spec.commit

    def _take(self, frames: Sequence[bytes], now: float) -> Sends:
        expected = self._awaited()
        try:
            message = read_from_zero(self._one_frame(0, frames))
        except MalformedPayload as error:
            raise self._lockstep(0, _named(expected, self._report.benchmark_id), str(error)) from None
        if isinstance(message, Error):
            raise PeerAborted(self.spec.kind, 0, shown(message.error))
        self._fits(0, message, expected)
        if self._step == self.spec.decided_at:
            decision: A = message  # type: ignore[assignment]  # its type was compared
            self.spec.accept(self._report, decision, self._own)
            self.decision = decision
        if self._step == len(self.spec.passes):
            self.over = True
            return ()
        ack = self._ack(self.spec.passes[self._step])
        self._step += 1
        self._wait_for_answer(now)
        return (Send((0,), encode(ack)),)

    def _ack(self, step: Pass) -> FromFollower:
        fields: dict[str, Any] = {"benchmark_id": self._report.benchmark_id, "dp_rank": self._own.rank}
        if step.asks_stop:
            fields["stop_requested"] = self._sample_stop()
        return step.ack(**fields)

    def _wait_for_answer(self, now: float) -> None:
        if self._step == 0 and self.spec.long_first:
            self._wait(now, self._legs.first)
            return
        last = self._step == len(self.spec.passes)
        self._wait(now, self._legs.leg + (self._legs.grace if last and self.spec.grace else 0.0))


def _named(message: Any, benchmark_id: int) -> str:
    where = f" for point {benchmark_id}" if benchmark_id else ""
    return f"{type_of(message)!r}{where}"


def _rank_of(identity: bytes, size: int) -> int | None:
    """Return the rank that an identity (its number in ASCII) names, if it is one of the group's others."""
    text = identity.decode("ascii", "replace")
    return next((rank for rank in range(1, size) if str(rank) == text), None)
