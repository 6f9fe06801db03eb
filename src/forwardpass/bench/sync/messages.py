"""Knows the messages that ranks exchange: one JSON object each, with Dynamo's names and fields.

``type`` names the message. Rank 0 sends to all others and they send to it alone. Unknown fields are ignored,
so that a later version may add some; everything else must be as declared.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from forwardpass.bench.limits import CapacityEnvelope
from forwardpass.errors import MalformedPayload

__all__ = [
    "Abort",
    "Arm",
    "Armed",
    "Boundary",
    "BoundaryAck",
    "BoundaryCommit",
    "BoundaryDecision",
    "BoundaryPrepare",
    "BoundaryPrepared",
    "Capacity",
    "CapacityAck",
    "CapacityCommit",
    "CapacityResult",
    "CleanupAck",
    "CleanupComplete",
    "CleanupReady",
    "CleanupRelease",
    "Error",
    "Fpm",
    "FromFollower",
    "FromZero",
    "Go",
    "Grid",
    "GridAck",
    "GridCommit",
    "GridPrepare",
    "GroupAck",
    "GroupCommit",
    "GroupDecision",
    "GroupPrepare",
    "GroupPrepared",
    "Prepare",
    "Prepared",
    "RankResult",
    "Ready",
    "Result",
    "StagePhase",
    "StageRound",
    "StageRoundResult",
    "encode",
    "plain",
    "read_from_follower",
    "read_from_zero",
    "shown",
    "type_of",
]

Fpm = dict[str, Any]
"""One forward pass with its evidence, as it stands in an artifact."""

_MAX_SHOWN = 2000
"""Most characters of a peer's text that are passed on."""

_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class StagePhase(StrEnum):
    """How far a rank is with its warm-up chains."""

    NONE = "none"
    BUILDING = "building"
    DONE = "done"


class FromFollower(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What a rank other than 0 sends."""

    benchmark_id: _Count
    """Of the point; 0 outside points."""
    dp_rank: _Count


class FromZero(Struct, frozen=True, kw_only=True, tag_field="type"):
    """What rank 0 sends to all others."""

    benchmark_id: _Count


# --- once: what all can hold, and that all have the same grid ----------------------------------------


class Capacity(FromFollower, frozen=True, tag="capacity"):
    """What one rank can hold."""

    capacity: CapacityEnvelope


class CapacityResult(FromZero, frozen=True, tag="capacity_result"):
    """What all can hold."""

    capacity: CapacityEnvelope


class CapacityAck(FromFollower, frozen=True, tag="capacity_ack"):
    """It was received."""


class CapacityCommit(FromZero, frozen=True, tag="capacity_commit"):
    """All have it."""


class Grid(FromFollower, frozen=True, tag="grid"):
    """The grid that a rank built."""

    grid_digest: str
    expected_points: _Count
    missing_phases: tuple[str, ...]


class GridPrepare(FromZero, frozen=True, tag="grid_prepare"):
    """All grids are the same."""


class GridAck(FromFollower, frozen=True, tag="grid_ack"):
    """It was received."""


class GridCommit(FromZero, frozen=True, tag="grid_commit"):
    """All know."""


# --- before a point ----------------------------------------------------------------------------------


class Boundary(FromFollower, frozen=True, tag="boundary"):
    """Whether a rank wants to stop before the point."""

    stop_requested: bool


class BoundaryPrepare(FromZero, frozen=True, tag="boundary_prepare"):
    """All are there; ask again."""


class BoundaryPrepared(FromFollower, frozen=True, tag="boundary_prepared"):
    """Whether the rank wants to stop now."""

    stop_requested: bool


class BoundaryDecision(FromZero, frozen=True, tag="boundary_decision"):
    """Whether all stop."""

    stop_requested: bool


class BoundaryAck(FromFollower, frozen=True, tag="boundary_ack"):
    """It was received."""


class BoundaryCommit(FromZero, frozen=True, tag="boundary_commit"):
    """All know."""


class Ready(FromFollower, frozen=True, tag="ready"):
    """The pass that a rank is about to run."""

    point_digest: str
    output_summary: dict[str, Any] | None
    """Scheduled tokens, and the sums of prefill and decode, of the pass itself."""
    validation_error: str | None
    """What is wrong with it."""


class Prepare(FromZero, frozen=True, tag="prepare"):
    """All are about to run the same."""


class Prepared(FromFollower, frozen=True, tag="prepared"):
    """It was received."""


class Arm(FromZero, frozen=True, tag="arm"):
    """All are still there."""


class Armed(FromFollower, frozen=True, tag="armed"):
    """The next message releases this rank."""


class Go(FromZero, frozen=True, tag="go"):
    """Run it."""

    run_id: str
    """Of the whole run: 32 hexadecimal digits, drawn by rank 0."""


# --- after a point -----------------------------------------------------------------------------------


class Result(FromFollower, frozen=True, tag="result"):
    """What one rank measured."""

    point_digest: str
    fpms: tuple[Fpm, ...]
    """One, or none where nothing arrived in time."""
    stop_requested: bool


class RankResult(Struct, frozen=True):
    """What the rank ``dp_rank`` measured."""

    dp_rank: _Count
    fpms: tuple[Fpm, ...]


class GroupPrepare(FromZero, frozen=True, tag="group_prepare"):
    """All have measured; ask again whether to stop."""


class GroupPrepared(FromFollower, frozen=True, tag="group_prepared"):
    """Whether the rank wants to stop now."""

    stop_requested: bool


class GroupDecision(FromZero, frozen=True, tag="group"):
    """What all have measured, by rank, and whether all stop."""

    rank_results: tuple[RankResult, ...]
    stop_requested: bool


class GroupAck(FromFollower, frozen=True, tag="group_ack"):
    """It was received."""


class GroupCommit(FromZero, frozen=True, tag="group_commit"):
    """All have it."""


# --- while warm-up chains are built, and at the end ----------------------------------------------------


class StageRound(FromFollower, frozen=True, tag="stage_round"):
    """How far a rank is with the chains of ``batch`` requests, in its idle step ``seq``."""

    seq: _Count
    batch: _Count | None
    phase: StagePhase
    ok: bool | None
    """Whether they were built; ``None`` unless done."""


class StageRoundResult(FromZero, frozen=True, tag="stage_round_result"):
    """Whether all are done, and then whether all were built."""

    seq: _Count
    all_done: bool
    ok: bool | None


class CleanupReady(FromFollower, frozen=True, tag="cleanup_ready"):
    """A rank has nothing left to run."""


class CleanupRelease(FromZero, frozen=True, tag="cleanup_release"):
    """None has."""


class CleanupAck(FromFollower, frozen=True, tag="cleanup_ack"):
    """It was received."""


class CleanupComplete(FromZero, frozen=True, tag="cleanup_complete"):
    """All know."""


# --- when it fails -------------------------------------------------------------------------------------


class Abort(Struct, frozen=True, kw_only=True, tag_field="type", tag="abort"):
    """A rank gives up."""

    dp_rank: _Count
    error: str


class Error(Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """Rank 0 ends the run for all."""

    error: str


_to_zero = msgspec.json.Decoder(
    Abort
    | Armed
    | Boundary
    | BoundaryAck
    | BoundaryPrepared
    | Capacity
    | CapacityAck
    | CleanupAck
    | CleanupReady
    | Grid
    | GridAck
    | GroupAck
    | GroupPrepared
    | Prepared
    | Ready
    | Result
    | StageRound
)
_to_all = msgspec.json.Decoder(
    Arm
    | BoundaryCommit
    | BoundaryDecision
    | BoundaryPrepare
    | CapacityCommit
    | CapacityResult
    | CleanupComplete
    | CleanupRelease
    | Error
    | Go
    | GridCommit
    | GridPrepare
    | GroupDecision
    | GroupCommit
    | GroupPrepare
    | Prepare
    | StageRoundResult
)


def encode(message: FromFollower | FromZero | Abort | Error) -> bytes:
    """Return the JSON text of ``message``."""
    return msgspec.json.encode(message)


def read_from_follower(data: bytes) -> FromFollower | Abort:
    """Return what another rank sent to rank 0; raises :class:`MalformedPayload`."""
    return _read(_to_zero, data)  # type: ignore[no-any-return]


def read_from_zero(data: bytes) -> FromZero | Error:
    """Return what rank 0 sent; raises :class:`MalformedPayload`."""
    return _read(_to_all, data)  # type: ignore[no-any-return]


def type_of(message: Any) -> str:
    """Return the ``type`` of a message or of a class of messages."""
    return str(message.__struct_config__.tag)


def shown(text: str) -> str:
    """Return a peer's text for people: nothing that steers a terminal, and not too much of it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_MAX_SHOWN])


def plain(fpms: Iterable[Fpm]) -> tuple[Fpm, ...]:
    """Return ``fpms`` as every rank receives them, so that all decide on the same values.

    Raises ``ValueError`` or ``TypeError`` for what JSON cannot hold, NaN included.
    """
    text = json.dumps(list(fpms), allow_nan=False)
    try:
        return msgspec.json.decode(text.encode(), type=tuple[Fpm, ...])
    except msgspec.DecodeError as error:
        raise ValueError(shown(str(error))) from None


def _read(decoder: msgspec.json.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `")
        raise MalformedPayload(shown(reason), shown(path.rstrip("`")) or "$") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedPayload(shown(str(error) or type(error).__name__)) from None
